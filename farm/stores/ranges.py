"""A reader of a part of a file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class LimitedReader(io.RawIOBase):
    """Reads ``[start, end)`` of a seekable file as if it were a file of its own."""

    def __init__(self, file: BinaryIO, start: int, end: int | None) -> None:
        if start < 0 or (end is not None and end < start):
            file.close()
            raise ValueError(f"bytes {start} to {end} are no range")
        self._file = file
        file.seek(start)
        self._left = None if end is None else end - start

    @classmethod
    def over(cls, file: BinaryIO, start: int, end: int | None) -> BinaryIO:
        """A buffered reader of that part; closing it closes ``file``."""
        return cast("BinaryIO", io.BufferedReader(cls(file, start, end)))

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer`` with what comes next; 0 at the end."""
        view = memoryview(buffer).cast("B")
        wanted = len(view) if self._left is None else min(len(view), self._left)
        data = self._file.read(wanted)
        view[: len(data)] = data
        if self._left is not None:
            self._left -= len(data)
        return len(data)

    def close(self) -> None:
        """Close this reader and the file under it."""
        self._file.close()
        super().close()
