"""What the farm gets done beside decode, against the same workers in the same fence with decode at rest.

Blocks of both kinds lie next to each other in each round, alone first in one and last in the next, so that
clocks and temperature fall out; the ratio is paired by round. It is told apart: a pool may have had less of
its cores (held, or crowded out), or cores that did less in a second (shared with somebody, or slower).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from gpu_pinning.stillness.arms import Block
from gpu_pinning.stillness.statistics import CONFIDENCE

_REPEATS = 2000
Rates = dict[str, tuple[float, float]]
"""Units per second and cores used, by pool."""


def rates(blocks: list[Block]) -> Rates:
    """Rates over several blocks."""
    seconds = sum(block.end - block.begin for block in blocks)
    pools = dict.fromkeys(pool for block in blocks for pool in block.work)
    return {
        pool: (
            sum(block.work.get(pool, (0.0, 0.0))[0] for block in blocks) / seconds,
            sum(block.work.get(pool, (0.0, 0.0))[1] for block in blocks) / seconds,
        )
        for pool in pools
    }


@dataclass
class Throughput:
    """Rates by round; ``alone`` is empty where decode is not ours to stop."""

    beside: list[Rates] = field(default_factory=list)
    alone: list[Rates] = field(default_factory=list)

    def to_json(self, seed: int = 0) -> dict[str, Any]:
        """Means and paired ratios with one-sided 95 % bounds (rounds drawn with replacement)."""
        beside = _means(self.beside, 0)
        if not self.alone:
            return {"beside": beside, "alone": None, "ratio": None, "bounds": None, "told_apart": None}
        ratio: dict[str, float | None] = {}
        bounds: dict[str, Any] = {}
        apart: dict[str, Any] = {}
        for pool in beside:
            logs = [
                math.log(near[pool][0] / far[pool][0])
                for near, far in zip(self.beside, self.alone, strict=False)
                if near[pool][0] > 0 and far[pool][0] > 0
            ]
            ratio[pool] = math.exp(sum(logs) / len(logs)) if logs else None
            bounds[pool] = _bounds(logs, seed)
            apart[pool] = self._apart(pool)
        return {
            "beside": beside,
            "alone": _means(self.alone, 0),
            "ratio": ratio,
            "bounds": bounds,
            "told_apart": apart,
        }

    def _apart(self, pool: str) -> dict[str, float] | None:
        near = (_means(self.beside, 0)[pool], _means(self.beside, 1)[pool])
        far = (_means(self.alone, 0)[pool], _means(self.alone, 1)[pool])
        if min(*near, *far) <= 0:
            return None
        return {
            "cores_beside": near[1],
            "cores_alone": far[1],
            "core_time": near[1] / far[1],
            "core_speed": (near[0] / near[1]) / (far[0] / far[1]),
        }


def _means(rows: list[Rates], which: int) -> dict[str, float]:
    pools = dict.fromkeys(pool for row in rows for pool in row)
    return {pool: sum(row.get(pool, (0.0, 0.0))[which] for row in rows) / len(rows) for pool in pools}


def _bounds(logs: list[float], seed: int) -> list[float] | None:
    if len(logs) < 2:
        return None
    chance = random.Random(seed)
    means = sorted(sum(chance.choices(logs, k=len(logs))) / len(logs) for _ in range(_REPEATS))
    return [
        math.exp(means[int((1 - CONFIDENCE) * _REPEATS)]),
        math.exp(means[int(CONFIDENCE * _REPEATS) - 1]),
    ]
