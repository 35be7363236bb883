"""The control file: words that cannot hit the wrong attempt, whole readings, stated cost."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from workers.control import MAX_SERIAL, SIZE, AgentControl, Command, SlotControl, pack, unpack


def test_word_has_the_documented_layout() -> None:
    assert pack(0x123456789ABC, Command.PARK, 50) == 0x123456789ABC_32_03
    assert unpack(0x123456789ABC_32_03) == (0x123456789ABC, 50, Command.PARK)


@pytest.mark.parametrize(("serial", "duty"), [(-1, 50), (MAX_SERIAL + 1, 50), (1, 0), (1, 101)])
def test_word_refuses_what_does_not_fit(serial: int, duty: int) -> None:
    with pytest.raises(ValueError, match=r"48 bits|percentage"):
        pack(serial, Command.RUN, duty)


def test_unknown_command_reads_as_run() -> None:
    assert unpack(7 << 16 | 100 << 8 | 200) == (7, 100, Command.RUN)


def test_agent_reads_what_the_slot_says(tmp_path: Path) -> None:
    agent = AgentControl.create(tmp_path / "a.control")
    slot = SlotControl(tmp_path / "a.control")
    slot.hello(4321)
    before = time.monotonic()
    slot.begin(MAX_SERIAL)
    slot.beat()
    slot.progressed(0.25)
    slot.held(1.5)
    slot.groups([11, 12])
    slot.note("frame 3 \N{SNOWMAN}")
    reading = agent.read()
    assert (reading.pid, reading.serial, reading.beat, reading.fraction) == (4321, MAX_SERIAL, 1, 0.25)
    assert before <= reading.began_at <= reading.progressed_at <= time.monotonic()
    assert reading.held_s == pytest.approx(1.5)
    assert reading.groups == (11, 12)
    assert agent.note() == "frame 3 \N{SNOWMAN}"


def test_frozen_time_belongs_to_the_attempt_that_was_frozen(tmp_path: Path) -> None:
    agent = AgentControl.create(tmp_path / "a.control")
    slot = SlotControl(tmp_path / "a.control")
    assert slot.frozen_s(7) == 0.0
    agent.frozen(7, 2.5)
    assert slot.frozen_s(7) == pytest.approx(2.5)
    assert slot.frozen_s(8) == 0.0, "the next attempt was not frozen"


def test_a_new_attempt_starts_with_clean_figures(tmp_path: Path) -> None:
    agent = AgentControl.create(tmp_path / "a.control")
    slot = SlotControl(tmp_path / "a.control")
    slot.begin(1)
    slot.progressed(0.9)
    slot.held(3)
    slot.groups([5])
    slot.note("old")
    slot.end()
    assert agent.read().serial == 0
    slot.begin(2)
    reading = agent.read()
    assert (reading.serial, reading.fraction, reading.held_s, reading.groups) == (2, 0.0, 0.0, ())
    assert agent.note() == ""


def test_long_note_is_cut_and_broken_text_shown(tmp_path: Path) -> None:
    agent = AgentControl.create(tmp_path / "a.control")
    slot = SlotControl(tmp_path / "a.control")
    slot.note("\N{SNOWMAN}" * 1000)
    assert agent.note().startswith("\N{SNOWMAN}" * 100)
    assert len(agent.note().encode()) <= 500


def test_file_of_another_size_or_beginning_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x" * 10)
    (tmp_path / "wrong").write_bytes(bytes(SIZE))
    with pytest.raises(ValueError, match="not a control file"):
        SlotControl(tmp_path / "short")
    with pytest.raises(ValueError, match="not a control file"):
        SlotControl(tmp_path / "wrong")


def test_creating_again_leaves_old_readers_their_file(tmp_path: Path) -> None:
    AgentControl.create(tmp_path / "a.control")
    old = SlotControl(tmp_path / "a.control")
    new = AgentControl.create(tmp_path / "a.control")
    new.command(5, Command.CANCEL)
    assert old.word() == 0


def _flip(path: str, seconds: float) -> None:
    slot = AgentControl(Path(path))
    until = time.monotonic() + seconds
    serial = 0
    while time.monotonic() < until:
        serial = (serial + 0x0000_0101_0101) & MAX_SERIAL
        slot.command(serial, Command.PARK if serial & 1 else Command.RUN, 100 if serial & 1 else 1)


def test_no_word_is_torn_between_processes(tmp_path: Path) -> None:
    AgentControl.create(tmp_path / "a.control")
    slot = SlotControl(tmp_path / "a.control")
    writer = multiprocessing.get_context("spawn").Process(
        target=_flip, args=(str(tmp_path / "a.control"), 1.0)
    )
    writer.start()
    seen = set()
    while writer.is_alive():
        for _ in range(1000):
            word = slot.word()
            if word:
                serial, duty, command = unpack(word)
                assert (duty, command) == ((100, Command.PARK) if serial & 1 else (1, Command.RUN))
                seen.add(word)
    writer.join()
    assert len(seen) > 10


def test_a_slot_that_is_to_end_stays_told_so_whether_or_not_it_may_claim(tmp_path: Path) -> None:
    agent = AgentControl.create(tmp_path / "a.control")
    slot = SlotControl(tmp_path / "a.control")
    agent.order_wait(True)
    assert (slot.stopping(), slot.waiting()) == (False, True)
    agent.order_stop()
    assert (slot.stopping(), slot.waiting()) == (True, True)
    agent.order_wait(False)
    assert (slot.stopping(), slot.waiting()) == (True, False)
