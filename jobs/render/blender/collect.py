"""What a .blend needs, gathered on the submitting machine by blender-asset-tracer.

Files that the .blend reaches by relative paths keep their places beside each other; a .blend with absolute
paths is rewritten in a temporary copy, as the tracer's own packer does, so that every path in the job is
relative. Nothing is copied but those rewritten files. The looking is done in a child
(:mod:`jobs.render.blender.packing`): the .blend may come from anybody, and its reading has to end.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from farm.errors import InvalidInput, NotInstalled
from jobs.render.blender.scene_file import READER, UNPACKED_LIMIT
from jobs.render.sandbox import farm_python

TIME_LIMIT_S = 300.0
MEMORY_LIMIT: Final = 4 * 2**30
_MOST_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Collected:
    """A .blend and its files: ``scene`` is its path in the job, ``files`` maps job paths to local files.

    ``missing`` are the files that were named and not found; ``left_out`` those that Blender would not read;
    ``unread`` data-blocks that could not be followed; ``rewritten`` the job paths of .blend files whose
    absolute paths were made relative.
    """

    scene: str
    files: dict[str, Path]
    missing: list[Path] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


@contextmanager
def collect(blend: Path, root: Path | None = None, *, allow_outside: bool = False) -> Iterator[Collected]:
    """Gather ``blend`` and all that it needs; rewritten copies live until the context ends.

    ``root`` is the folder of the project, and the one that the job's paths start in; left out: the .blend's
    own folder, and the deepest one above all relative paths. Files outside the project are taken with
    ``allow_outside`` alone.

    Raises :class:`farm.errors.InvalidInput` for a file that is no .blend, is damaged, is not below ``root``,
    or names files outside the project, and :class:`farm.errors.NotInstalled` without the tracer.
    """
    blend = blend.resolve()
    root = root.resolve() if root is not None else None
    if root is not None and not blend.is_relative_to(root):
        raise InvalidInput(f"{blend} does not lie below --root {root}")
    with tempfile.TemporaryDirectory(prefix="stillframe-submit-") as name:
        (Path(name) / "copies").mkdir()
        request = {
            "op": "pack",
            "blend": str(blend),
            "root": str(root) if root else None,
            "allow_outside": allow_outside,
            "copies": f"{name}/copies",
            "memory": MEMORY_LIMIT,
            "unpacked": UNPACKED_LIMIT,
            "parent": os.getpid(),
        }
        found = _ask(request, blend, name)
        if found["outside"]:
            raise InvalidInput(_refusal(blend, root or blend.parent, found["outside"]))
        yield Collected(
            found["scene"],
            {job_path: Path(path) for job_path, path in found["files"].items()},
            [Path(path) for path in found["missing"]],
            list(found["moved"]),
            [Path(path) for path in found["left_out"]],
            list(found["unread"]),
        )


def _ask(request: Mapping[str, Any], blend: Path, folder: str) -> dict[str, Any]:
    program = farm_python(READER)
    try:
        done = subprocess.run(
            program.argv,
            input=json.dumps(request) + "\n",
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
            cwd=folder,
            env={**os.environ, **program.env, "TMPDIR": folder},
        )
    except subprocess.TimeoutExpired:
        raise InvalidInput(
            f"{blend} cannot be looked through within {TIME_LIMIT_S:g} s; it is damaged, or far too large"
        ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        words = done.stderr.strip().splitlines()
        raise InvalidInput(
            f"{blend} cannot be looked through: its reader ended with status {done.returncode}"
            + (f": {words[-1][:300]}" if words else "")
        ) from None
    if answer["event"] == "error":
        if answer["kind"] == "not_installed":
            raise NotInstalled(answer["message"])
        raise InvalidInput(f"{blend} cannot be read as a .blend file: {answer['message']}")
    return answer


def _refusal(blend: Path, project: Path, outside: Sequence[str]) -> str:
    """Which files lie outside, and how they would be sent."""
    shown = "".join(f"\n  {path}" for path in outside[:_MOST_SHOWN])
    if len(outside) > _MOST_SHOWN:
        shown += f"\n  and {len(outside) - _MOST_SHOWN} more"
    common = Path(os.path.commonpath([str(project), *map(os.path.realpath, outside)]))
    way = "send them with --allow-outside, if you know that they may be seen by who sees the job"
    if common != Path(common.anchor):
        way = f"if they belong to it, name its folder with --root {common}; or {way}"
    return f"{blend.name} names files outside its folder {project}, and nothing was sent:{shown}\n{way}"
