"""A slot that is frozen leaves no lock behind: real processes that write, one stopped among many writes."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from farm.db.connect import Database
from workers import stillstand
from workers.control import AgentControl
from workers.processes import SlotProcess

REPOSITORY = Path(__file__).parents[3]
# writes all the time from two threads, as a slot's main thread and its desk do; a transaction lasts HOLD
WRITER = """
import sys, threading, time
from pathlib import Path
import sqlalchemy as sa
from farm.db.connect import Database
from workers.control import SlotControl
from workers.write_gate import WriteGate
control = SlotControl(Path(sys.argv[1]))
db = Database(sys.argv[2], gate=WriteGate(control))
def work():
    while True:
        with db.write() as conn:
            conn.execute(sa.text("UPDATE counts SET n = n + 1"))
            time.sleep(float(sys.argv[3]))
        control.beat()
        time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
work()
"""


class Writer:
    """What the handshake needs of a managed slot, with a real process that writes."""

    name = "writer"

    def __init__(self, folder: Path, hold_s: float) -> None:
        self.url = f"sqlite:///{folder / 'farm.sqlite3'}"
        self.db = Database(self.url)
        with self.db.write() as conn:
            conn.execute(sa.text("CREATE TABLE counts (n INTEGER)"))
            conn.execute(sa.text("INSERT INTO counts VALUES (0)"))
        self.control = AgentControl.create(folder / "control")
        self.process = SlotProcess(
            [sys.executable, "-c", WRITER, str(folder / "control"), self.url, str(hold_s)],
            {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
            folder / "output",
        )
        self.process.before_thaw = lambda seconds: self.keep_still(False)

    def keep_still(self, still: bool) -> None:
        self.control.order_still(still)

    def writes(self) -> bool:
        return self.control.writing() > 0

    def others_can_write(self, within_s: float) -> bool:
        """Whether somebody else gets SQLite's lock in that time."""
        other = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=within_s, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            return True
        except sqlite3.OperationalError:
            return False
        finally:
            other.close()

    def goes_on(self) -> bool:
        """Whether it comes to write again."""
        before = self.control.read().beat
        return _until(lambda: self.control.read().beat > before + 2)


@pytest.fixture
def writer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Writer]:
    made = Writer(tmp_path, request.param)
    try:
        assert _until(lambda: made.control.read().beat > 0), (tmp_path / "output").read_text()
        yield made
    finally:
        made.process.kill()
        made.process.collect()
        made.db.dispose()


@pytest.mark.parametrize("writer", [0.02], indirect=True)
def test_a_frozen_slot_holds_no_lock_wherever_it_was_stopped(writer: Writer) -> None:
    for moment in range(8):
        time.sleep(0.007 * moment)
        stillstand.freeze(_slots(writer))
        assert writer.process.frozen and not writer.writes()
        assert writer.others_can_write(2.0), f"locked out after freeze {moment}"
        writer.process.thaw()
        assert writer.goes_on()


@pytest.mark.parametrize("writer", [0.5], indirect=True)
def test_one_that_is_frozen_within_a_long_transaction_is_let_out_of_it(writer: Writer) -> None:
    began = time.monotonic()
    assert _until(lambda: writer.writes() and not writer.others_can_write(0))
    stillstand.freeze(_slots(writer))
    assert writer.process.frozen, "its neighbour comes first"
    assert time.monotonic() - began < 30
    assert writer.writes() and not writer.others_can_write(0.2), "this is what has to be bounded"

    def out() -> bool:
        stillstand.bring_out(_slots(writer))
        return not writer.writes()

    assert _until(out)
    assert writer.process.frozen
    assert writer.others_can_write(2.0)
    count = writer.control.read().beat
    stillstand.bring_out(_slots(writer))
    time.sleep(0.05)
    assert writer.control.read().beat == count, "one that is out is let be"
    writer.process.thaw()
    assert writer.goes_on()


def test_who_waits_for_the_lock_stands_before_the_gate(tmp_path: Path) -> None:
    """Another writer's long transaction must not keep a slot from being frozen."""
    seen: list[str] = []
    gate = SimpleNamespace(enter=lambda: seen.append("in"), leave=lambda: seen.append("out"))
    url = f"sqlite:///{tmp_path / 'farm.sqlite3'}"
    behind, other = Database(url, gate=gate), Database(url)

    def let_go_after_three() -> None:
        seen.append("in")
        if seen.count("in") == 3:
            held.__exit__(None, None, None)

    gate.enter = let_go_after_three
    held: Any = other.write()
    held.__enter__().execute(sa.text("CREATE TABLE t (n INTEGER)"))
    with behind.write() as conn:
        assert seen == ["in", "out", "in", "out", "in"]
        conn.execute(sa.text("INSERT INTO t VALUES (1)"))
    assert seen[-1] == "out"
    with pytest.raises(ZeroDivisionError), behind.write() as conn:
        conn.execute(sa.text("INSERT INTO t VALUES (2)"))
        raise ZeroDivisionError
    assert seen.count("in") == seen.count("out")
    with other.read() as conn:
        assert conn.scalars(sa.text("SELECT n FROM t")).all() == [1]
    behind.dispose()
    other.dispose()


def _slots(writer: Writer) -> Any:
    return [writer]


def _until(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.002)
    return False
