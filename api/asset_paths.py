"""Names that people give to files: confined to relative paths in one spelling, or refused.

A path that would have to be changed to be safe is refused with the reason, never quietly rewritten, so that
what a spec names and what the farm stores stay the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from api.problems import HttpProblem, escape

MAX_PATH = 300
MAX_SEGMENT_BYTES = 255
_DRIVE = re.compile(r"^[A-Za-z]:")


def fault_of(path: str) -> str | None:
    """What is wrong with a path; ``None`` when it may stand."""
    if not path:
        return "it is empty"
    if "\0" in path:
        return "it holds a NUL character"
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF for char in path):
        return "it holds a control character"
    if "\\" in path:
        return "it holds a backslash; write folders with /"
    if path.startswith("/") or _DRIVE.match(path):
        return "it is absolute; name files relative to the job's assets"
    if len(path) > MAX_PATH:
        return f"it is {len(path)} characters long; {MAX_PATH} is the limit"
    for segment in path.split("/"):
        if segment == "..":
            return "it leaves the job's assets (..)"
        if segment in ("", "."):
            return f"it has an empty or '.' folder; write {_straight(path)!r}"
        if len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"one name in it is longer than {MAX_SEGMENT_BYTES} bytes"
    return None


def _straight(path: str) -> str:
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def check(paths: Iterable[str], pointer: str) -> None:
    """Raise a 422 that names every bad path; ``pointer`` is that of the object whose names they are."""
    known = list(paths)
    faults = []
    for path in known:
        if fault := fault_of(path):
            shown = path.encode("utf-8", "replace").decode()[:120]
            message = f"asset path {shown!r}: {fault}"
            faults.append({"in": "body", "pointer": f"{pointer}/{escape(shown)}", "message": message})
    files = set(known)
    for path in known:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder in files:
                message = f"asset path {path[:120]!r} lies below {folder[:120]!r}, which is a file"
                faults.append({"in": "body", "pointer": f"{pointer}/{escape(path)}", "message": message})
                break
    if faults:
        raise HttpProblem(
            422, "invalid-input", "; ".join(f["message"] for f in faults[:3]), faults=faults[:100]
        )
