"""What is normal for a neighbour: budgets for one decode step, fixed or learnt while the farm is quiet.

A step's duration depends on how many requests are decoded together, so the baseline is kept per load: one
reservoir for each power of two of running requests. The learnt budget is a quantile with a distribution-free
upper bound (an order statistic; David and Nagaraja, Order Statistics, section 7.1), stretched by a margin.
"""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

LEAST_STEPS = 400
"""Steps at one load before its budget counts as learnt."""
RESERVOIR = 8192
GROWTH = 2.0
"""Twice the requests make a step at most twice as long: how far a budget is stretched per load above."""
_Z = 1.645


def load_class(running: float | None) -> int:
    """The load of so many running requests: 0 for one or unknown, then 1 for 2, 2 for 3 and 4, 3 to 8, …"""
    if running is None or running <= 1:
        return 0
    return math.ceil(math.log2(running))


@dataclass(frozen=True, slots=True)
class Budget:
    """Longest step that counts as normal at a load. ``uncertainty_s`` is how far the estimate may be off."""

    seconds: float
    uncertainty_s: float
    steps: int
    load: int


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """A budget in milliseconds that the operator states, the same at every load."""

    milliseconds: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.milliseconds) and self.milliseconds > 0):
            raise ValueError(f"budget {self.milliseconds} ms must be above zero")

    def at(self, running: float | None) -> Budget:
        """The budget, whatever the load."""
        return Budget(self.milliseconds / 1000, 0.0, 0, load_class(running))


@dataclass(slots=True)
class _Reservoir:
    """A uniform sample of all that was seen (Vitter's algorithm R), kept sorted."""

    seen: int = 0
    values: list[float] = field(default_factory=list)

    def add(self, value: float, chance: random.Random) -> None:
        self.seen += 1
        if len(self.values) < RESERVOIR:
            insort(self.values, value)
        elif (index := chance.randrange(self.seen)) < RESERVOIR:
            del self.values[index]
            insort(self.values, value)


class LearntBaseline:
    """Learns from quiet steps; gives budgets of ``(1 + margin)`` times the ``quantile`` at each load."""

    def __init__(self, *, quantile: float = 0.99, margin: float = 0.10, seed: int = 0) -> None:
        if not 0.5 <= quantile < 1:
            raise ValueError(f"quantile {quantile} must lie from 0.5 to below 1")
        if margin < 0:
            raise ValueError(f"margin {margin} must not be negative")
        self.quantile = quantile
        self.margin = margin
        self._loads: dict[int, _Reservoir] = {}
        self._chance = random.Random(seed)

    def learn(self, durations_s: Iterable[float], running: float | None) -> None:
        """Add steps that were seen while the farm did nothing on the node. Broken values are left out."""
        reservoir = self._loads.setdefault(load_class(running), _Reservoir())
        for value in durations_s:
            if math.isfinite(value) and value > 0:
                reservoir.add(value, self._chance)

    def at(self, running: float | None) -> Budget | None:
        """The budget at this load; ``None`` while nothing is learnt.

        At a load that is not learnt itself the next higher learnt one serves, or else the highest below it,
        stretched by :data:`GROWTH` for each doubling: the guard errs towards letting the farm run rather
        than towards a hold without a reason, yet gross harm shows at any load.
        """
        wanted = load_class(running)
        learnt = sorted(load for load, seen in self._loads.items() if len(seen.values) >= LEAST_STEPS)
        if not learnt:
            return None
        load = next((load for load in learnt if load >= wanted), learnt[-1])
        beyond = GROWTH ** max(0, wanted - load)
        values = self._loads[load].values
        count = len(values)
        middle = count * self.quantile
        upper = min(count - 1, math.ceil(middle + _Z * math.sqrt(middle * (1 - self.quantile))))
        estimate, bound = values[min(count - 1, int(middle))], values[upper]
        stretch = 1 + self.margin
        budget = bound * stretch * beyond
        return Budget(budget, budget - estimate * stretch, count, load)

    def learnt(self, running: float | None) -> int:
        """Steps kept at exactly this load."""
        found = self._loads.get(load_class(running))
        return len(found.values) if found else 0

    def to_json(self) -> dict[str, Any]:
        """All that was learnt, for the node's folder."""
        loads = {str(load): {"seen": r.seen, "values": r.values} for load, r in self._loads.items()}
        return {"quantile": self.quantile, "margin": self.margin, "loads": loads}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LearntBaseline:
        """Read :meth:`to_json`; raises :class:`KeyError`, :class:`TypeError` or :class:`ValueError`."""
        baseline = cls(quantile=float(data["quantile"]), margin=float(data["margin"]))
        for load, kept in data["loads"].items():
            values = sorted(float(value) for value in kept["values"])
            baseline._loads[int(load)] = _Reservoir(int(kept["seen"]), values)
        return baseline
