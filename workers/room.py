"""Waiting for room: an attempt stands still, held by the farm, until its node's budget can take its bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import sqlalchemy as sa

from farm import ledger
from farm.lifecycle.checkpoint import Owner
from jobs.engine import Log, Medium
from workers.control import SlotControl
from workers.phases import PhaseClock

T = TypeVar("T")
_POLL_S = 0.25
_LOOK_S = 0.02


class _Write(Protocol):
    def __call__(self, action: Callable[[sa.Connection], T]) -> T: ...


class Room:
    """One attempt's way to buffers. ``check`` raises where the attempt is to end while it waits."""

    def __init__(
        self,
        owner: Owner,
        control: SlotControl,
        clock: PhaseClock,
        check: Callable[[], None],
        log: Log,
        write: _Write,
    ) -> None:
        self._owner = owner
        self._control = control
        self._clock = clock
        self._check = check
        self._log = log
        self._write = write

    def reserve(self, nbytes: int, medium: Medium, purpose: str) -> str:
        """Hold ``nbytes`` in the ledger once there is room; the buffer's id."""
        owner = self._owner
        return self.wait(
            nbytes,
            medium,
            lambda conn: ledger.reserve(
                conn,
                owner.node_id,
                owner.slot_id,
                medium,
                nbytes,
                purpose,
                task_id=owner.task_id,
                attempt_id=owner.attempt_id,
                epoch=owner.epoch,
            ),
        )

    def wait(self, nbytes: int, medium: Medium, take: Callable[[sa.Connection], T | None]) -> T:
        """What ``take`` gives once it is not ``None``: until then the node's budget is full."""
        waiting = False
        while True:
            taken = self._write(take)
            if taken is not None:
                return taken
            if not waiting:
                waiting = True
                self._say_waiting(nbytes, medium)
            self.stand(_POLL_S)

    def stand(self, seconds: float) -> None:
        """Wait as something that the farm holds: the limits stand still meanwhile."""
        with self._clock.phase("held"):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                self._check()
                time.sleep(_LOOK_S)
        self._control.held(self._clock.held_s())

    def _say_waiting(self, nbytes: int, medium: str) -> None:
        owner = self._owner
        text = f"waiting for {nbytes:,} bytes of {medium}: the node's budget is full"
        self._log.write(text)
        self._control.note(text)
        self._write(
            lambda conn: ledger.waiting(conn, owner.node_id, owner.slot_id, medium, nbytes, owner.task_id)
        )
