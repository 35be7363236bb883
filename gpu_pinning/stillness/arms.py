"""The parts of a run: arms of farm workers, and blocks of time in which one of them works.

Workers are started once and stopped by SIGSTOP in the blocks in which they are to do nothing, so that an
idle block differs from an arm in nothing but their work.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpu_pinning.stillness.crew import FarmWorker
from gpu_pinning.stillness.sources import Source
from gpu_pinning.stillness.statistics import Steps

SETTLE_S = 0.3
"""Left out at the beginning of each block: what the last one set in motion ends here."""


class Keeper(Protocol):
    """Who may stand between an arm and its workers: the guard."""

    def working(self, on: bool, crew: Sequence[FarmWorker]) -> None:
        """These workers begin to work, or end."""


@dataclass
class Block:
    """A stretch of time in which one thing was done, settled.

    ``steal``, ``busy`` and ``waited`` are shares of the time: what the hypervisor took from decode's CPUs,
    how busy they were, and how long decode was ready and had no core. ``None``: the machine does not say.
    """

    begin: float
    end: float
    durations: Steps
    steal: float | None
    busy: float | None = None
    waited: float | None = None
    work: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Units done and processor seconds spent, by pool."""


@dataclass
class Arm:
    """A named way to run the farm: its workers, and the guard if it is watched."""

    name: str
    workers: list[FarmWorker] = field(default_factory=list)
    keeper: Keeper | None = None

    def on(self, working: bool) -> None:
        """Let its workers work, or stop them."""
        if self.keeper is not None:
            self.keeper.working(working, self.workers)
            return
        for worker in self.workers:
            worker.run(working)


def run_block(source: Source, arm: Arm | None, seconds: float, cpus: Iterable[int]) -> Block:
    """One block: the arm's workers at work (``None``: nobody), ``seconds`` after it has settled."""
    workers = arm.workers if arm is not None else []
    if arm is not None:
        arm.on(True)
    try:
        time.sleep(SETTLE_S)
        before, waited, spent = cpu_times(cpus), source.waited_s(), [w.cpu_s() for w in workers]
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        after, waited_now, spent_now = cpu_times(cpus), source.waited_s(), [w.cpu_s() for w in workers]
    finally:
        if arm is not None:
            arm.on(False)
    work: dict[str, tuple[float, float]] = {}
    for worker, old, new in zip(workers, spent, spent_now, strict=True):
        units, used = work.get(worker.work.pool, (0.0, 0.0))
        work[worker.work.pool] = (units + worker.units(begin, end), used + new - old)
    return Block(
        begin,
        end,
        source.durations(begin, end),
        _share(before, after, 0),
        _share(before, after, 1),
        None if waited is None or waited_now is None else (waited_now - waited) / (end - begin),
        work,
    )


def cpu_times(cpus: Iterable[int]) -> tuple[int, int, int] | None:
    """Stolen, busy and all ticks of these CPUs so far; None where the kernel does not say."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    stolen = busy = total = 0
    try:
        for line in Path("/proc/stat").read_text().splitlines():
            words = line.split()
            if words and words[0] in wanted:
                ticks = [int(word) for word in words[1:9]]
                stolen += ticks[7]
                busy += sum(ticks) - ticks[3] - ticks[4] - ticks[7]
                total += sum(ticks)
    except (OSError, ValueError, IndexError):
        return None
    return (stolen, busy, total) if total else None


def _share(
    before: tuple[int, int, int] | None, after: tuple[int, int, int] | None, which: int
) -> float | None:
    if before is None or after is None or after[2] <= before[2]:
        return None
    return (after[which] - before[which]) / (after[2] - before[2])
