"""The guard in a run: it watches the bench's decode load and holds the farm arm back as the agent would.

So that what is measured is the farm as it runs, and what the guard costs is in it. Held time is counted: a
farm that stands still disturbs nobody, and has to show in the throughput.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from gpu_pinning.guard.decide import Policy, Rung
from gpu_pinning.guard.loop import FarmLoad, GuardEvent, GuardLoop, Hold
from gpu_pinning.guard.probe import Gap
from gpu_pinning.guard.watch import Probe, Subject, Watch
from gpu_pinning.stillness.crew import FarmWorker
from gpu_pinning.stillness.sources import Source

_SLICE_S = 0.05
"""On the rung ``slow host`` workers on cores alone run every other slice of this length."""


class Guarded:
    """The farm arm's keeper. :meth:`close` ends its threads.

    ``cpus``: the farm's, where the guard's thread runs. While ``away`` is set, decode counts as stopped:
    it stands still by our own hand, or the farm runs without isolation, and neither is to be learnt from.
    """

    def __init__(self, source: Source, cpus: Iterable[int], policy: Policy | None = None) -> None:
        self._workers: list[FarmWorker] = []
        self._source = source
        self.away = False
        self.events: list[GuardEvent] = []
        self.held_s: dict[str, float] = {}
        """Seconds that the working arm was held, by rung; ``free`` too."""
        self._lock = threading.Lock()
        self._on = False
        self._rung = Rung.FREE
        self._since = time.monotonic()
        self._slice_on = True
        self._stop = threading.Event()
        watch = Watch(
            Subject("decode", url="bench:"),
            None,
            probe=lambda: _Silenced(source.probe(), self),
            alive=lambda: not self.away,
        )
        self._watch = watch
        self._loop = GuardLoop([watch], self, self._load, self.events.append, policy=policy, cpus=cpus)
        self._began = time.monotonic()
        self._threads = [
            threading.Thread(target=self._loop.run, args=(self._stop,), daemon=True),
            threading.Thread(target=self._slices, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _load(self) -> FarmLoad:
        return FarmLoad(busy=self._on)

    # --- the arm -------------------------------------------------------------------------------------

    def working(self, on: bool, crew: Sequence[FarmWorker]) -> None:
        """An arm begins to work, or ends; see :class:`gpu_pinning.stillness.arms.Keeper`."""
        with self._lock:
            self._count()
            self._on, self._workers = on, list(crew)
            self._apply()

    def hold(self, hold: Hold) -> None:
        """See :class:`gpu_pinning.guard.loop.Actuator`."""
        with self._lock:
            self._count()
            self._rung = hold.rung
            self._apply()

    def _count(self) -> None:
        now = time.monotonic()
        if self._on:
            name = self._rung.name.lower()
            self.held_s[name] = self.held_s.get(name, 0.0) + now - self._since
        self._since = now

    def _apply(self) -> None:
        slow = self._rung is Rung.SLOW_HOST and not self._slice_on
        for worker in self._workers:
            host_work = worker.work.slot is None or not worker.work.slot.gpus
            worker.run(self._on and self._rung < Rung.PAUSE and not (slow and host_work))

    def _slices(self) -> None:
        while not self._stop.wait(_SLICE_S):
            if self._rung is Rung.SLOW_HOST or not self._slice_on:
                with self._lock:
                    self._slice_on = not self._slice_on or self._rung is not Rung.SLOW_HOST
                    self._apply()

    # --- for the report ------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Budget, holds and cost, for the report."""
        with self._lock:
            self._count()
            held = {name: round(seconds, 2) for name, seconds in self.held_s.items()}
        budget = self._watch.budgets.at(None)
        working = sum(held.values())
        return {
            "budget_ms": round(budget.seconds * 1000, 4) if budget else None,
            "learnt_from_steps": budget.steps if budget else 0,
            "worked_s": round(working, 2),
            "held_s": {name: seconds for name, seconds in held.items() if name != "free"},
            "held_share": round(1 - held.get("free", 0.0) / working, 5) if working else 0.0,
            "events": [
                {"kind": event.kind, "rung": event.rung.name.lower(), "reason": event.reason}
                for event in self.events[-200:]
            ],
            "cpu_share": round(self._loop.cpu_s / max(1e-9, time.monotonic() - self._began), 5),
        }

    def close(self) -> None:
        """End its threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(5)


class _Silenced:
    """A probe that hears nothing while decode is away."""

    def __init__(self, probe: Probe, guard: Guarded) -> None:
        self._probe, self._guard = probe, guard

    @property
    def error(self) -> str | None:
        return self._probe.error

    @property
    def refused(self) -> bool:
        return self._probe.refused

    @property
    def token_at(self) -> float | None:
        return None if self._guard.away else self._probe.token_at

    @property
    def started_at(self) -> float:
        return self._probe.started_at

    def start(self) -> None:
        self._probe.start()

    def stop(self) -> None:
        self._probe.stop()

    def take(self) -> list[Gap]:
        gaps = self._probe.take()
        return [] if self._guard.away else gaps
