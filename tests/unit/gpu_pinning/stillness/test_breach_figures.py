"""When harm began, read from a trace whose breach is known."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_pinning.stillness.breach import breach_begins

BUDGET = 0.011


def trace(*parts: tuple[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Ends and durations of so many steps of so long, one part after the other, from second 0 on."""
    durations = np.concatenate([np.full(count, seconds) for count, seconds in parts])
    return np.cumsum(durations), durations


def test_the_harm_begins_with_the_first_step_that_others_follow() -> None:
    # a second of 10 ms, one slow step alone, half a second more, then harm
    at, durations = trace((100, 0.010), (1, 0.012), (50, 0.010), (60, 0.023))
    assert breach_begins(at, durations, BUDGET, 0.5, 0.5) == pytest.approx(1.512)


def test_harm_before_the_work_began_is_none_of_it() -> None:
    at, durations = trace((50, 0.023), (100, 0.010))
    assert breach_begins(at, durations, BUDGET, 1.2, 0.5) is None


def test_work_that_was_stopped_before_most_steps_were_slow_counts_from_its_first_slow_step() -> None:
    at, durations = trace((100, 0.010), (2, 0.023), (200, 0.010))
    assert breach_begins(at, durations, BUDGET, 1.0, 0.5, [1.05]) == pytest.approx(1.0)
    assert breach_begins(at, durations, BUDGET, 1.0, 0.5) is None


def test_what_comes_after_the_work_was_stopped_is_not_its_breach() -> None:
    at, durations = trace((200, 0.010), (60, 0.023))
    assert breach_begins(at, durations, BUDGET, 0.5, 0.5, [1.0]) is None
