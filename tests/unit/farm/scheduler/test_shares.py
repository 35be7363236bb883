"""Fair share over time: simulated farms whose slots end at known moments."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

import pytest

from farm.scheduler.picking import (
    IdleSlot,
    PickRules,
    ProjectLimits,
    ReadyStep,
    Situation,
    choose,
    expected_seconds,
)
from farm.scheduler.shares import BusySlot, ShareMeter

RULES = PickRules()


class SimulatedFarm:
    """Slots of one pool and projects with endless work; time jumps from end to end."""

    def __init__(
        self, slots: int, shares: dict[str, float], task_s: dict[str, float], measured: bool
    ) -> None:
        self.slots = [f"s{i}" for i in range(slots)]
        self.shares = shares
        self.task_s = task_s
        self.measured = measured
        self.meter = ShareMeter()
        self.now = 0.0
        self.busy: dict[str, BusySlot] = {}
        self.ends: list[tuple[float, str]] = []
        self.seconds: Counter[str] = Counter()

    def run(self, until: float, active: Callable[[float], set[str]]) -> None:
        while self.now < until:
            self.give_out(active(self.now))
            if not self.ends:
                break
            self.now, slot = heapq.heappop(self.ends)
            self._end(slot)
            while self.ends and self.ends[0][0] == self.now:
                self._end(heapq.heappop(self.ends)[1])

    def _end(self, slot: str) -> None:
        done = self.busy.pop(slot)
        self.seconds[done.project_id] += self.now - done.since

    def give_out(self, projects: set[str]) -> None:
        means = {p: self.task_s[p] if self.measured else None for p in projects}
        steps = [
            ReadyStep(p, p, p, "render", 50, 0.0, 0, 1000, mean_task_s=means[p]) for p in sorted(projects)
        ]
        use = self.meter.measure(self.now, self.busy.values(), {("render", p) for p in projects}, self.shares)
        idle = [IdleSlot(s, ("render",)) for s in self.slots if s not in self.busy]
        limits = {p: ProjectLimits(share) for p, share in self.shares.items()}
        for pick in choose(Situation(self.now, idle, steps, limits, use=use)):
            project = pick.step.project_id
            number = pick.max_tasks if self.measured else 1
            expected = expected_seconds(pick.step.mean_task_s, number, RULES)
            slot = BusySlot(pick.slot_id, "render", project, self.now, expected)
            self.busy[pick.slot_id] = slot
            self.meter.gave(slot, pick.need)
            heapq.heappush(self.ends, (self.now + self.task_s[project] * number, pick.slot_id))


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("slots", [1, 2, 3, 4, 16])
@pytest.mark.parametrize(
    "task_s", [{"a": 1.0, "b": 1.0}, {"a": 30.0, "b": 2.0}, {"a": 2.0, "b": 30.0}, {"a": 0.1, "b": 5.0}]
)
def test_shares_of_one_to_three_give_25_and_75_percent(
    slots: int, task_s: dict[str, float], measured: bool
) -> None:
    farm = SimulatedFarm(slots, {"a": 1, "b": 3}, task_s, measured)
    farm.run(max(400, 60 * max(task_s.values())), lambda now: {"a", "b"})
    share = farm.seconds["a"] / farm.seconds.total()
    assert share == pytest.approx(0.25, abs=0.04)


def test_three_projects() -> None:
    farm = SimulatedFarm(5, {"a": 1, "b": 2, "c": 2}, {"a": 3.0, "b": 7.0, "c": 0.5}, True)
    farm.run(700, lambda now: {"a", "b", "c"})
    total = farm.seconds.total()
    assert {p: s / total for p, s in farm.seconds.items()} == pytest.approx(
        {"a": 0.2, "b": 0.4, "c": 0.4}, abs=0.03
    )


def test_project_that_was_away_gains_no_credit() -> None:
    farm = SimulatedFarm(4, {"a": 1, "b": 1}, {"a": 1.0, "b": 1.0}, True)
    farm.run(1000, lambda now: {"a"})
    assert farm.seconds["b"] == 0
    before = farm.seconds["a"]
    farm.run(1100, lambda now: {"a", "b"})
    assert farm.seconds["b"] == pytest.approx(200, abs=15)
    assert farm.seconds["a"] - before == pytest.approx(200, abs=15)


def test_newcomer_shares_from_its_first_minute_though_others_run_long_tasks() -> None:
    farm = SimulatedFarm(4, {"a": 1, "b": 1}, {"a": 100.0, "b": 100.0}, True)
    farm.run(1000, lambda now: {"a"})
    farm.run(2000, lambda now: {"a", "b"})
    assert farm.seconds["b"] == pytest.approx(2000, abs=250)


def test_one_project_alone_gets_everything() -> None:
    farm = SimulatedFarm(2, {"a": 0.001, "b": 100}, {"a": 1.0, "b": 1.0}, True)
    farm.run(100, lambda now: {"a"})
    assert farm.seconds["a"] >= 199


def test_idle_time_is_charged_to_nobody() -> None:
    meter = ShareMeter()
    key = ("render", "a")
    meter.measure(0.0, [], {key}, {})
    meter.gave(BusySlot("s", "render", "a", 0.0, 1.0), 0.0)
    assert meter.measure(1.0, [], set(), {}) == {}
    assert not meter.holding
    assert meter.measure(1000.0, [], {key}, {}) == {key: 1.0}


def test_steps_are_forgotten_with_what_they_were_passed_by() -> None:
    meter = ShareMeter()
    meter.count_passed("b", ["a", "c"])
    meter.count_passed("b", ["a"])
    assert meter.passed == {"a": 2, "c": 1}
    meter.count_passed("a", [])
    meter.forget_steps(["a", "b"])
    assert meter.passed == {}
