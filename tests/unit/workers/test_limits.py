"""Time limits that stand still while the farm holds the task."""

from __future__ import annotations

from dataclasses import replace

from workers.control import Reading
from workers.limits import Limits

BEGUN = Reading(
    beat=1,
    serial=7,
    began_at=100.0,
    progressed_at=100.0,
    held_s=0.0,
    fraction=0,
    pid=1,
    ready=True,
    claimed=(7, 7),
    obeyed=0,
    groups=(),
)


def test_running_time_and_idle_time_add_up() -> None:
    limits = Limits()
    limits.look(BEGUN, 101.0, standing=False)
    limits.look(BEGUN, 103.0, standing=False)
    assert (limits.ran_s, limits.idle_s) == (3.0, 3.0)
    assert limits.expired(10.0, 3.0) == "no_progress"
    assert limits.expired(3.0, 10.0) == "timeout"
    assert limits.expired(None, 10.0) is None


def test_progress_starts_the_idle_clock_again() -> None:
    limits = Limits()
    limits.look(BEGUN, 105.0, standing=False)
    limits.look(replace(BEGUN, progressed_at=106.5), 107.0, standing=False)
    assert (limits.ran_s, limits.idle_s) == (7.0, 0.5)


def test_both_clocks_stand_while_the_agent_holds_the_slot() -> None:
    limits = Limits()
    limits.look(BEGUN, 101.0, standing=False)
    limits.look(BEGUN, 501.0, standing=True)
    limits.look(BEGUN, 502.0, standing=False)
    assert (limits.ran_s, limits.idle_s) == (2.0, 2.0)


def test_time_that_the_slot_was_held_does_not_count() -> None:
    limits = Limits()
    limits.look(BEGUN, 101.0, standing=False)
    limits.look(replace(BEGUN, held_s=9.0), 111.0, standing=False)
    assert (limits.ran_s, limits.idle_s) == (2.0, 2.0)


def test_another_attempt_starts_afresh() -> None:
    limits = Limits()
    limits.look(BEGUN, 150.0, standing=False)
    limits.look(replace(BEGUN, serial=8, began_at=150.5, progressed_at=150.5), 151.0, standing=False)
    assert (limits.ran_s, limits.idle_s) == (0.5, 0.5)


def test_nothing_expires_between_attempts() -> None:
    limits = Limits()
    limits.look(replace(BEGUN, serial=0), 1000.0, standing=False)
    assert limits.expired(1.0, 1.0) is None
