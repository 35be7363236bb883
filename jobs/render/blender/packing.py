"""What a .blend needs, found on the submitting machine: the part that runs in the reader's child.

Nothing outside the project's folder is taken unless the person says so, because the .blend may come from
somebody who would like to see it; and nothing at all that Blender would not read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from blender_asset_tracer import pack as bat
from blender_asset_tracer import trace
from blender_asset_tracer.pack import transfer

from jobs.render.blender.readable import is_readable
from jobs.render.blender.tracing import Walk

_TARGET: Final = PurePath("/job")


class Gate:
    """Lets files through: those below ``project``, or everywhere with ``anywhere``."""

    def __init__(self, project: Path, *, anywhere: bool) -> None:
        self._project = Path(os.path.realpath(project))
        self._anywhere = anywhere
        self.outside: set[str] = set()
        self.left_out: set[str] = set()

    def opens(self, path: Path) -> bool:
        """Whether what lies at ``path`` may be looked at; a link lies where it leads."""
        return self._anywhere or Path(os.path.realpath(path)).is_relative_to(self._project)

    def takes(self, path: Path, *, in_cache: bool = False) -> bool:
        """Whether the file may be sent; notes why not."""
        if not self.opens(path):
            self.outside.add(str(path))
            return False
        if not is_readable(path, in_cache=in_cache):
            self.left_out.add(str(path))
            return False
        return True

    def takes_usage(self, usage: Any, path: Path) -> bool:
        """Whether a use of a file, a sequence or a folder of them may be followed; what is missing may."""
        if usage.is_sequence:
            # its files pass one by one
            there = path.exists() or "*" in path.name or "<UDIM>" in path.name
            if there and not self.opens(path):
                self.outside.add(str(path))
                return False
            return True
        return not path.exists() or self.takes(path)


def pack(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a ``pack`` request: files by job path, what is missing, and what was refused."""
    blend = Path(request["blend"])
    project = Path(request["root"] or blend.parent)
    gate = Gate(project, anywhere=bool(request["allow_outside"]))
    walk = Walk(blend, gate.opens, int(request["unpacked"]))
    named = list(walk.usages())
    usages = [(usage, path) for usage, path in named if gate.takes_usage(usage, path)]
    answer: dict[str, Any] = {"event": "packed", "files": {}, "missing": [], "moved": [], "scene": ""}
    if not gate.outside:
        root = Path(request["root"]) if request["root"] else _common_root(blend, named)
        answer |= _pack(blend, root, usages, gate, Path(request["copies"]))
    return answer | {
        "outside": sorted(gate.outside),
        "left_out": sorted(gate.left_out),
        "unread": walk.unread,
    }


def _pack(
    blend: Path, root: Path, usages: Sequence[tuple[Any, Path]], gate: Gate, copies: Path
) -> dict[str, Any]:
    files: dict[str, str] = {}
    moved: list[str] = []
    folders = {path for usage, path in usages if usage.is_sequence and path.is_dir()}

    class Recorder(transfer.FileTransferer):
        """Notes what the packer would copy, instead of copying it."""

        def queue_copy(self, src: Path, dst: PurePath) -> None:
            in_cache = any(src.is_relative_to(folder) for folder in folders)
            if src == blend or gate.takes(src, in_cache=in_cache):
                files[dst.relative_to(_TARGET).as_posix()] = str(src)

        def queue_move(self, src: Path, dst: PurePath) -> None:
            name = dst.relative_to(_TARGET).as_posix()
            # the packer removes what it rewrote when it closes
            kept = shutil.move(src, copies / f"{len(moved)}{src.suffix}")
            files[name] = str(kept)
            moved.append(name)

        def run(self) -> None:
            """Nothing is transferred."""

        def done_and_join(self) -> None:
            self.join()

    class Packer(bat.Packer):
        def _create_file_transferer(self) -> Any:
            return Recorder()

        def _write_info_file(self) -> None:
            """The job needs no note of how it was packed."""

    # what was refused is not to be seen by the packer, which looks for itself
    trace.deps = lambda *_: iter([usage for usage, _ in usages])
    with Packer(blend, root, str(_TARGET)) as packer:
        packer.strategise()
        packer.execute()
        return {
            "scene": blend.relative_to(root).as_posix(),
            "files": dict(sorted(files.items())),
            "missing": sorted(map(str, packer.missing_files)),
            "moved": sorted(moved),
        }


def _common_root(blend: Path, usages: Sequence[tuple[Any, Path]]) -> Path:
    """The deepest folder above ``blend`` and every file that it reaches by a relative path.

    A file that is missing or left out counts too: a path that climbs must not leave the job because of it.
    """
    root = blend.parent
    for usage, path in usages:
        if usage.asset_path.is_blendfile_relative():
            while not path.resolve().is_relative_to(root):
                root = root.parent
    if root == Path(root.anchor):
        # a file that lies right across the disk is moved beside the scene instead
        return blend.parent
    return root
