"""What the control file costs: reading the word, a whole check, and how soon a word is seen elsewhere.

``python -m tests.benchmarks.control``
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any, cast

from farm.records import ClaimedTask
from tests.benchmarks.machine import Figure, judge
from workers.control import AgentControl, Command, SlotControl, unpack
from workers.holding import Obedience
from workers.phases import PhaseClock

READS = 1_000_000
WORDS = 300
MOST_CHECK_NS = 1_000.0


def _echo(path: str) -> None:
    """Obey each word at once, by spinning, until the one that cancels."""
    slot = SlotControl(Path(path))
    seen = 0
    while True:
        word = slot.word()
        if word != seen:
            slot.obeyed(word)
            seen = word
            if unpack(word)[2] is Command.CANCEL:
                return


def round_trip_us(path: Path) -> float:
    """Median microseconds from a word said to its echo read, between two processes that spin."""
    agent = AgentControl.create(path)
    other = multiprocessing.get_context("spawn").Process(target=_echo, args=(str(path),))
    other.start()
    times = []
    for serial in range(1, WORDS + 1):
        started = time.perf_counter()
        agent.command(serial, Command.RUN)
        while unpack(agent.read().obeyed)[0] != serial:
            pass
        times.append(time.perf_counter() - started)
    agent.command(1, Command.CANCEL)
    other.join()
    return sorted(times[10:])[len(times[10:]) // 2] * 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "control"
        AgentControl.create(path)
        slot = SlotControl(path)
        slot.begin(7)
        values: dict[str, Any] = {"serial": 7, "timeout_s": None, "no_progress_s": 1.0}
        task = cast(ClaimedTask, type("Task", (), values)())
        check = Obedience(slot, task, PhaseClock()).check
        word_ns = min(timeit.repeat(slot.word, number=READS, repeat=3)) / READS * 1e9
        check_ns = min(timeit.repeat(check, number=READS, repeat=3)) / READS * 1e9
        trip_us = round_trip_us(Path(folder) / "other")
    print(f"read the word {word_ns:.0f} ns, word said to echo read {trip_us:.0f} us")
    return judge([Figure("host.check()", check_ns, "ns", MOST_CHECK_NS)])


if __name__ == "__main__":
    sys.exit(main())
