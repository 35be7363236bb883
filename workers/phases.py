"""Where an attempt's wall time goes: fetch, load, work, write, and held by the farm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from farm.records import TimeSplit


class PhaseClock:
    """Adds up time per phase; an inner phase pauses the outer one. Starts in ``work``. One thread.

    ``frozen_s`` says how long somebody else has frozen us so far: it counts as held, whatever the phase.
    """

    def __init__(self, frozen_s: Callable[[], float] = lambda: 0.0) -> None:
        self._frozen_s = frozen_s
        self._stood = frozen_s()
        self._sums = dict.fromkeys(("fetch", "load", "work", "write", "held"), 0.0)
        self._stack = ["work"]
        self._since = time.monotonic()
        self.started_at = self._since

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time inside counts as ``name``. Raises :class:`ValueError` for a phase that is not one."""
        if name not in self._sums:
            raise ValueError(f"phase {name!r} is not one of {', '.join(self._sums)}")
        self._book()
        self._stack.append(name)
        try:
            yield
        finally:
            self._book()
            self._stack.pop()

    def held_s(self) -> float:
        """Seconds held so far, up to now."""
        self._book()
        return self._sums["held"]

    def split(self, queue_s: float) -> TimeSplit:
        """The figures so far; their sum, queue aside, is the attempt's wall time."""
        self._book()
        sums = self._sums
        return TimeSplit(queue_s, sums["fetch"], sums["load"], sums["work"], sums["write"], sums["held"])

    def _book(self) -> None:
        now, stood = time.monotonic(), self._frozen_s()
        spent = now - self._since
        held = min(spent, max(0.0, stood - self._stood))
        self._sums[self._stack[-1]] += spent - held
        self._sums["held"] += held
        self._since, self._stood = now, stood
