"""The spool: what has no answer is kept, what has one is gone, torn lines are no harm."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from farm.records import ArtifactRecord, AttemptReport, Cost, FrameFileRecord, FrameRecord, Split, TimeSplit
from farm.states import AttemptState
from workers.spool import Spool, read_unanswered, report_from_json

FILE = FrameFileRecord("a.png", "a" * 64, 10, 1, 1, ["R", "G", "B"], "uint8", "srgb", "png")
FRAME = FrameRecord(3, 1, [FILE], 1000.5, 0.25, 7, {"all_black": True})
REPORT = AttemptReport(
    task_id="task_1",
    epoch=2,
    attempt_id="att_1",
    state=AttemptState.FAILED,
    ended_at=1001.0,
    frames=[FRAME],
    artifacts=[ArtifactRecord("film.mp4", "b" * 64, 99, "video/mp4", {"fps": 24})],
    result={"x": [1, 2]},
    checkpoint="c" * 64,
    split=Split(31.5, 20.0),
    permanent=True,
    error_type="task-failed",
    error="it \ud800 broke",
    times=TimeSplit(1, 2, 3, 4, 5, 6),
    cost=Cost(slot_s=2.0, cpu_s=1.5, peak_rss=10),
    device={"kind": "cpu"},
)


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s" / "a.spool")
    spool.add_frame("task_1", 2, "att_1", FRAME)
    spool.add_report(REPORT)
    spool.sync()
    owed = read_unanswered(spool.path)
    assert [(f.task_id, f.epoch, f.attempt_id, f.frames) for f in owed.frames] == [
        ("task_1", 2, "att_1", [FRAME])
    ]
    assert owed.reports == [REPORT]


def test_a_report_of_a_slot_that_knew_nothing_of_splits_is_read() -> None:
    """The spool outlives an upgrade: a field that is missing is empty."""
    body = dataclasses.asdict(REPORT)
    del body["split"]
    assert report_from_json(json.loads(json.dumps(body))) == dataclasses.replace(REPORT, split=None)


def test_answered_records_are_not_owed(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    first = spool.add_frame("task_1", 2, "att_1", FRAME)
    spool.add_report(REPORT)
    spool.answered([first, 999])
    owed = read_unanswered(spool.path)
    assert not owed.frames
    assert len(owed.reports) == 1
    assert spool.open_count() == 1


def test_closing_a_fully_answered_spool_removes_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.answered([spool.add_report(REPORT)])
    spool.close()
    assert not spool.path.exists()
    kept = Spool(tmp_path / "b.spool")
    kept.add_report(REPORT)
    kept.close()
    assert kept.path.exists()


@pytest.mark.parametrize("cut", [1, 5, 40, 200])
def test_a_torn_last_line_costs_that_record_alone(tmp_path: Path, cut: int) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.add_report(REPORT)
    whole = spool.path.stat().st_size
    spool.add_report(REPORT)
    spool.path.open("r+b").truncate(whole + cut)
    assert len(read_unanswered(spool.path).reports) == 1


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    spool.add_report(REPORT)
    spool.add_report(REPORT)
    data = bytearray(spool.path.read_bytes())
    data[60] ^= 1
    spool.path.write_bytes(bytes(data) + b"\x00\xff garbage\n\n")
    assert len(read_unanswered(spool.path).reports) == 1


def test_a_grown_spool_with_everything_answered_is_emptied(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a.spool")
    numbers = []
    while spool.path.stat().st_size < 1 << 20:
        numbers.append(spool.add_report(REPORT))
    spool.answered(numbers)
    assert spool.path.stat().st_size < 1000
    spool.add_report(REPORT)
    assert len(read_unanswered(spool.path).reports) == 1
