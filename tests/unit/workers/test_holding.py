"""How an attempt obeys its control word."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from farm.errors import CancelRequested, FencedOff, ParkRequested, TimedOut
from farm.records import ClaimedTask
from workers.control import AgentControl, Command, SlotControl
from workers.holding import Obedience
from workers.phases import PhaseClock


@dataclass
class Pair:
    agent: AgentControl
    slot: SlotControl
    clock: PhaseClock
    obedience: Obedience


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    agent = AgentControl.create(tmp_path / "control")
    slot = SlotControl(tmp_path / "control")
    slot.begin(7)
    clock = PhaseClock()
    return Pair(agent, slot, clock, Obedience(slot, _task(7), clock))


def _task(serial: int, timeout_s: float | None = None) -> ClaimedTask:
    values: dict[str, Any] = dict.fromkeys(ClaimedTask.__slots__)
    values |= {"serial": serial, "timeout_s": timeout_s, "no_progress_s": 5.0}
    return cast(ClaimedTask, type("Task", (), values)())


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Command.PARK, ParkRequested),
        (Command.CANCEL, CancelRequested),
        (Command.EXPIRE, TimedOut),
        (Command.FENCE, FencedOff),
    ],
)
def test_commands_that_end_an_attempt_raise(pair: Pair, command: Command, error: type[Exception]) -> None:
    pair.obedience.check()
    pair.agent.command(7, command)
    with pytest.raises(error):
        pair.obedience.check()


@pytest.mark.parametrize("serial", [6, 8])
def test_a_word_for_another_attempt_is_void(pair: Pair, serial: int) -> None:
    pair.agent.command(serial, Command.CANCEL)
    for _ in range(3):
        pair.obedience.check()


def test_paused_work_stands_still_until_let_go_and_the_time_counts_as_held(pair: Pair) -> None:
    pair.agent.command(7, Command.PAUSE)
    threading.Timer(0.2, lambda: pair.agent.command(7, Command.RUN)).start()
    started = time.monotonic()
    pair.obedience.check()
    assert time.monotonic() - started >= 0.19
    assert pair.clock.held_s() >= 0.19
    assert pair.agent.read().held_s >= 0.19


def test_paused_work_can_be_cancelled(pair: Pair) -> None:
    pair.agent.command(7, Command.PAUSE)
    threading.Timer(0.1, lambda: pair.agent.command(7, Command.CANCEL)).start()
    with pytest.raises(CancelRequested):
        pair.obedience.check()


def test_throttled_work_sleeps_for_its_share(pair: Pair) -> None:
    pair.obedience.check()
    pair.agent.command(7, Command.THROTTLE, 25)
    pair.obedience.check()
    time.sleep(0.1)
    started = time.monotonic()
    pair.obedience.check()
    # a quarter of the time is work: 0.1 s of work, 0.3 s of rest
    assert 0.28 <= time.monotonic() - started < 1.0


def test_alarm_wins_over_a_calm_word_and_fencing_over_parking(pair: Pair) -> None:
    pair.obedience.check()
    pair.obedience.alarm(ParkRequested)
    with pytest.raises(ParkRequested):
        pair.obedience.check()
    pair.obedience.alarm(FencedOff)
    pair.obedience.alarm(ParkRequested)
    assert pair.obedience.fenced()
    with pytest.raises(FencedOff):
        pair.obedience.check()


def test_expiry_names_its_limit(pair: Pair, tmp_path: Path) -> None:
    pair.agent.command(7, Command.EXPIRE)
    with pytest.raises(TimedOut, match="no progress for 5 s"):
        pair.obedience.check()
    timed = Obedience(pair.slot, _task(7, timeout_s=0.01), pair.clock)
    time.sleep(0.02)
    with pytest.raises(TimedOut, match=r"time limit of 0\.01 s"):
        timed.check()
