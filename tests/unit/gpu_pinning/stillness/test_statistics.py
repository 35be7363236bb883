"""The statistics of the stillness proof on synthetic traces whose ratios are known."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_pinning.stillness.statistics import (
    CONTROL_STEPS,
    ArmResult,
    Outcome,
    Quartet,
    Ratio,
    Steps,
    block_length,
    compare,
    judge,
)


def trace(random: np.random.Generator, count: int, *, scale: float = 1.0, correlation: float = 0.3) -> Steps:
    """Steps of about 10 ms: autocorrelated jitter of 1 % and now and then a step that is 5 % slower."""
    noise = random.normal(size=count)
    for index in range(1, count):
        noise[index] = correlation * noise[index - 1] + (1 - correlation**2) ** 0.5 * noise[index]
    slow = np.where(random.random(count) < 0.03, 1.05, 1.0)
    steps: Steps = 0.010 * scale * slow * np.exp(0.01 * noise)
    return steps


def quartets(
    ratio: float,
    *,
    seed: int = 1,
    count: int = 12,
    steps: int = 1000,
    drift: float = 0.0,
    correlation: float = 0.3,
) -> list[Quartet]:
    """Quartets with a true ratio; ``drift`` is how much slower everything gets over the whole run."""
    random = np.random.default_rng(seed)
    result = []
    for index in range(count):
        parts = []
        for position in range(4):
            speed = 1 + drift * (index * 4 + position) / (count * 4)
            arm = position in (1, 2)
            parts.append(
                trace(random, steps // 2, scale=speed * (ratio if arm else 1.0), correlation=correlation)
            )
        result.append(Quartet(np.concatenate([parts[0], parts[3]]), np.concatenate([parts[1], parts[2]])))
    return result


def verdict(ratio: float, **options: float) -> Outcome:
    farm = compare("farm", quartets(ratio, seed=2, **options), repeats=300)  # type: ignore[arg-type]
    placebo = compare("placebo", quartets(1.0, seed=3, **options), repeats=300)  # type: ignore[arg-type]
    control = compare("control", quartets(2.0, seed=4, **options), repeats=300)  # type: ignore[arg-type]
    return judge(farm, placebo, control).outcome


@pytest.mark.parametrize(
    ("ratio", "outcome"),
    [
        (1.000, Outcome.STILL),
        (1.005, Outcome.STILL),
        (1.02, Outcome.DISTURBED),
        (1.5, Outcome.DISTURBED),
        (0.97, Outcome.DISTURBED),
    ],
)
def test_known_ratios_get_the_right_verdict(ratio: float, outcome: Outcome) -> None:
    assert verdict(ratio) is outcome


@pytest.mark.parametrize(("ratio", "outcome"), [(1.0, Outcome.STILL), (1.02, Outcome.DISTURBED)])
def test_drift_over_the_run_falls_out_of_the_pairs(ratio: float, outcome: Outcome) -> None:
    assert verdict(ratio, drift=0.05) is outcome


@pytest.mark.parametrize(("ratio", "outcome"), [(1.0, Outcome.STILL), (1.02, Outcome.DISTURBED)])
def test_autocorrelated_steps_get_the_right_verdict(ratio: float, outcome: Outcome) -> None:
    assert verdict(ratio, correlation=0.9, count=24) is outcome


def test_the_estimate_is_the_true_ratio_and_the_bounds_hold_it() -> None:
    held = 0
    for seed in range(20):
        result = compare("farm", quartets(1.05, seed=seed, count=8, steps=600), repeats=200)
        assert result.p50.value == pytest.approx(1.05, abs=0.004)
        held += result.p99.lower <= 1.05 <= result.p99.upper
    # two one-sided 95 % bounds hold the truth in nine of ten runs; 20 runs miss it more than six times with
    # a chance under 1 %
    assert held >= 14


def test_the_bootstrap_is_repeatable() -> None:
    data = quartets(1.0, count=3, steps=400)
    assert compare("x", data, seed=7, repeats=50) == compare("x", data, seed=7, repeats=50)


def test_blocks_grow_with_the_autocorrelation() -> None:
    random = np.random.default_rng(0)
    independent = block_length(trace(random, 4000, correlation=0.0))
    sticky = block_length(trace(random, 4000, correlation=0.95))
    assert independent == 5
    assert sticky > 40


def result(p50: float, low: float, p99: float, high: float) -> ArmResult:
    return ArmResult("arm", Ratio(0.5, p50, p50, p50), Ratio(0.99, p99, low, high), p99, 1000, 4)


GOOD = result(1.0, 0.998, 1.0, 1.002)
CONTROL = result(1.4, 2.0, 2.2, 2.4)


def test_a_placebo_that_disagrees_voids_the_run() -> None:
    assert judge(GOOD, result(1.011, 0.99, 1.0, 1.01), CONTROL).outcome is Outcome.VOID
    assert judge(GOOD, result(0.985, 0.99, 1.0, 1.01), CONTROL).outcome is Outcome.VOID
    assert judge(GOOD, result(1.0, 1.02, 1.03, 1.04), CONTROL).outcome is Outcome.VOID


def test_a_control_that_does_not_hurt_voids_the_run() -> None:
    judgement = judge(GOOD, GOOD, result(1.1, 1.2, 1.3, 1.4))
    assert judgement.outcome is Outcome.VOID
    assert "proves nothing" in judgement.reasons[0]
    assert judge(GOOD, GOOD, None).outcome is Outcome.STILL


def test_a_farm_arm_outside_the_tolerance_is_a_failure_and_never_a_void() -> None:
    assert judge(result(0.98, 0.97, 0.98, 0.99), GOOD, CONTROL).outcome is Outcome.DISTURBED
    assert judge(result(1.0, 0.999, 1.005, 1.0101), GOOD, CONTROL).outcome is Outcome.DISTURBED


def test_a_control_that_leaves_few_steps_still_counts() -> None:
    """Four processes a core leave decode a fifth of its steps: that is what the control is to show."""
    random = np.random.default_rng(5)
    few = [Quartet(trace(random, 300), trace(random, 60, scale=5.0), CONTROL_STEPS) for _ in range(2)]
    control = compare("control", few, repeats=100)
    assert control.p99.lower > 1.5
    with pytest.raises(ValueError, match="29 steps"):
        Quartet(trace(random, 300), trace(random, 29), CONTROL_STEPS)


def test_short_or_broken_series_are_refused() -> None:
    fine = np.full(300, 0.01)
    with pytest.raises(ValueError, match="100 steps"):
        Quartet(np.full(100, 0.01), fine)
    with pytest.raises(ValueError, match="finite"):
        Quartet(fine, np.where(np.arange(300) == 5, np.nan, 0.01))
    with pytest.raises(ValueError, match="no quartet"):
        compare("x", [])
