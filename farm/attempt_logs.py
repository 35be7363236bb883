"""Where attempt logs lie, and how ranges of them are read. Bytes stay as the programs wrote them.

Slots write these files (``workers/logs.py``); the API reads them. A log may hold anything, NUL and broken
UTF-8 among it: whoever shows it decodes with ``errors="replace"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from farm.errors import InvalidInput, NotFound
from farm.ids import is_id

MAX_RANGE = 4 * 2**20
"""Most bytes that one read returns."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Bytes ``start`` to ``start + len(data)`` of a log that is ``size`` bytes long just now."""

    data: bytes
    start: int
    size: int

    @property
    def end(self) -> int:
        """Where to read on."""
        return self.start + len(self.data)

    def text(self) -> str:
        """The bytes for people: broken UTF-8 becomes U+FFFD, NUL becomes a visible mark."""
        return self.data.decode("utf-8", "replace").replace("\x00", "\u2400")


def log_path(folder: Path, attempt_id: str) -> Path:
    """File of an attempt's log below ``Settings.logs``, in one of 256 folders.

    Raises :class:`InvalidInput` for anything but an attempt's id, so that no path can be made of one.
    """
    if not is_id(attempt_id, "att"):
        raise InvalidInput(f"{attempt_id[:60]!r} is not an attempt's id")
    # the end of the id is random, its beginning is the time
    return folder / attempt_id[-2:] / f"{attempt_id}.log"


def read_range(folder: Path, attempt_id: str, start: int = 0, length: int = MAX_RANGE) -> LogRange:
    """At most ``length`` (and :data:`MAX_RANGE`) bytes from ``start``; a negative start counts from the end.

    A start beyond the end gives no bytes. Raises :class:`NotFound` while the attempt has written no log.
    """
    path = log_path(folder, attempt_id)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size + start) if start < 0 else min(start, size)
            file.seek(start)
            return LogRange(file.read(max(0, min(length, MAX_RANGE))), start, size)
    except FileNotFoundError:
        raise NotFound(f"attempt {attempt_id} has written no log") from None
