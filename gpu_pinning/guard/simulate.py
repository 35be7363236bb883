"""A simulated neighbour to try the guard's rule on: no clock, no process, only arithmetic and a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpu_pinning.guard.decide import GuardState, Policy, Rung, Verdict, decide
from gpu_pinning.guard.windows import Condition, Window

FARM_ACTIVITY = {
    Rung.FREE: 1.0,
    Rung.NO_NEW_WORK: 0.95,
    Rung.SLOW_HOST: 0.5,
    Rung.PAUSE: 0.0,
    Rung.PARK: 0.0,
    Rung.KILL: 0.0,
}
"""How much of the farm's work still runs on each rung, as a share."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One simulated window and what the guard made of it."""

    window: Window
    state: GuardState
    verdict: Verdict
    activity: float


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A neighbour whose steps are over budget with a chance that the farm and others add to.

    All functions take the time in seconds and give a chance from 0 to 1. ``harm`` is what the farm adds at
    full activity, ``own`` what comes from elsewhere, ``condition`` how the neighbour is.
    """

    steps_per_second: float = 100.0
    quiet: float = 0.005
    harm: Callable[[float], float] = lambda _: 0.0
    own: Callable[[float], float] = lambda _: 0.0
    condition: Callable[[float], Condition] = lambda _: Condition.SERVING
    clock: Callable[[float], float] = lambda time: time


def run(
    neighbour: Neighbour,
    seconds: float,
    *,
    policy: Policy | None = None,
    seed: int = 0,
    window_s: float = 0.25,
    lag_s: float = 0.05,
    shares_gpu: bool = False,
) -> Iterator[Moment]:
    """Simulate window after window, the guard's verdict acting on the next one after ``lag_s``."""
    policy = policy or Policy()
    chance = random.Random(seed)
    state = GuardState()
    rung, frozen, previous = Rung.FREE, False, 1.0
    for index in range(round(seconds / window_s)):
        begin = index * window_s
        now = 0.0 if frozen and shares_gpu else FARM_ACTIVITY[rung]
        activity = (previous * lag_s + now * (window_s - lag_s)) / window_s
        condition = neighbour.condition(begin)
        steps = round(neighbour.steps_per_second * window_s) if condition is Condition.SERVING else 0
        share = min(1.0, neighbour.quiet + neighbour.harm(begin) * activity + neighbour.own(begin))
        over = sum(chance.random() < share for _ in range(steps))
        start = neighbour.clock(begin)
        window = Window(start, start + window_s, condition, steps, over, running=8.0)
        state, verdict = decide(state, window, policy, shares_gpu=shares_gpu)
        previous = now
        rung, frozen = verdict.rung, verdict.freeze_shared
        yield Moment(window, state, verdict, activity)
