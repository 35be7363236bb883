"""Does work beside a decode loop slow its steps? Paired ratios with bounds, from interleaved blocks.

The unit is one engine step. Arms are run in quartets A B B A, so that a drift of clocks or temperature that
is linear over a quartet falls out of the pair. For each quartet the log of the ratio of a quantile (arm over
idle) is taken; their mean is the estimate. Bounds come from a bootstrap on two levels: quartets are drawn
with replacement, and within each the steps are drawn in consecutive blocks, which keeps their
autocorrelation (Künsch 1989, the moving block bootstrap).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.float64]

CONFIDENCE = 0.95
REPEATS = 1000
TOLERANCE = 0.01
"""How far from 1 the ratios of a still farm and of a placebo may lie."""
CONTROL_AT_LEAST = 1.5
"""The ratio of p99 that a positive control has to reach."""
_MIN_STEPS = 200
CONTROL_STEPS = 30
"""What a quartet of the positive control needs: its ratio is to be found over 1.5, not within 1 %."""


class Outcome(StrEnum):
    """What a run of arms comes to."""

    STILL = "still"
    DISTURBED = "disturbed"
    VOID = "void"
    """The placebo or the positive control misbehaved, so the run says nothing about the farm."""
    INCONCLUSIVE = "inconclusive"
    """The placebo never agreed during warm-up, or there are too few steps."""


@dataclass(frozen=True, slots=True)
class Quartet:
    """One A B B A: durations of all steps in seconds, of the two idle blocks and of the two arm blocks.

    ``least`` steps are needed of each. Few do where the arm is to be far from idle: harm makes steps few.
    """

    idle: Steps
    arm: Steps
    least: int = _MIN_STEPS

    def __post_init__(self) -> None:
        for name, steps in (("idle", self.idle), ("arm", self.arm)):
            if steps.ndim != 1 or len(steps) < self.least:
                raise ValueError(f"{name}: {len(steps)} steps, but a quartet needs {self.least} of each")
            if not np.isfinite(steps).all() or (steps <= 0).any():
                raise ValueError(f"{name}: step durations must be finite and above zero")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Arm over idle for one quantile: the estimate and its one-sided 95 % bounds."""

    quantile: float
    value: float
    lower: float
    upper: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.lower:.4f} to {self.upper:.4f})"


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm against idle. ``p999`` is the ratio of pooled p99.9, without bounds: too few steps for them."""

    name: str
    p50: Ratio
    p99: Ratio
    p999: float
    steps: int
    quartets: int


def compare(name: str, quartets: Sequence[Quartet], *, seed: int = 0, repeats: int = REPEATS) -> ArmResult:
    """Compare an arm with idle over its quartets; ``seed`` makes the bootstrap repeatable.

    Raises :class:`ValueError` without quartets.
    """
    if not quartets:
        raise ValueError(f"arm {name!r} has no quartet")
    pooled_idle = np.concatenate([quartet.idle for quartet in quartets])
    pooled_arm = np.concatenate([quartet.arm for quartet in quartets])
    p999 = float(np.quantile(pooled_arm, 0.999) / np.quantile(pooled_idle, 0.999))
    quantiles = (0.5, 0.99)
    logs = np.array([_log_ratios(q.idle, q.arm, quantiles) for q in quartets])
    draws = _bootstrap(quartets, quantiles, np.random.default_rng(seed), repeats)
    ratios = []
    for index, quantile in enumerate(quantiles):
        value = float(np.exp(logs[:, index].mean()))
        lower, upper = np.exp(np.quantile(draws[:, index], [1 - CONFIDENCE, CONFIDENCE]))
        ratios.append(Ratio(quantile, value, float(lower), float(upper)))
    return ArmResult(name, ratios[0], ratios[1], p999, len(pooled_arm), len(quartets))


def _log_ratios(idle: Steps, arm: Steps, quantiles: tuple[float, ...]) -> Steps:
    ratios: Steps = np.log(np.quantile(arm, quantiles)) - np.log(np.quantile(idle, quantiles))
    return ratios


def _bootstrap(
    quartets: Sequence[Quartet], quantiles: tuple[float, ...], random: np.random.Generator, repeats: int
) -> Steps:
    """Log-ratio estimates of ``repeats`` resampled runs, shape ``(repeats, len(quantiles))``."""
    # per quartet a stock of resampled log-ratios; a resampled run is a mean over drawn quartets of draws
    stock = np.empty((len(quartets), repeats, len(quantiles)))
    for index, quartet in enumerate(quartets):
        stock[index] = np.log(_resampled(quartet.arm, quantiles, random, repeats)) - np.log(
            _resampled(quartet.idle, quantiles, random, repeats)
        )
    picked = random.integers(len(quartets), size=(repeats, len(quartets)))
    draw = random.integers(repeats, size=(repeats, len(quartets)))
    mean: Steps = stock[picked, draw].mean(axis=1)
    return mean


def _resampled(
    steps: Steps, quantiles: tuple[float, ...], random: np.random.Generator, repeats: int
) -> Steps:
    """Quantiles of ``repeats`` block-resampled copies of ``steps``, shape ``(repeats, len(quantiles))``."""
    length = block_length(steps)
    blocks = -(-len(steps) // length)
    offsets = np.arange(length)
    result = np.empty((repeats, len(quantiles)))
    for begin in range(0, repeats, 100):
        count = min(100, repeats - begin)
        starts = random.integers(len(steps) - length + 1, size=(count, blocks))
        index = (starts[:, :, None] + offsets).reshape(count, -1)[:, : len(steps)]
        result[begin : begin + count] = np.quantile(steps[index], quantiles, axis=1).T
    return result


def block_length(steps: Steps) -> int:
    """Steps per bootstrap block: long enough for the autocorrelation, from 5 to a tenth of the series.

    The first lag at which the autocorrelation of the ranks falls under 0.1, times three. Ranks, because a
    few very slow steps would hide the rest.
    """
    ranks = np.argsort(np.argsort(steps)).astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    longest = max(5, len(steps) // 10)
    lag = 1
    while lag < longest // 3 and float(ranks[:-lag] @ ranks[lag:]) / power > 0.1:
        lag += 1
    return int(min(max(5, 3 * lag), longest))


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict over all arms and why."""

    outcome: Outcome
    reasons: tuple[str, ...]


