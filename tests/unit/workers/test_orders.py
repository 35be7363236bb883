"""What the agent asks of an attempt, strictest first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farm.settings import Settings
from workers.control import Command
from workers.limits import Limits
from workers.orders import Circumstances, order
from workers.repository import HeldTask

SETTINGS = Settings(database_away_park_s=25, database_away_kill_s=5, park_grace_s=20, cancel_grace_s=10)
TASK = HeldTask("task", 1, "slot", 7, "att", None, 60.0, 30.0, None)
CALM = Circumstances(TASK, False, "busy", Limits(serial=7, ran_s=1, idle_s=1), 0.0, "")


@pytest.mark.parametrize(
    ("now", "command", "grace"),
    [
        (CALM, Command.RUN, None),
        (replace(CALM, held=None), Command.RUN, None),
        (replace(CALM, slot_state="held"), Command.PAUSE, None),
        (replace(CALM, held=replace(TASK, wish="park"), slot_state="held"), Command.PARK, 20),
        (replace(CALM, stopping="the agent stops"), Command.PARK, None),
        (replace(CALM, draining=True, slot_state="held"), Command.PARK, 20),
        (replace(CALM, database_silent_s=24.9), Command.RUN, None),
        (replace(CALM, database_silent_s=25.0), Command.PARK, 5),
        (replace(CALM, limits=Limits(serial=7, ran_s=60)), Command.EXPIRE, 10),
        (replace(CALM, limits=Limits(serial=7, idle_s=30)), Command.EXPIRE, 10),
        (
            replace(CALM, held=replace(TASK, wish="cancel"), limits=Limits(serial=7, ran_s=99)),
            Command.CANCEL,
            10,
        ),
        (replace(CALM, fenced=True, held=replace(TASK, wish="cancel")), Command.FENCE, 10),
    ],
)
def test_strictest_order_wins(now: Circumstances, command: Command, grace: float | None) -> None:
    chosen = order(now, SETTINGS)
    assert (chosen.command, chosen.grace_s) == (command, grace)


def test_expiry_names_the_limit() -> None:
    assert order(replace(CALM, limits=Limits(7, ran_s=61)), SETTINGS).reason.endswith("time limit of 60 s")
    assert order(replace(CALM, limits=Limits(7, idle_s=31)), SETTINGS).reason == "no progress for 30 s"
