"""What each rung of the guard means for an attempt, and what is stricter than the guard."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.settings import Settings
from gpu_pinning.guard.decide import Rung
from workers.control import Command
from workers.limits import Limits
from workers.orders import SLOW_DUTY, Circumstances, GuardWish, Order, order
from workers.repository import HeldTask


def asked(rung: Rung | None, *, wish: str | None = None, host_work: bool = True, **more: object) -> Order:
    held = HeldTask("task", 1, "slot", 7, "att", wish, None, 600.0, None)
    guard = None if rung is None else GuardWish(rung, "guard: llm: 20 % over", host_work)
    values = {"fenced": False, "slot_state": "held", "database_silent_s": 0.0, "stopping": ""} | more
    settings = Settings(data=Path("/tmp/none"))
    return order(Circumstances(held=held, limits=Limits(), guard=guard, **values), settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rung", "command", "duty"),
    [
        (Rung.FREE, Command.RUN, 100),
        (Rung.NO_NEW_WORK, Command.RUN, 100),
        (Rung.SLOW_HOST, Command.THROTTLE, SLOW_DUTY),
        (Rung.PAUSE, Command.PAUSE, 100),
        (Rung.PARK, Command.PARK, 100),
    ],
)
def test_each_rung_has_its_command_and_none_kills(rung: Rung, command: Command, duty: int) -> None:
    chosen = asked(rung)
    assert (chosen.command, chosen.duty, chosen.grace_s) == (command, duty, None)


def test_gpu_slots_are_not_slowed_for_the_hosts_sake() -> None:
    assert asked(Rung.SLOW_HOST, host_work=False).command is Command.RUN


def test_kill_is_a_park_without_grace_so_that_it_costs_no_retry() -> None:
    assert asked(Rung.KILL) == Order(Command.PARK, "guard: llm: 20 % over", 0.0)


def test_a_hold_that_is_not_the_guards_pauses() -> None:
    assert asked(None).command is Command.PAUSE


def test_cancel_and_drain_are_stricter_than_the_guard() -> None:
    assert asked(Rung.PAUSE, wish="cancel").command is Command.CANCEL
    assert asked(Rung.PAUSE, draining=True).command is Command.PARK
    assert asked(Rung.PARK, fenced=True).command is Command.FENCE
