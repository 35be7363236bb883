"""Time stamps that one process writes and another reads meanwhile: a mapped file, no system call a stamp.

The file holds a count (64 bits) and then so many float64 stamps in seconds of CLOCK_MONOTONIC, which is one
clock for all processes of a machine. Written by one thread. Standard library alone.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array
from pathlib import Path

CAPACITY = 2_000_000
_HEAD = 8


class StampWriter:
    """Appends stamps; when the file is full, later ones are dropped and :attr:`full` is true."""

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        """A fresh, empty file at ``path``."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, _HEAD + 8 * capacity)
            self._map = mmap.mmap(fd, _HEAD + 8 * capacity)
        finally:
            os.close(fd)
        view = memoryview(self._map)
        self._count = view[:_HEAD].cast("Q")
        self._values = view[_HEAD:].cast("d")
        self._capacity = capacity
        self._at = 0

    @property
    def full(self) -> bool:
        """Whether stamps are dropped."""
        return self._at >= self._capacity

    def stamp(self, at: float | None = None) -> None:
        """Note this moment (or ``at``)."""
        if self._at < self._capacity:
            self._values[self._at] = time.monotonic() if at is None else at
            self._at += 1
            # after the value: whoever sees the count sees the stamps
            self._count[0] = self._at


class StampReader:
    """Reads what a :class:`StampWriter` has written so far."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        view = memoryview(self._map)
        self._count = view[:_HEAD].cast("Q")
        self._values = view[_HEAD:].cast("d")

    def __len__(self) -> int:
        return self._count[0]

    def since(self, index: int) -> array[float]:
        """Stamps from that index on."""
        return array("d", self._values[index : self._count[0]])

    def between(self, begin: float, end: float) -> array[float]:
        """Stamps of ``begin`` to ``end`` (monotonic seconds), found by bisection."""
        return array("d", self._values[self._first(begin) : self._first(end)])

    def _first(self, at: float) -> int:
        low, high = 0, self._count[0]
        while low < high:
            middle = (low + high) // 2
            if self._values[middle] < at:
                low = middle + 1
            else:
                high = middle
        return low
