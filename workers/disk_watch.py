"""The agent's watch over its disks: idle slots are held while one is full, and let go when there is room.

A thread looks, because a look at a shared disk that has gone away may hang; :meth:`DiskWatch.turn` acts on
the agent's main thread, once for each new view of the database.
"""

from __future__ import annotations

import threading
import time

import structlog

from workers.disks import FULL_PREFIX, Disks
from workers.link import DatabaseLink, View

log = structlog.get_logger(__name__)
_TELL_EVERY_S = 10.0
"""How often the words of a standing hold are brought up to date."""


class DiskWatch:
    """See the module. ``every_s``: seconds between looks."""

    def __init__(self, disks: Disks, link: DatabaseLink, every_s: float) -> None:
        self._disks = disks
        self._link = link
        self._every_s = every_s
        self._seen: tuple[str | None, bool] | None = None
        """Why there is no room, and whether room to spare was asked for."""
        self._held = False
        self._acted_on: View | None = None
        self._told_at = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disks", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; one that hangs in a dead share is left behind."""
        self._end.set()

    def turn(self) -> None:
        """Hold what is idle, or let go what is held."""
        view, seen = self._link.view, self._seen
        if view is self._acted_on or seen is None:
            return
        self._acted_on = view
        full, asked_to_spare = seen
        # also by a slot that saw it full between two of our looks
        self._held = any(reason.startswith(FULL_PREFIX) for reason in view.hold_reasons.values())
        now = time.monotonic()
        fresh = now - self._told_at >= _TELL_EVERY_S
        for slot_id, state in view.slot_states.items():
            reason = view.hold_reasons.get(slot_id, "")
            ours = reason.startswith(FULL_PREFIX)
            if full is None:
                if ours and asked_to_spare:
                    log.info("there is room again", slot=slot_id)
                    self._link.let_go(slot_id, FULL_PREFIX)
            elif state == "idle":
                log.warning("a slot is held", slot=slot_id, reason=full)
                self._link.hold_idle(slot_id, FULL_PREFIX + full)
            elif ours and fresh and reason != FULL_PREFIX + full:
                self._link.reword_hold(slot_id, FULL_PREFIX, FULL_PREFIX + full)
        if fresh:
            self._told_at = now

    def look(self) -> None:
        """Look once; the thread does so."""
        spare = self._held or bool(self._seen and self._seen[0])
        self._seen = (self._disks.refuses() if spare else self._disks.short(), spare)

    def _run(self) -> None:
        while not self._end.is_set():
            self.look()
            self._end.wait(self._every_s)
