"""What a run has measured so far, and what it comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpu_pinning.stillness.arms import Block
from gpu_pinning.stillness.statistics import (
    CONTROL_STEPS,
    REPEATS,
    TOLERANCE,
    ArmResult,
    Judgement,
    Outcome,
    Quartet,
    compare,
    judge,
)

if TYPE_CHECKING:
    from gpu_pinning.stillness.run import Options

HURTING = ("control", "loose")
"""Arms without a fence."""


@dataclass
class Record:
    """What was measured, arm by arm, for judgement and plots."""

    quartets: dict[str, list[Quartet]] = field(default_factory=dict)
    blocks: dict[str, list[tuple[str, Block]]] = field(default_factory=dict)
    short: list[str] = field(default_factory=list)

    def add(self, name: str, blocks: list[tuple[str, Block]]) -> None:
        """Take in a quartet of blocks ``idle`` or ``arm``."""
        self.blocks.setdefault(name, []).extend(blocks)
        idle = np.concatenate([block.durations for kind, block in blocks if kind == "idle"])
        arm = np.concatenate([block.durations for kind, block in blocks if kind == "arm"])
        try:
            quartet = Quartet(idle, arm, CONTROL_STEPS) if name in HURTING else Quartet(idle, arm)
            self.quartets.setdefault(name, []).append(quartet)
        except ValueError as error:
            self.short.append(f"{name}: {error}")


def conclude(
    record: Record, warm: dict[str, Any] | None, options: Options, repeats: int = REPEATS
) -> tuple[dict[str, ArmResult], Judgement]:
    """Results by arm and the verdict."""
    results = {
        name: compare(name, quartets, seed=options.seed, repeats=repeats)
        for name, quartets in record.quartets.items()
        if quartets
    }
    missing = [
        name for name in ("placebo", "farm", *(["control"] if options.hurt else [])) if name not in results
    ]
    if missing:
        why = "; ".join(record.short[:3]) or "nothing was measured"
        return results, Judgement(Outcome.INCONCLUSIVE, (f"too few steps for {', '.join(missing)}: {why}",))
    if warm is not None and not warm["agreed"]:
        words = f"warm-up ended after {warm['seconds']:.0f} s without a placebo within {TOLERANCE:.0%}"
        return results, Judgement(Outcome.INCONCLUSIVE, (f"{words}: {warm['ratios'][-3:]}",))
    if options.quartets < 2:
        return results, Judgement(Outcome.INCONCLUSIVE, ("one round tries the bench, and shows nothing",))
    return results, judge(results["farm"], results["placebo"], results.get("control"))


def arm_to_json(result: ArmResult) -> dict[str, Any]:
    """An arm's ratios as JSON."""

    def ratio(value: Any) -> dict[str, float]:
        return {"value": value.value, "lower": value.lower, "upper": value.upper}

    return {
        "p50": ratio(result.p50),
        "p99": ratio(result.p99),
        "p999": result.p999,
        "steps": result.steps,
        "quartets": result.quartets,
    }


def mean_of(record: Record, what: str) -> dict[str, float | None]:
    """Mean share by arm, and over all idle blocks."""
    rows: dict[str, list[float]] = {}
    for name, blocks in record.blocks.items():
        for kind, block in blocks:
            seen = getattr(block, what)
            if seen is not None:
                rows.setdefault(name if kind == "arm" else "idle", []).append(seen)
    names = ["idle", *record.blocks]
    return {name: sum(rows[name]) / len(rows[name]) if rows.get(name) else None for name in names}
