"""The gate before a slot's write transactions: the agent freezes a slot only when nobody is behind it.

A process that is frozen within a transaction keeps its locks: on SQLite nobody else could write until it is
let go, on PostgreSQL nobody who needs the same rows. So a slot says in its control file that it is about to
write, and only then looks whether it is to keep still; the agent says first that it is to, and then waits
until nobody writes. Whichever comes second sees the other (:mod:`workers.stillstand`).
"""

from __future__ import annotations

import threading
import time
from typing import Final

from workers.control import SlotControl

_LOOK_S: Final = 0.002


class WriteGate:
    """A slot's gate; used by all its threads, and passed by each transaction on its own."""

    def __init__(self, control: SlotControl) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._writing = 0

    def enter(self) -> None:
        """Say that we write; waits while the slot is to keep still."""
        while True:
            self._count(1)
            if not self._control.keeps_still():
                return
            self._count(-1)
            time.sleep(_LOOK_S)

    def leave(self) -> None:
        """Say that this transaction is over, or did not begin."""
        self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            self._writing += more
            self._control.writing(self._writing)