def judge(
    farm: ArmResult, placebo: ArmResult, control: ArmResult | None, *, tolerance: float = TOLERANCE
) -> Judgement:
    """The verdict of one run.

    The placebo's p50 has to lie within ``1 ± tolerance`` and its p99 bounds must not exclude 1 by more than
    that, or the run is void; so is a run whose positive control (where it ran) does not reach
    :data:`CONTROL_AT_LEAST`. The farm is still when the upper bound of its p99 ratio and its p50 ratio lie
    within the tolerance; a farm arm that fails is a failure, never a void.
    """
    faults = []
    if abs(placebo.p50.value - 1) > tolerance:
        faults.append(f"the placebo's p50 ratio is {placebo.p50}: idle against idle must be within 1 %")
    if placebo.p99.lower > 1 + tolerance or placebo.p99.upper < 1 - tolerance:
        faults.append(f"the placebo's p99 ratio is {placebo.p99}: idle against idle must include 1")
    if control is not None and control.p99.value < CONTROL_AT_LEAST:
        faults.append(
            f"the positive control's p99 ratio is {control.p99}, under {CONTROL_AT_LEAST}: "
            "the load does not hurt, so not hurting proves nothing"
        )
    failures = []
    if abs(farm.p50.value - 1) > tolerance:
        failures.append(f"p50 ratio {farm.p50} is outside 1 ± {tolerance:g}")
    if farm.p99.upper > 1 + tolerance:
        failures.append(f"p99 ratio {farm.p99} has its upper bound over {1 + tolerance:g}")
    if faults:
        return Judgement(Outcome.VOID, tuple(faults + failures))
    if failures:
        return Judgement(Outcome.DISTURBED, tuple(failures))
    return Judgement(Outcome.STILL, (f"p50 {farm.p50}, p99 {farm.p99}, p99.9 {farm.p999:.4f} of idle",))
