"""The loop: windows of every neighbour, the rule for each, one combined hold, and the record of why.

The loop is one thread and decides nothing by itself: :func:`gpu_pinning.guard.decide.decide` does. Whoever
runs it gives it an :class:`Actuator`, which holds the farm back, and a :class:`FarmLoad` to ask.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpu_pinning.guard.decide import GuardState, Policy, Rung, Verdict, decide
from gpu_pinning.guard.watch import Point, Watch
from gpu_pinning.guard.windows import Window

WINDOW_S = 0.25
SHORT_WINDOW_S = 0.05
"""While farm work moves on a neighbour's own GPU: it is to stand within half a second of a breach."""
AROUND_BEFORE_S = 10.0
AROUND_AFTER_S = 2.0
QUIET_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class FarmLoad:
    """What the farm does on this node: whether anything runs, and the GPUs (UUIDs, PCI addresses) of it."""

    busy: bool = False
    gpus: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Hold:
    """How far the farm is held back now. ``frozen`` are the neighbours whose own GPU must be left at once."""

    rung: Rung = Rung.FREE
    frozen: frozenset[str] = frozenset()
    reason: str = ""


class Actuator(Protocol):
    """The guard's hands. Called from the loop's thread when the hold changes; must not block for long."""

    def hold(self, hold: Hold) -> None:
        """Hold the farm back so far from now on; ``Hold()`` lets all go."""


@dataclass(frozen=True, slots=True)
class GuardEvent:
    """One decision. ``kind`` is climb, let_go, not_us or telemetry_lost; ``at`` in monotonic seconds."""

    kind: str
    neighbour: str
    rung: Rung
    frozen: bool
    reason: str
    share: float
    at: float
    curve: tuple[Point, ...] = ()
    """The ITL around it: ten seconds before, two after."""


@dataclass(slots=True)
class _Guarded:
    watch: Watch
    state: GuardState = field(default_factory=GuardState)
    verdict: Verdict | None = None
    window: Window | None = None


