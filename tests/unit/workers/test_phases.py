"""Where an attempt's time goes."""

from __future__ import annotations

import time

import pytest

from workers.phases import PhaseClock


def test_inner_phase_pauses_the_outer_and_the_sum_is_the_wall_time() -> None:
    clock = PhaseClock()
    started = time.monotonic()
    with clock.phase("load"):
        time.sleep(0.03)
        with clock.phase("held"):
            time.sleep(0.05)
    time.sleep(0.02)
    split = clock.split(1.5)
    wall = time.monotonic() - started
    assert split.queue_s == 1.5
    assert split.held_s >= 0.05
    assert 0.03 <= split.load_s < split.load_s + split.held_s
    total = split.fetch_s + split.load_s + split.work_s + split.write_s + split.held_s
    assert total == pytest.approx(wall, abs=0.02)


def test_a_phase_that_raises_still_ends() -> None:
    clock = PhaseClock()
    with pytest.raises(RuntimeError), clock.phase("fetch"):
        raise RuntimeError
    time.sleep(0.01)
    assert clock.split(0).work_s >= 0.01


def test_unknown_phase_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of"), PhaseClock().phase("lunch"):
        pass


def test_time_that_somebody_else_froze_us_counts_as_held() -> None:
    frozen = [3.0]
    clock = PhaseClock(lambda: frozen[0])
    with clock.phase("load"):
        time.sleep(0.06)
        # of the time since the last booking; what was before this attempt is not ours
        frozen[0] = 3.04
        time.sleep(0.01)
    split = clock.split(0)
    assert split.held_s == pytest.approx(0.04, abs=1e-6)
    assert split.load_s >= 0.03
    frozen[0] = 100.0
    assert clock.split(0).held_s < 1.0, "never more than has passed"
