"""Freezing slots outside their transactions: the agent's side of :mod:`workers.write_gate`.

A transaction of a slot lasts milliseconds, so the wait is short. Where one does not end in time (a disk that
hangs) the slot is frozen all the same, for its neighbour's sake, and let go for a moment each second until it
has come out: what it locks is locked for about a second, not for as long as the neighbour suffers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from workers.managed_slot import ManagedSlot

log = structlog.get_logger(__name__)
PATIENCE_S: Final = 0.15
"""How long a transaction may hold a freeze up: a breach is to be answered within half a second in all."""
AGAIN_S: Final = 1.0
_LOOK_S: Final = 0.001


def freeze(slots: Sequence[ManagedSlot]) -> None:
    """Freeze these slots' processes, all within one :data:`PATIENCE_S`, outside transactions if possible."""
    for slot in slots:
        slot.keep_still(True)
    _wait(slots)
    for slot in slots:
        if slot.process is not None:
            slot.process.freeze()
        if slot.writes():
            log.warning("a slot is frozen within a transaction", slot=slot.name)


def bring_out(slots: Sequence[ManagedSlot]) -> None:
    """Let frozen slots that are within a transaction go until that is over, and freeze them again."""
    within = [slot for slot in slots if slot.process is not None and slot.process.frozen and slot.writes()]
    for slot in within:
        assert slot.process is not None
        slot.process.thaw()
        # said again at once: what is begun in between is over soon, too
        slot.keep_still(True)
    if within:
        freeze(within)


def _wait(slots: Sequence[ManagedSlot]) -> None:
    until = time.monotonic() + PATIENCE_S
    while any(slot.writes() for slot in slots) and time.monotonic() < until:
        time.sleep(_LOOK_S)
