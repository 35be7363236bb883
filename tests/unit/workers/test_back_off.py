"""A slot that dies is started at once; only one that dies again and again waits."""

from __future__ import annotations

import pytest

from workers.back_off import BackOff


def test_the_first_two_quick_deaths_cost_nothing_and_later_ones_ever_more() -> None:
    back_off = BackOff()
    waits = []
    now = 100.0
    for _ in range(9):
        back_off.died(now, 0.4, worked=False)
        waits.append(back_off.wait_s())
        now += 0.4 + back_off.wait_s()
    assert waits == [0.0, 0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0]
    # the longest wait is not a minute without deaths
    back_off.died(now, 25.0, worked=False)
    assert back_off.wait_s() == 30.0


@pytest.mark.parametrize(("lived_s", "worked"), [(31.0, False), (0.4, True)])
def test_a_life_that_went_well_is_a_new_beginning(lived_s: float, worked: bool) -> None:
    back_off = BackOff()
    for _ in range(5):
        back_off.died(100.0, 0.4, worked=False)
    back_off.died(101.0, lived_s, worked=worked)
    assert back_off.wait_s() == 0.0
    back_off.died(102.0, 0.4, worked=False)
    back_off.died(103.0, 0.4, worked=False)
    assert back_off.wait_s() == 0.0


def test_deaths_more_than_a_minute_apart_are_all_first_ones() -> None:
    back_off = BackOff()
    for now in (100.0, 161.0, 222.0, 283.0):
        back_off.died(now, 2.0, worked=False)
        assert back_off.wait_s() == 0.0


def test_a_start_that_failed_waits_from_the_first_time_on() -> None:
    back_off = BackOff()
    waits = []
    for now in range(100, 107):
        back_off.failed_start(float(now))
        waits.append(back_off.wait_s())
    assert waits == [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 30.0]
