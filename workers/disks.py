"""A node's disks: whether there is room on them for work, and in words why not.

A slot looks before each claim and after each frame, the agent once a second. Work stops below the floor of
free space (``FARM_FREE_SPACE_FLOOR``) and begins again only a margin above it, so that a disk that hovers
around the floor does not make slots flap.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from farm.settings import Settings

if TYPE_CHECKING:
    # a slot has no use for gpu_pinning, and every import delays it
    from workers.node_folders import NodeFolders

FULL_PREFIX = "its disk is full: "
"""How the reason of a hold begins that stands only while a disk has no room."""
MARGIN = 256 * 2**20
"""Bytes above the floor at which work begins again; at most the floor itself."""
_FEW_INODES = 64
_PROBE = 64 * 2**10
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL_WORDS = tuple(os.strerror(code) for code in sorted(_FULL))


class Disks:
    """The disks below ``folders``, each looked at once. ``floor`` in bytes."""

    def __init__(self, folders: Iterable[Path] = (), floor: int = 0) -> None:
        self._floor = floor
        self._margin = min(floor, MARGIN)
        found: dict[int, Path] = {}
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            found.setdefault(folder.stat().st_dev, folder)
        self.folders = tuple(found.values())

    @classmethod
    def of(cls, settings: Settings, scratch: Path, spool: Path) -> Disks:
        """The disks that a slot of a node writes to; a store that is no folder looks after itself."""
        store = local_folder(settings.resolved_store)
        mine = [scratch, spool, settings.logs]
        return cls([store, *mine] if store else mine, settings.free_space_floor)

    @classmethod
    def of_node(cls, settings: Settings, folders: NodeFolders) -> Disks:
        """The disks that the slots of a node write to."""
        return cls.of(settings, folders.scratch, folders.spool)

    def short(self) -> str | None:
        """Which disk is below the floor, its free bytes and the floor; None: there is room on each."""
        return self._look(self._floor)

    def refuses(self) -> str | None:
        """Why work may not begin again; None: there is room to spare, and writing works.

        Writes a little to each disk, for a quota shows in no figure.
        """
        return self._look(self._floor + self._margin) or next(filter(None, map(_refusal, self.folders)), None)

    def _look(self, wanted: int) -> str | None:
        for folder in self.folders:
            try:
                info = os.statvfs(folder)
            except OSError as error:
                return f"{folder} cannot be looked at: {error.strerror}"
            free = info.f_bavail * info.f_frsize
            if free < wanted:
                return (
                    f"{folder} has {free:,} bytes free, the floor is {self._floor:,} "
                    f"(FARM_FREE_SPACE_FLOOR), and work goes on at {self._floor + self._margin:,}: free some "
                    "space or run `farm gc`"
                )
            if info.f_files and info.f_favail < _FEW_INODES:
                return f"{folder} has {info.f_favail} inodes left: remove files or run `farm gc`"
        return None


def tells_of_full_disk(error: BaseException) -> bool:
    """Whether an error, or the words that a child left in it, say that a disk or quota is full."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(words in str(error) for words in _FULL_WORDS)


def local_folder(url: str) -> Path | None:
    """The folder of a store that is one, else None."""
    path = url.removeprefix("file://")
    return None if "://" in path else Path(path)


def _refusal(folder: Path) -> str | None:
    probe = folder / f".room-{secrets.token_hex(8)}"
    try:
        try:
            fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, _PROBE)
            finally:
                os.close(fd)
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
    except OSError as error:
        if error.errno in _FULL:
            return f"{folder} takes no more bytes ({error.strerror}): free some space or run `farm gc`"
        return f"{folder} cannot be written: {error.strerror}"
    return None
