"""What a .blend needs, gathered on the submitting machine by blender-asset-tracer.

Files that the .blend reaches by relative paths keep their places beside each other; a .blend with absolute
paths is rewritten in a temporary copy, as the tracer's own packer does, so that every path in the job is
relative. Nothing is copied but those rewritten files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from farm.errors import InvalidInput, NotInstalled

_TARGET = PurePath("/job")


@dataclass(frozen=True, slots=True)
class Collected:
    """A .blend and its files: ``scene`` is its path in the job, ``files`` maps job paths to local files.

    ``missing`` are the files that were named and not found; ``rewritten`` the job paths of .blend files
    whose absolute paths were made relative.
    """

    scene: str
    files: dict[str, Path]
    missing: list[Path] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)


@contextmanager
def collect(blend: Path, root: Path | None = None) -> Iterator[Collected]:
    """Gather ``blend`` and all that it needs; rewritten copies live until the context ends.

    ``root`` is the folder that the job's paths start in; left out: the deepest one above all relative paths.

    Raises :class:`farm.errors.InvalidInput` for a file that is no .blend or not below ``root``, and
    :class:`farm.errors.NotInstalled` without the tracer.
    """
    try:
        from blender_asset_tracer import blendfile, pack, trace
        from blender_asset_tracer.pack import transfer
    except ImportError:
        raise NotInstalled(
            "reading .blend files needs blender-asset-tracer: pip install 'stillframe[render]'"
        ) from None
    logging.getLogger("blender_asset_tracer").setLevel(logging.ERROR)

    class Recorder(transfer.FileTransferer):
        """Notes what the packer would copy, instead of copying it."""

        def __init__(self, files: dict[str, Path], moved: list[str]) -> None:
            super().__init__()
            self._files, self._moved = files, moved

        def queue_copy(self, src: Path, dst: PurePath) -> None:
            self._files[dst.relative_to(_TARGET).as_posix()] = src

        def queue_move(self, src: Path, dst: PurePath) -> None:
            name = dst.relative_to(_TARGET).as_posix()
            self._files[name] = src
            self._moved.append(name)

        def run(self) -> None:
            """Nothing is transferred."""

        def done_and_join(self) -> None:
            self.join()

    blend = blend.resolve()
    files: dict[str, Path] = {}
    moved: list[str] = []

    class Packer(pack.Packer):
        def _create_file_transferer(self) -> Any:
            return Recorder(files, moved)

        def _write_info_file(self) -> None:
            """The job needs no note of how it was packed."""

    try:
        root = root.resolve() if root is not None else _common_root(blend, trace)
        if not blend.is_relative_to(root):
            raise InvalidInput(f"{blend} does not lie below --root {root}")
        with Packer(blend, root, str(_TARGET)) as packer:
            packer.strategise()
            packer.execute()
            scene = blend.relative_to(root).as_posix()
            yield Collected(scene, dict(sorted(files.items())), sorted(packer.missing_files), sorted(moved))
    except blendfile.exceptions.BlendFileError as error:
        raise InvalidInput(f"{blend} cannot be read as a .blend file: {error}") from None
    finally:
        blendfile.close_all_cached()


def _common_root(blend: Path, trace: Any) -> Path:
    """The deepest folder above ``blend`` and every file that it reaches by a relative path.

    A file that is missing counts too: a path that climbs must not leave the job because of it.
    """
    root = blend.parent
    for usage in trace.deps(blend):
        target = usage.abspath.resolve()
        if usage.asset_path.is_blendfile_relative():
            while not target.is_relative_to(root):
                root = root.parent
    if root == Path(root.anchor):
        # a file that lies right across the disk is moved beside the scene instead
        return blend.parent
    return root
