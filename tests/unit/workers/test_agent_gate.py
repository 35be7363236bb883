"""A slot is not started while its GPU's memory is not seen free: the agent asks, whatever else is due."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.gpu_pinning.trees import RecordedNvml
from tests.unit.workers.test_auditing import GIB, GPU, MACHINE, SEAT, SEATING, until
from workers import auditing
from workers.agent import Agent
from workers.auditing import Auditor
from workers.seats import Seats


class Waiting:
    """A slot that is due; it counts its starts, each of a real process."""

    def __init__(self) -> None:
        self.slot_id = self.name = "slot"
        self.seat = SEAT
        self.process: Any = None
        self.restart_at: float | None = 0.0
        self.starts = 0

    def start(self, settings: object) -> None:
        self.starts += 1
        child = subprocess.Popen(["sleep", "60"])
        self.process = SimpleNamespace(child=child, pidfd=os.pidfd_open(child.pid), launched=lambda: None)


@pytest.fixture
def slot() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    if made.process is not None:
        made.process.child.kill()
        made.process.child.wait()
        os.close(made.process.pidfd)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> RecordedNvml:
    monkeypatch.setattr(auditing, "_LOOK_S", 0.02)
    monkeypatch.setattr(auditing, "_STUCK_S", 0.1)
    return RecordedNvml(MACHINE)


@pytest.fixture
def agent(nvml: RecordedNvml) -> Iterator[Agent]:
    """The parts of an agent that start a slot; its auditor has heard of the slot's death."""
    made = Agent.__new__(Agent)
    made._auditor = Auditor(lambda: SEATING, list, lambda: None, 60.0, nvml)
    made._auditor.expect_free("slot", SEAT)
    made._seats = Seats.__new__(Seats)
    made._seats._below, made._seats._reseating, made._stopping_at = {}, None, None
    made._selector = selectors.DefaultSelector()
    made._settings = None  # type: ignore[assignment]
    yield made
    made._auditor.stop()
    made._selector.close()


def test_a_slot_starts_only_once_its_video_memory_was_seen_free(
    agent: Agent, nvml: RecordedNvml, slot: Waiting
) -> None:
    # not looked at yet
    agent._look_at(slot, time.monotonic())  # type: ignore[arg-type]
    assert slot.starts == 0
    nvml.running, nvml.used = {GPU: [(4711, "compute", 2 * GIB)]}, {GPU: 2 * GIB}
    agent._auditor.start()
    until(lambda: "4711" in str(agent._auditor.why_wait("slot")))
    agent._look_at(slot, time.monotonic())  # type: ignore[arg-type]
    assert slot.starts == 0, "somebody holds its memory"
    nvml.running, nvml.used = {}, {}
    until(lambda: agent._auditor.why_wait("slot") is None)
    agent._look_at(slot, time.monotonic())  # type: ignore[arg-type]
    assert slot.starts == 1


def test_a_slot_whose_class_is_below_its_wish_is_not_started(agent: Agent, slot: Waiting) -> None:
    agent._auditor.start()
    until(lambda: agent._auditor.why_wait("slot") is None)
    agent._seats._below["slot"] = "class C beside d, B is wished"
    agent._look_at(slot, time.monotonic())  # type: ignore[arg-type]
    assert slot.starts == 0
    agent._seats._below.clear()
    agent._look_at(slot, time.monotonic())  # type: ignore[arg-type]
    assert slot.starts == 1
