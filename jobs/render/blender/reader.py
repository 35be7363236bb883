"""The child that looks into a .blend before Blender does: one request line in, one answer line out.

Runs in a process of its own because the file may come from anybody: whatever it does to the tracer, time,
memory and disk of this process alone are bounded (:mod:`jobs.render.blender.scene_file` on a node,
:mod:`jobs.render.blender.collect` on the submitting machine).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_MAX_NAMED: Final = 1000
_OUT_OF_MEMORY: Final = (
    b'{"event": "error", "kind": "permanent", '
    b'"message": "looking through it takes more memory than it may"}\n'
)


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    # the tracer's own words are not an answer
    os.dup2(2, 1)
    _bound(request)
    try:
        answer = json.dumps(_answer(request))
    except MemoryError:
        # little may be left to say it with
        os.write(answers.fileno(), _OUT_OF_MEMORY)
        os._exit(0)
    print(answer, file=answers, flush=True)


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        from jobs.render.blender import tracing
    except ImportError:
        return _error(
            "not_installed",
            "reading .blend files needs blender-asset-tracer: pip install 'stillframe[render]'",
        )
    logging.getLogger("blender_asset_tracer").setLevel(logging.CRITICAL)
    try:
        if request["op"] == "look":
            return _look(request)
        from jobs.render.blender.packing import pack

        return pack(request)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  the tracer raises whatever a broken file leads it to
        return _error("permanent", tracing.in_words(error))


def _look(request: Mapping[str, Any]) -> dict[str, Any]:
    """Engines and views of the scenes, the version, and the paths that leave the assets."""
    from jobs.render.blender.tracing import Walk

    root, scene = Path(request["root"]), str(request["scene"])
    inside = Path(os.path.realpath(root))
    placed = frozenset(request["placed"])

    def within(path: Path) -> bool:
        real = os.path.realpath(path)
        return real in placed or Path(real).is_relative_to(inside)

    walk = Walk(root / scene, within, int(request["unpacked"]))
    engines, views = {}, {}
    for block in walk.file.find_blocks_from_code(b"SC"):
        name = (block.id_name or b"")[2:].decode("utf-8", "replace")
        engines[name] = str(block.get((b"r", b"engine"), as_str=True))
        views[name] = str(block.get((b"view_settings", b"view_transform"), as_str=True))
    outside: list[str] = []
    exists: list[bool] = []
    for usage, path in walk.usages():
        if not within(path) and len(outside) < _MAX_NAMED:
            outside.append(bytes(usage.asset_path or b"").decode("utf-8", "replace")[:1024])
            exists.append(os.path.lexists(path))
    return {
        "event": "read",
        "engines": engines,
        "views": views,
        "outside": outside,
        "exists": exists,
        "unread": walk.unread,
        "saved_by": divmod(int(walk.file.header.version), 100),
    }


def _error(kind: str, message: str) -> dict[str, str]:
    return {"event": "error", "kind": kind, "message": message}


def _bound(request: Mapping[str, Any]) -> None:
    """Set the limits that the request names, and end with the process that asked."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        for limit, value in ((resource.RLIMIT_DATA, request["memory"]), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(limit, (value, value))
        if request["op"] == "look":
            # nothing but unpacking writes, and it counts by itself
            most = int(request["unpacked"]) + 2**20
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if "parent" in request:
        threading.Thread(target=_end_with, args=(int(request["parent"]),), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
