"""How much each project has used of each pool, as fair share needs it.

Use is slot-seconds: those that passed while a slot was busy for the project, and those that its running
tickets are still expected to take. Counting the expected part when a ticket is given out, not when it ends,
keeps shares exact with one slot or many and with tasks of any length (stride scheduling, Waldspurger 1995;
a newcomer starts at the pool's virtual time, as in start-time fair queueing, Goyal 1996): a project that had
nothing to do gains no credit.

The meter lives in the leading scheduler's memory. After a change of leader everybody starts level, with the
running tickets counted: shares drift for one round and no more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Key = tuple[str, str]
"""Pool and project id."""


@dataclass(frozen=True, slots=True)
class BusySlot:
    """A slot that works: for whom, since when (database's clock), and how long it was expected to take."""

    slot_id: str
    pool: str
    project_id: str
    since: float
    expected_s: float

    @property
    def key(self) -> Key:
        """Pool and project."""
        return (self.pool, self.project_id)


class ShareMeter:
    """Measured use by pool and project; fed at every tick."""

    def __init__(self) -> None:
        self._spent: dict[Key, float] = {}
        self._virtual: dict[str, float] = {}
        self._active: set[Key] = set()
        self._holding: dict[str, BusySlot] = {}
        self._last: float | None = None
        self.passed: dict[str, int] = {}
        """Steps that warm ones went before, and how often since their last slot."""

    @property
    def active(self) -> frozenset[Key]:
        """Those that had work or waited for some when last measured."""
        return frozenset(self._active)

    @property
    def holding(self) -> bool:
        """Whether a slot was busy when last measured, or was given a ticket since."""
        return bool(self._holding)

    def measure(
        self, now: float, busy: Iterable[BusySlot], waiting: Iterable[Key], shares: Mapping[str, float]
    ) -> dict[Key, float]:
        """Use by (pool, project) as of ``now``, for those that work or have ready tasks (``waiting``).

        A slot that was busy when last measured, or was given a ticket since, is charged until now also when
        it has become idle: its end woke the scheduler, so now is when it ended, near enough.
        """
        current = {slot.slot_id: slot for slot in busy}
        last = self._last if self._last is not None else now
        for slot in {**self._holding, **current}.values():
            spent = max(0.0, now - max(last, slot.since))
            self._spent[slot.key] = self._spent.get(slot.key, 0.0) + spent
        self._holding = current
        self._last = max(now, last)
        active = {slot.key for slot in current.values()} | set(waiting)
        for key in active - self._active:
            level = self._virtual.get(key[0], 0.0) * shares.get(key[1], 1.0)
            self._spent[key] = max(self._spent.get(key, 0.0), level)
        self._active = active
        use = {key: self._spent.get(key, 0.0) for key in active}
        for slot in current.values():
            use[slot.key] += max(0.0, slot.since + slot.expected_s - now)
        return use

    def gave(self, slot: BusySlot, need: float) -> None:
        """A ticket went out; ``need`` was its project's use per share before it."""
        self._holding[slot.slot_id] = slot
        if math.isfinite(need):
            self._virtual[slot.pool] = max(self._virtual.get(slot.pool, 0.0), need)

    def count_passed(self, served: str, passed: Iterable[str]) -> None:
        """A step got a slot before others that were in front of it."""
        self.passed.pop(served, None)
        for step_id in passed:
            self.passed[step_id] = self.passed.get(step_id, 0) + 1

    def forget_steps(self, ready: Iterable[str]) -> None:
        """Only steps that are ready can be passed; the others are forgotten."""
        keep = set(ready)
        self.passed = {step: number for step, number in self.passed.items() if step in keep}
