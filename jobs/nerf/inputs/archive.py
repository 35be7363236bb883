"""Unpack a .zip of pictures: junk left out, nothing outside the folder, no bomb."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

from farm.errors import PermanentFailure
from jobs.nerf.names import is_junk

MAX_BYTES: Final = 64 * 2**30
MAX_FILES: Final = 100_000
MAX_RATIO: Final = 100
"""Unpacked to packed bytes. Photographs are packed already: a higher ratio is a bomb."""
_FREE: Final = 50 * 2**20
"""Bytes below which the ratio does not matter."""


def unpack(archive: Path, folder: Path, label: str) -> Path:
    """Unpack ``archive`` into ``folder``; gives the folder that holds its files.

    Raises :class:`PermanentFailure` for what is no zip, is encrypted, reaches outside, or unpacks to more
    than any set of photographs would: the sizes that the archive states are checked first, and again while
    unpacking, for an archive can lie.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packed = max(archive.stat().st_size, 1)
    limit = min(MAX_BYTES, max(_FREE, packed * MAX_RATIO))
    try:
        with zipfile.ZipFile(archive) as file:
            wanted = [item for item in file.infolist() if not item.is_dir() and not is_junk(item.filename)]
            if len(wanted) > MAX_FILES:
                raise PermanentFailure(
                    f"{label} holds {len(wanted):,} files; at most {MAX_FILES:,} are taken"
                )
            stated = sum(item.file_size for item in wanted)
            if stated > limit:
                raise _bomb(label, packed, stated)
            left = limit
            for item in wanted:
                left = _unpack_one(file, item, folder, label, left, packed)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, NotImplementedError) as error:
        raise PermanentFailure(f"{label} is no zip that can be read ({error}); pack it again") from None
    except RuntimeError as error:
        raise PermanentFailure(f"{label} cannot be unpacked ({error}); pack it without a password") from None
    return _inner(folder)


def _unpack_one(
    file: zipfile.ZipFile, item: zipfile.ZipInfo, folder: Path, label: str, left: int, packed: int
) -> int:
    name = PurePosixPath(item.filename.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts or len(item.filename) > 1024:
        raise PermanentFailure(f"{label}: {item.filename[:80]!r} reaches outside the archive; pack it again")
    if (item.external_attr >> 16) & 0o170000 == 0o120000:
        raise PermanentFailure(f"{label}: {item.filename[:80]!r} is a link; pack the file itself")
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with file.open(item) as source, target.open("wb") as out:
        while block := source.read(1 << 20):
            left -= len(block)
            if left < 0:
                raise _bomb(label, packed, None)
            out.write(block)
    return left


def _bomb(label: str, packed: int, stated: int | None) -> PermanentFailure:
    size = f"{stated:,} bytes" if stated is not None else "more than it states"
    return PermanentFailure(
        f"{label} has {packed:,} bytes and unpacks to {size}: no photographs pack so well. Send the pictures "
        "in a folder, or in a .zip of JPEG or PNG files"
    )


def _inner(folder: Path) -> Path:
    """The folder that really holds the files, where everything lies in one."""
    inside = list(folder.iterdir())
    while len(inside) == 1 and inside[0].is_dir():
        folder = inside[0]
        inside = list(folder.iterdir())
    return folder


def remove(folder: Path) -> None:
    """Remove what was unpacked."""
    shutil.rmtree(folder, ignore_errors=True)
