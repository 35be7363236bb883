"""The parts of a run: a decode load on its cores, farm workers in their fence, and blocks of time.

Workers are started once and stopped by SIGSTOP in the blocks in which they are to do nothing, so that an
idle block differs from an arm in nothing but their work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from gpu_pinning import procfs
from gpu_pinning.errors import PinningError
from gpu_pinning.fence import Fence
from gpu_pinning.guard.probe import Gap, ProbeOptions, StreamProbe
from gpu_pinning.guard.watch import served_model
from gpu_pinning.machine import Topology
from gpu_pinning.plan import SlotPlan
from gpu_pinning.stillness.stamps import StampReader
from gpu_pinning.stillness.statistics import Steps

_ROOT = Path(__file__).resolve().parents[2]
_START_S = 120.0
SETTLE_S = 0.3
"""Left out at the beginning of each block: what the last one set in motion ends here."""


class Source(Protocol):
    """Where decode steps come from."""

    def durations(self, begin: float, end: float) -> Steps:
        """Durations in seconds of the steps that ended between two moments (monotonic seconds)."""

    def pause(self, standing: bool) -> bool:
        """Make the load stand still, or go on; False where it is not ours to stop."""

    def spread(self, cpus: Iterable[int]) -> None:
        """Let every thread of the load run on these CPUs."""

    def close(self) -> None:
        """End it."""


def environment(threads: int, more: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment with thread counts for numeric libraries, and this package importable."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **dict.fromkeys(names, str(threads)), **(more or {}), "PYTHONPATH": path}


class DecodeProcess:
    """The built-in decode load in a process of its own on ``cpus``. Raises PinningError where it dies.

    ``command`` replaces it by another program that takes a stamp file as its last argument.
    """

    def __init__(
        self, form: str, cpus: Sequence[int], folder: Path, command: Sequence[str] | None = None
    ) -> None:
        stamps = folder / f"decode-{form}.stamps"
        argv = command or [sys.executable, "-m", "gpu_pinning.stillness.decode_load", form]
        self._log = folder / f"decode-{form}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*argv, str(stamps)],
                env=environment(1),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.stamps = stamps
        self.spread(cpus)
        self.reader = _await_stamps(self.process, stamps, self._log, f"decode ({form})")
        # libraries have started their threads by now
        self.spread(cpus)

    def durations(self, begin: float, end: float) -> Steps:
        """See :class:`Source`."""
        if self.process.poll() is not None:
            raise PinningError(f"the decode load ended: {_tail(self._log)}")
        return np.diff(np.frombuffer(self.reader.between(begin, end), dtype=np.float64))

    def pause(self, standing: bool) -> bool:
        """See :class:`Source`."""
        os.killpg(self.process.pid, signal.SIGSTOP if standing else signal.SIGCONT)
        return True

    def spread(self, cpus: Iterable[int]) -> None:
        """See :class:`Source`."""
        spread(self.process.pid, cpus)

    def close(self) -> None:
        """See :class:`Source`."""
        _end(self.process)


class DecodeServer:
    """A real server by URL, through the guard's own probe."""

    def __init__(self, url: str, model: str | None) -> None:
        name = model or served_model(url)
        if name is None:
            raise PinningError(f"{url} lists no model; name one")
        self._probe = StreamProbe(ProbeOptions(url, name, api_key=os.environ.get("FARM_NEIGHBOUR_KEY")))
        self._gaps: list[Gap] = []
        self._stop = threading.Event()
        self._probe.start()
        self._thread = threading.Thread(target=self._gather, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._gaps:
            if time.monotonic() > deadline:
                self.close()
                raise PinningError(f"no stream from {url}: {self._probe.error}")
            time.sleep(0.05)

    def _gather(self) -> None:
        while not self._stop.wait(0.05):
            self._gaps += self._probe.take()

    def durations(self, begin: float, end: float) -> Steps:
        """See :class:`Source`."""
        time.sleep(0.1)
        return np.array([gap.seconds for gap in list(self._gaps) if begin <= gap.at < end])

    def pause(self, standing: bool) -> bool:
        """Not ours to stop."""
        return False

    def spread(self, cpus: Iterable[int]) -> None:
        """Not ours to move."""

    def close(self) -> None:
        """See :class:`Source`."""
        self._stop.set()
        self._probe.stop()


@dataclass(frozen=True, slots=True)
class Work:
    """One worker to be: a pool's load on CPUs. ``slot`` gives its fence; without one it is not fenced."""

    pool: str
    cpus: tuple[int, ...]
    threads: int
    slot: SlotPlan | None = None


class FarmWorker:
    """A farm load in a process of its own."""

    def __init__(self, work: Work, name: str, machine: Topology | None, folder: Path) -> None:
        self.work = work
        self.fence: Fence | None = None
        self.fenced_by = "nothing"
        stamps = folder / f"{name}.stamps"
        self._log = folder / f"{name}.log"
        argv = [sys.executable, "-m", "gpu_pinning.stillness.farm_load", work.pool, str(stamps)]
        env = environment(work.threads)
        if work.slot is not None and machine is not None:
            self.fence = Fence.create(machine, work.slot, folder)
            self.fence.apply()
            env = environment(work.threads, self.fence.environment())
            argv = self.fence.command(argv)
            self.fenced_by = work.slot.fence.cpus
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        if self.fence is not None:
            self.fence.await_launch(self.process.pid)
        else:
            spread(self.process.pid, work.cpus)
        self.reader = _await_stamps(self.process, stamps, self._log, f"{work.pool} ({name})")
        if self.fence is None:
            spread(self.process.pid, work.cpus)

    def run(self, on: bool) -> None:
        """Let it work, or stop it where it stands."""
        number = signal.SIGCONT if on else signal.SIGSTOP
        for pid in procfs.family(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def units(self, begin: float, end: float) -> int:
        """Units of work done between two moments."""
        return len(self.reader.between(begin, end))

    def close(self) -> None:
        """End it and take its fence down."""
        self.run(True)
        _end(self.process)
        if self.fence is not None:
            with contextlib.suppress(PinningError):
                self.fence.remove()


@dataclass
class Block:
    """A stretch of time in which one thing was done, settled."""

    begin: float
    end: float
    durations: Steps
    steal: float | None


@dataclass
class Arm:
    """A named way to run the farm: its workers, and whether decode leaves its cores too."""

    name: str
    workers: list[FarmWorker] = field(default_factory=list)
    everywhere: tuple[int, ...] = ()

    def on(self, working: bool) -> None:
        """Let its workers work, or stop them."""
        for worker in self.workers:
            worker.run(working)


def run_block(source: Source, arm: Arm | None, seconds: float, cpus: Iterable[int]) -> Block:
    """One block: the arm's workers at work (``None``: nobody), ``seconds`` after it has settled."""
    if arm is not None:
        arm.on(True)
    try:
        time.sleep(SETTLE_S)
        begin, before = time.monotonic(), cpu_times(cpus)
        time.sleep(seconds)
        end, after = time.monotonic(), cpu_times(cpus)
    finally:
        if arm is not None:
            arm.on(False)
    return Block(begin, end, source.durations(begin, end), _steal(before, after))


def cpu_times(cpus: Iterable[int]) -> tuple[int, int] | None:
    """Stolen and total ticks of these CPUs so far; None where the kernel does not say."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    stolen = total = 0
    try:
        for line in Path("/proc/stat").read_text().splitlines():
            words = line.split()
            if words and words[0] in wanted:
                ticks = [int(word) for word in words[1:9]]
                stolen += ticks[7]
                total += sum(ticks)
    except (OSError, ValueError, IndexError):
        return None
    return (stolen, total) if total else None


def _steal(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def spread(pid: int, cpus: Iterable[int]) -> None:
    """Let every thread of a process and its descendants run on these CPUs."""
    chosen = set(cpus)
    for member in procfs.family(pid) or [pid]:
        for tid in procfs.threads(member) or [member]:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(tid, chosen)


def _await_stamps(process: subprocess.Popen[bytes], stamps: Path, log: Path, what: str) -> StampReader:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PinningError(f"{what} ended with {process.returncode}: {_tail(log)}")
        if stamps.exists() and stamps.stat().st_size:
            reader = StampReader(stamps)
            if len(reader) > 1:
                return reader
        time.sleep(0.02)
    _end(process)
    raise PinningError(f"{what} did no work within {_START_S:g} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:].strip() or "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
