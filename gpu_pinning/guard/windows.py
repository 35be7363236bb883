"""What one neighbour felt in one short window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Condition(StrEnum):
    """Whether a neighbour is in a state that can be disturbed at all."""

    SERVING = "serving"
    IDLE = "idle"
    STARTING = "starting"
    STOPPED = "stopped"
    LOST = "lost"
    """It should be serving, but nothing can be read from it."""


@dataclass(frozen=True, slots=True)
class Window:
    """One neighbour over one window.

    Times are seconds on a monotonic clock. ``steps`` are the decode steps seen, ``over`` those of them that
    took longer than the budget, ``running`` the mean number of requests being decoded.
    """

    start: float
    end: float
    condition: Condition
    steps: int = 0
    over: int = 0
    running: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.over <= self.steps:
            raise ValueError(f"{self.over} of {self.steps} steps over budget")
        if self.end < self.start:
            raise ValueError(f"the window ends at {self.end}, before its start at {self.start}")


def wilson_bounds(hits: int, trials: int, z: float) -> tuple[float, float]:
    """Lower and upper bound of a share seen ``hits`` of ``trials`` times (Wilson's score interval).

    ``z`` is the one-sided normal quantile (1.645 for 95 %). No trials: ``(0, 1)``.
    """
    if trials == 0:
        return 0.0, 1.0
    share = hits / trials
    spread = z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def tail_bound(hits: int, trials: int, share: float) -> float:
    """At most how likely so many hits or more are where each trial hits with chance ``share``.

    Chernoff's bound on a binomial tail (Hoeffding 1963, theorem 1): never too small, also for few trials and
    rare hits, where a normal approximation is. 1 where there are no more hits than were to be expected.
    """
    if trials == 0 or hits <= share * trials:
        return 1.0
    seen = hits / trials
    distance = seen * math.log(seen / share)
    if seen < 1:
        distance += (1 - seen) * math.log((1 - seen) / (1 - share))
    return math.exp(-trials * distance)
