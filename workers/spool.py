"""The spool: verified frames and finish reports, durable on the node's own disk until the database answers.

One file per process life of a slot, one line per record: CRC-32 in hex, a space, JSON. The slot appends; the
slot itself, or the agent once the slot is dead, replays what has no answer. Every replay is idempotent: the
database counts a record only while its epoch matches, and twice is once. A torn last line (the machine went
down in the middle of a write) is ignored: nothing was answered on the strength of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.records import ArtifactRecord, AttemptReport, Cost, FrameFileRecord, FrameRecord, Split, TimeSplit
from farm.states import AttemptState

_COMPACT_ABOVE = 1 << 20


@dataclass(slots=True)
class SpooledFrames:
    """Frames of one attempt whose rows the database has not confirmed."""

    task_id: str
    epoch: int
    attempt_id: str
    frames: list[FrameRecord] = field(default_factory=list)


@dataclass(slots=True)
class Unanswered:
    """All that a spool file holds without an answer, oldest first."""

    frames: list[SpooledFrames] = field(default_factory=list)
    reports: list[AttemptReport] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.frames or self.reports)


class Spool:
    """A slot's spool file, open for appending. Safe to use from the slot's threads."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()
        self._next = 0
        self._open: set[int] = set()
        self._size = 0

    def add_frame(self, task_id: str, epoch: int, attempt_id: str, frame: FrameRecord) -> int:
        """Append a verified frame; gives the number to answer with. Not yet synced."""
        body = {"task": task_id, "epoch": epoch, "attempt": attempt_id, "frame": dataclasses.asdict(frame)}
        return self._append("frame", body)

    def add_report(self, report: AttemptReport) -> int:
        """Append how an attempt ended; gives the number to answer with. Not yet synced."""
        return self._append("report", dataclasses.asdict(report))

    def sync(self) -> None:
        """Wait until all that was appended survives a power cut."""
        os.fsync(self._fd)

    def answered(self, numbers: Iterable[int]) -> None:
        """The database has answered these; a spool with nothing open is emptied once it has grown."""
        with self._lock:
            numbers = [number for number in numbers if number in self._open]
            if not numbers:
                return
            self._open.difference_update(numbers)
            if not self._open and self._size > _COMPACT_ABOVE:
                os.ftruncate(self._fd, 0)
                self._size = 0
                return
            self._write({"n": self._take_number(), "t": "answered", "of": numbers})

    def open_count(self) -> int:
        """How many records wait for an answer."""
        return len(self._open)

    def close(self) -> None:
        """Close; an empty or fully answered file is removed."""
        with self._lock:
            if not self._open:
                self.path.unlink(missing_ok=True)
            os.close(self._fd)

    def _append(self, kind: str, body: dict[str, Any]) -> int:
        with self._lock:
            number = self._take_number()
            self._write({"n": number, "t": kind, "d": body})
            self._open.add(number)
            return number

    def _take_number(self) -> int:
        self._next += 1
        return self._next

    def _write(self, record: dict[str, Any]) -> None:
        line = _encode(record)
        written = os.write(self._fd, line)
        self._size += written
        if written != len(line):
            # a full disk took half of the line: end it, so that the next record stands on a line of its own
            os.write(self._fd, b"\n")
            raise OSError(28, f"the spool {self.path} is full")


def read_unanswered(path: Path) -> Unanswered:
    """What a spool file still owes the database; lines that do not check are left out."""
    open_records: dict[int, dict[str, Any]] = {}
    for record in _records(path):
        if record["t"] == "answered":
            for number in record["of"]:
                open_records.pop(number, None)
        else:
            open_records[record["n"]] = record
    found = Unanswered()
    by_attempt: dict[str, SpooledFrames] = {}
    for record in open_records.values():
        body = record["d"]
        if record["t"] == "report":
            found.reports.append(report_from_json(body))
            continue
        owner = by_attempt.get(body["attempt"])
        if owner is None:
            owner = SpooledFrames(body["task"], body["epoch"], body["attempt"])
            by_attempt[body["attempt"]] = owner
            found.frames.append(owner)
        owner.frames.append(frame_from_json(body["frame"]))
    return found


def frame_from_json(data: dict[str, Any]) -> FrameRecord:
    """A frame record from its JSON form."""
    files = [FrameFileRecord(**file) for file in data["files"]]
    return FrameRecord(**{**data, "files": files})


def report_from_json(data: dict[str, Any]) -> AttemptReport:
    """An attempt report from its JSON form."""
    return AttemptReport(
        **{
            **data,
            "state": AttemptState(data["state"]),
            "frames": [frame_from_json(frame) for frame in data["frames"]],
            "artifacts": [ArtifactRecord(**artifact) for artifact in data["artifacts"]],
            "split": Split(**data["split"]) if data.get("split") else None,
            "times": TimeSplit(**data["times"]),
            "cost": Cost(**data["cost"]),
        }
    )


def _encode(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().split(b"\n"):
        checksum, _, body = line.partition(b" ")
        if len(checksum) != 8 or not body:
            continue
        try:
            if int(checksum, 16) == zlib.crc32(body):
                yield json.loads(body)
        except ValueError:
            continue
