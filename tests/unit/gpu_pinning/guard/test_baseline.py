"""Budgets, fixed and learnt."""

from __future__ import annotations

import json
import random

import pytest

from gpu_pinning.guard.baseline import RESERVOIR, FixedBudget, LearntBaseline, load_class


@pytest.mark.parametrize(
    ("running", "load"),
    [(None, 0), (0, 0), (1, 0), (1.5, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (256, 8)],
)
def test_loads_are_powers_of_two(running: float | None, load: int) -> None:
    assert load_class(running) == load


def test_a_fixed_budget_is_the_same_at_every_load() -> None:
    assert FixedBudget(12.5).at(1).seconds == FixedBudget(12.5).at(64).seconds == 0.0125
    with pytest.raises(ValueError, match="above zero"):
        FixedBudget(0)


def test_a_learnt_budget_is_the_upper_bound_of_the_quantile_with_its_margin() -> None:
    baseline = LearntBaseline(quantile=0.9, margin=0.5)
    baseline.learn([index / 1000 for index in range(1, 1001)], running=8)
    budget = baseline.at(8)
    assert budget is not None
    # 1000 values: the 0.9 quantile is the 900th, its upper bound ceil(900 + 1.645 * sqrt(90)) = 916th above
    assert budget.seconds == pytest.approx(0.917 * 1.5)
    assert budget.uncertainty_s == pytest.approx((0.917 - 0.901) * 1.5)
    assert budget.steps == 1000


def test_too_few_steps_give_no_budget() -> None:
    baseline = LearntBaseline()
    baseline.learn([0.01] * 399, running=1)
    assert baseline.at(1) is None
    baseline.learn([0.01, float("nan"), -1.0, float("inf")], running=1)
    assert baseline.at(1) is not None


def test_a_load_that_is_not_learnt_takes_the_next_higher_one_or_stretches_the_highest() -> None:
    baseline = LearntBaseline(margin=0.0)
    baseline.learn([0.010] * 500, running=2)
    baseline.learn([0.020] * 500, running=16)
    for running, seconds in ((1, 0.010), (2, 0.010), (5, 0.020), (16, 0.020)):
        budget = baseline.at(running)
        assert budget is not None and budget.seconds == seconds
    beyond = baseline.at(17)
    # one doubling above the highest learnt load: at most twice as long, and the stretch is all doubt
    assert beyond is not None and beyond.seconds == pytest.approx(0.040)
    assert beyond.uncertainty_s == pytest.approx(0.020) and beyond.load == 4
    assert LearntBaseline().at(17) is None


def test_the_reservoir_is_bounded_and_fair() -> None:
    baseline = LearntBaseline(quantile=0.5, margin=0.0)
    chance = random.Random(3)
    # the early half is fast, the late half slow: a fair sample has its median between
    baseline.learn((chance.uniform(1, 2) for _ in range(20_000)), running=1)
    baseline.learn((chance.uniform(3, 4) for _ in range(20_000)), running=1)
    budget = baseline.at(1)
    assert budget is not None and budget.steps == RESERVOIR
    assert 1.9 < budget.seconds - budget.uncertainty_s < 3.2


def test_what_was_learnt_survives_a_round_trip() -> None:
    baseline = LearntBaseline()
    baseline.learn([0.01 + index * 1e-6 for index in range(1000)], running=4)
    again = LearntBaseline.from_json(json.loads(json.dumps(baseline.to_json())))
    assert again.at(4) == baseline.at(4)