class GuardLoop:
    """Watches all neighbours of one node. ``record`` gets each event two seconds after it happened."""

    def __init__(
        self,
        watches: Sequence[Watch],
        actuator: Actuator,
        farm: Callable[[], FarmLoad],
        record: Callable[[GuardEvent], None],
        *,
        policy: Policy | None = None,
        shares: Callable[[Watch, FarmLoad], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpus: Iterable[int] = (),
    ) -> None:
        """``cpus``: where the loop and the threads that it starts may run; none named: anywhere."""
        self._cpus = frozenset(cpus)
        self._guarded = [_Guarded(watch) for watch in watches]
        self._actuator = actuator
        self._farm = farm
        self._record = record
        self._policy = policy or Policy()
        self._shares = shares or shares_gpu
        self._clock = clock
        self._busy_at = clock()
        self._pending: list[tuple[GuardEvent, _Guarded]] = []
        self.hold = Hold()
        self.cpu_s = 0.0
        """Processor time of the loop's own thread so far."""

    def run(self, stop: threading.Event) -> None:
        """Turn every :meth:`pace_s` until told to stop, then let everything go."""
        if self._cpus:
            # threads that are started from this one, of probes and pages, inherit it
            with suppress(OSError):
                os.sched_setaffinity(0, self._cpus)
        for guarded in self._guarded:
            guarded.watch.start()
        try:
            begin = self._clock()
            # in short naps: work may begin on a neighbour's GPU in the middle of a long window
            nap_s = SHORT_WINDOW_S if any(one.watch.subject.gpus for one in self._guarded) else WINDOW_S
            while not stop.is_set():
                left = begin + self.pace_s() - self._clock()
                if left > 0:
                    stop.wait(min(left, nap_s))
                    continue
                end = self._clock()
                self.turn(begin, end)
                self.cpu_s = time.thread_time()
                begin = end
        finally:
            self._let_all_go()
            for guarded in self._guarded:
                guarded.watch.stop()

    def pace_s(self) -> float:
        """How long the next window is to be: short while unfrozen farm work shares a neighbour's GPU."""
        load = self._farm()
        for guarded in self._guarded:
            watch, name = guarded.watch, guarded.watch.subject.name
            if watch.subject.judged and name not in self.hold.frozen and self._shares(watch, load):
                return SHORT_WINDOW_S
        return WINDOW_S

    def turn(self, begin: float, end: float) -> Hold:
        """One window of every neighbour; returns the hold that stands after it."""
        load = self._farm()
        held = any(guarded.state.rung > Rung.FREE for guarded in self._guarded)
        if load.busy or held:
            self._busy_at = end
        # what ran a moment ago still echoes in the neighbour's steps
        quiet = end - self._busy_at >= QUIET_AFTER_S
        for guarded in self._guarded:
            watch = guarded.watch
            guarded.window = window = watch.window(
                begin, end, quiet=quiet, needed=load.busy or guarded.state.rung > Rung.FREE
            )
            if not watch.subject.judged:
                continue
            shared = self._shares(watch, load)
            guarded.state, verdict = decide(guarded.state, window, self._policy, shares_gpu=shared)
            guarded.verdict = verdict
            if verdict.event is not None:
                event = GuardEvent(
                    verdict.event,
                    watch.subject.name,
                    verdict.rung,
                    verdict.freeze_shared,
                    verdict.reason,
                    verdict.share,
                    end,
                )
                self._pending.append((event, guarded))
        self._combine(end)
        self._hand_out(end)
        return self.hold

    def describe(self) -> list[dict[str, Any]]:
        """Every neighbour with what the guard makes of it, for people. Any thread may ask."""
        now = self._clock()
        found = []
        for guarded in self._guarded:
            verdict = guarded.verdict
            found.append(
                guarded.watch.describe(now)
                | {
                    "rung": guarded.state.rung.name.lower(),
                    "frozen": bool(verdict and verdict.freeze_shared),
                    "share_over": round(verdict.share, 4) if verdict else 0.0,
                    "reason": verdict.reason if verdict else "not watched: no decode stream",
                    "curve": shown_curve(list(guarded.watch.curve)[-240:], now),
                }
            )
        return found

    def _combine(self, now: float) -> None:
        rung, frozen, reasons = Rung.FREE, set(), []
        for guarded in self._guarded:
            verdict, name = guarded.verdict, guarded.watch.subject.name
            if verdict is not None and (verdict.rung > Rung.FREE or verdict.freeze_shared):
                reasons.append((verdict.rung, f"{name}: {verdict.reason}"))
                rung = max(rung, verdict.rung)
                if verdict.freeze_shared:
                    frozen.add(name)
            elif guarded.watch.learning(now):
                reasons.append((Rung.NO_NEW_WORK, f"{name}: learning what is normal before work starts"))
                rung = max(rung, Rung.NO_NEW_WORK)
        reason = max(reasons, default=(Rung.FREE, ""))[1]
        if (rung, frozenset(frozen)) == (self.hold.rung, self.hold.frozen):
            # the same hold: its words stay those of the moment that it was made
            return
        self.hold = Hold(rung, frozenset(frozen), reason and f"guard: {reason}")
        self._actuator.hold(self.hold)

    def _hand_out(self, now: float, everything: bool = False) -> None:
        later = []
        for event, guarded in self._pending:
            if now - event.at < AROUND_AFTER_S and not everything:
                later.append((event, guarded))
                continue
            begin, end = event.at - AROUND_BEFORE_S, event.at + AROUND_AFTER_S
            around = tuple(point for point in list(guarded.watch.curve) if begin <= point.at <= end)
            self._record(
                GuardEvent(
                    event.kind, event.neighbour, event.rung, event.frozen, event.reason, event.share,
                    event.at, around,
                )
            )  # fmt: skip
        self._pending = later

    def _let_all_go(self) -> None:
        self._hand_out(self._clock(), everything=True)
        if self.hold != Hold():
            self.hold = Hold()
            self._actuator.hold(self.hold)


def shares_gpu(watch: Watch, load: FarmLoad) -> bool:
    """Whether farm work runs on one of the neighbour's own GPUs."""
    return any(same_gpu(own, used) for own in watch.subject.gpus for used in load.gpus)


def same_gpu(named: str, known: str) -> bool:
    """Whether a GPU as an operator names it (UUID, its beginning, or PCI address) is this UUID or address."""
    named, known = named.lower(), known.lower()
    if ":" in named:
        return known.endswith(named) or named.endswith(known) if ":" in known else False
    return known.startswith(named)


def shown_curve(points: Sequence[Point], now: float) -> list[list[float | None]]:
    """A curve for JSON: ``[seconds before now, p50 ms, p99 ms, budget ms]`` for each window."""
    return [
        [
            round(point.at - now, 2),
            *(
                None if value is None else round(value * 1000, 3)
                for value in (point.p50, point.p99, point.budget)
            ),
        ]
        for point in points
    ]
