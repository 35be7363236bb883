"""Compiled kernels that outlive a child: compiling those of a scene costs seconds of every first frame.

Dr.Jit keeps the machine code that it makes in a folder. A child must not share that folder with others: it
reads untrusted scenes, and what it leaves there would run in the next child. So each scene has a cache of its
own, named by the hashes of *all* its job's assets: whoever could leave something there has supplied the very
bytes that the next child reads anyhow. And a child sees a copy alone: the slot lays it out before the child
starts, and takes new kernels over afterwards, each a plain file of Dr.Jit's naming and of bounded size.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

VARIABLE: Final = "DRJIT_CACHE_DIR"
FOLDER: Final = "kernels"
"""Name of the child's copy, in its output folder, where it is also started."""
_NAME: Final = re.compile(r"[0-9a-f]{32}\.[a-z0-9]+\.v\d+\.bin")
_KEY: Final = re.compile(r"[0-9a-f]{64}")
LARGEST_FILE: Final = 64 * 2**20
LARGEST_SCENE: Final = 256 * 2**20
LARGEST_CACHE: Final = 2**30


@dataclass(slots=True)
class Kernels:
    """The cache of one scene below ``root``; ``key`` is 64 hex digits, ``None`` keeps nothing."""

    root: Path
    key: str | None
    taken: set[str] = field(default_factory=set)
    """Files that need no look any more."""

    @property
    def kept(self) -> Path | None:
        """Where this scene's kernels are kept."""
        return self.root / self.key if self.key is not None and _KEY.fullmatch(self.key) else None

    def lay_out(self, output: Path) -> None:
        """Give a child that has not started yet its copy. A cache that cannot be read costs time alone."""
        copy = output / FOLDER
        copy.mkdir()
        if self.kept is None:
            return
        with contextlib.suppress(OSError):
            for path in self.kept.iterdir():
                if _NAME.fullmatch(path.name):
                    # by another name first: a copy that a full disk has cut short is no kernel
                    aside = copy / f".{path.name}"
                    shutil.copyfile(path, aside)
                    aside.replace(copy / path.name)
                    self.taken.add(path.name)
            # the order in which caches are swept
            os.utime(self.kept)

    def take_over(self, output: Path) -> int:
        """Keep what the child has compiled since the last look; how many files. Never raises."""
        if self.kept is None:
            return 0
        count = 0
        with contextlib.suppress(OSError), _opened(output / FOLDER) as folder:
            present = [entry.name for entry in os.scandir(folder)]
            fresh = [name for name in present if _NAME.fullmatch(name) and name not in self.taken]
            room = LARGEST_SCENE - _size(self.kept) if fresh else 0
            for name in fresh:
                self.taken.add(name)
                if (content := _read(folder, name, min(room, LARGEST_FILE))) is not None:
                    room -= len(content)
                    self._keep(self.kept, name, content)
                    count += 1
        if count:
            sweep(self.root)
        return count

    def _keep(self, kept: Path, name: str, content: bytes) -> None:
        kept.mkdir(parents=True, exist_ok=True)
        temporary = kept / f".{secrets.token_hex(8)}"
        try:
            temporary.write_bytes(content)
            temporary.replace(kept / name)
        finally:
            temporary.unlink(missing_ok=True)


def sweep(root: Path, largest: int = LARGEST_CACHE) -> None:
    """Remove whole scenes, those not used for longest first, until ``largest`` bytes are left."""
    with contextlib.suppress(OSError):
        scenes = sorted(root.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for path in scenes:
            total += _size(path)
            if total > largest:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The child's folder itself: never what a link of that name leads to."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _read(folder: int, name: str, largest: int) -> bytes | None:
    """A plain file of the child's own; ``None`` for anything else, and for one that is too large."""
    with contextlib.suppress(OSError):
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(handle, "rb") as file:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1 or info.st_size > largest:
                return None
            content = file.read(largest + 1)
            return content if 0 < len(content) <= largest else None
    return None


def _size(folder: Path) -> int:
    """Bytes in a folder; 0 where it is not there."""
    with contextlib.suppress(OSError):
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
    return 0
