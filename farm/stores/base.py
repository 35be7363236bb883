"""What every store of contents can do, whether it is a folder or an object store.

A store keeps bytes under the SHA-256 of those bytes: names are never given, only computed. What has once
been put under a hash never changes and is never written over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from farm.errors import InvalidInput

CHUNK = 1 << 20
"""Bytes that are read or handed on at a time."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


def checked_sha256(text: str) -> str:
    """``text`` itself when it is a SHA-256 in lower-case hex, else :class:`InvalidInput`.

    Every name that reaches a store passes here, so that no path can be made out of one.
    """
    if not _SHA256.fullmatch(text):
        raise InvalidInput(f"{text[:80]!r} is not a SHA-256: give 64 lower-case hexadecimal digits")
    return text


class Upload(Protocol):
    """Bytes on their way into a store; nothing is visible under a hash before :meth:`commit`.

    As a context manager it aborts on leaving unless it was committed.
    """

    size: int

    def write(self, chunk: bytes) -> None:
        """Append bytes. Raises :class:`farm.errors.OutOfSpace`; the upload is then gone."""

    def commit(self, sha256: str | None = None) -> tuple[str, int]:
        """Make the bytes durable and visible; gives their hash and size.

        Raises :class:`farm.errors.HashMismatch` where they are not those that ``sha256`` names.
        """

    def abort(self) -> None:
        """Drop what was written. Harmless after :meth:`commit` and when repeated."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Store(Protocol):
    """Contents by SHA-256. All methods may be called from several threads and processes at once."""

    def begin(self) -> Upload:
        """Start an upload that is fed piece by piece."""

    def put_stream(
        self, chunks: Iterable[bytes], sha256: str | None = None, max_bytes: int | None = None
    ) -> tuple[str, int]:
        """Store a stream of any length; gives hash and size.

        Raises :class:`farm.errors.HashMismatch`, :class:`farm.errors.TooLarge` (more than ``max_bytes``) or
        :class:`farm.errors.OutOfSpace`; nothing stays behind then.
        """

    def put_file(self, path: Path, sha256: str | None = None) -> tuple[str, int]:
        """Move a finished file into the store, without a second copy where the file system allows it.

        ``path`` is gone afterwards, also when the store had the bytes already. Raises as
        :meth:`put_stream` does; ``path`` is then still there.
        """

    def open(self, sha256: str, start: int = 0, end: int | None = None) -> BinaryIO:
        """A reader of the bytes from ``start`` up to, not including, ``end``.

        Raises :class:`farm.errors.NotFound`.
        """

    def stream(
        self, sha256: str, start: int = 0, end: int | None = None, chunk: int = CHUNK
    ) -> Iterator[bytes]:
        """The same bytes in pieces of at most ``chunk``. Raises :class:`farm.errors.NotFound` at once."""

    def path(self, sha256: str) -> Path | None:
        """The local file that holds these bytes, to be read only; ``None`` where there is none."""

    def exists(self, sha256: str) -> bool:
        """Whether the store has these bytes."""

    def size(self, sha256: str) -> int:
        """How many bytes. Raises :class:`farm.errors.NotFound`."""

    def delete(self, sha256: str, untouched_s: float = 0.0) -> bool:
        """Remove contents that nobody has put again within ``untouched_s`` seconds; whether it did.

        Never loses a put that happens at the same moment: either the put stores the bytes anew, or the
        deletion sees it and does not happen.
        """

    def untouched(self, sha256: str, seconds: float) -> bool:
        """Whether the bytes are there and nobody has put them for that long."""

    def iter_hashes(self) -> Iterator[str]:
        """Every hash in the store, in no order that counts."""

    def sweep(self, untouched_s: float) -> int:
        """Remove what broken uploads left behind that long ago; gives how many files."""

    def check_space(self, nbytes: int) -> None:
        """Raise :class:`farm.errors.OutOfSpace` where ``nbytes`` more would pass the floor of free space."""
