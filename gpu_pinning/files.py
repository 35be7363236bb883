"""Small kernel files: reads that may fail, and writes whose refusal is seen.

A write to sysfs, procfs or cgroupfs is answered by ``write(2)``. A buffered file object writes at close and
can lose that answer, so every write here is one ``os.write``.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpu_pinning import cpulist


def read(path: str | os.PathLike[str]) -> str | None:
    """The stripped text of a kernel file, bytes that are no UTF-8 replaced; None where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        chunks = []
        while chunk := os.read(fd, 1 << 16):
            chunks.append(chunk)
        return b"".join(chunks).decode(errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(fd)


def read_int(path: str | os.PathLike[str]) -> int | None:
    """The whole number in a kernel file, or None."""
    text = read(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def read_list(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """The CPU or node list in a kernel file, or None."""
    text = read(path)
    try:
        return None if text is None else cpulist.parse(text)
    except ValueError:
        return None


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` in one call. Raises OSError with the kernel's answer."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def names(folder: Path) -> list[str]:
    """Sorted names in a folder; none where it cannot be listed."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - the names are wanted, not paths
    except OSError:
        return []
