"""The farm's side of a run: workers in their fence, or without one, started once, stopped between blocks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpu_pinning import procfs
from gpu_pinning.errors import PinningError
from gpu_pinning.fence import Fence
from gpu_pinning.machine import Topology
from gpu_pinning.plan import SlotPlan
from gpu_pinning.stillness.launching import await_stamps, cpu_s, end, environment, spread
from gpu_pinning.stillness.stamps import StampReader


@dataclass(frozen=True, slots=True)
class Work:
    """One worker to be: a pool's load on CPUs. ``slot`` gives its fence; without one it is not fenced.

    ``copies`` are processes of it, each in a session of its own, so that no group of the kernel's scheduler
    (autogroup, sched(7)) makes one small load of them.
    """

    pool: str
    cpus: tuple[int, ...]
    threads: int
    slot: SlotPlan | None = None
    copies: int = 1


class FarmWorker:
    """A farm load in a process, or several, of its own."""

    def __init__(
        self,
        work: Work,
        name: str,
        machine: Topology | None,
        folder: Path,
        picture: Path | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """``picture``: where it keeps its last picture, for whoever watches live.

        With ``wait=False`` it is only started: :meth:`ready` waits until it works.
        """
        self.work = work
        self.fence: Fence | None = None
        self.fenced_by = "nothing"
        self.name = name
        files = [folder / f"{name}.stamps"]
        files += [Path(f"{files[0]}.{number}") for number in range(1, work.copies)]
        self._files = files
        self._log = folder / f"{name}.log"
        argv = [sys.executable, "-m", "gpu_pinning.stillness.farm_load", work.pool, str(files[0])]
        env = environment(work.threads, {"STILLNESS_COPIES": str(work.copies)})
        if picture is not None:
            env["STILLNESS_PICTURE"] = str(picture)
        if work.slot is not None and machine is not None:
            self.fence = Fence.create(machine, work.slot, folder)
            self.fence.apply()
            env |= self.fence.environment()
            argv = self.fence.command(argv)
            self.fenced_by = work.slot.fence.cpus
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, start_new_session=True)
        self.readers: list[StampReader] = []
        self._pids: list[int] = []
        if self.fence is None:
            spread(self.process.pid, work.cpus)
        if wait:
            self.ready()

    def ready(self) -> None:
        """Wait until it works. Raises :class:`PinningError`."""
        if self.fence is not None:
            self.fence.await_launch(self.process.pid)
        what = f"{self.work.pool} ({self.name})"
        self.readers = await_stamps(self.process, self._files, self._log, what)
        if self.fence is None:
            spread(self.process.pid, self.work.cpus)
        self._pids = procfs.family(self.process.pid)

    def pids(self) -> list[int]:
        """Its processes, as they were when it had begun to work."""
        return list(self._pids)

    def run(self, on: bool) -> None:
        """Let it work, or stop it where it stands."""
        number = signal.SIGCONT if on else signal.SIGSTOP
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def units(self, begin: float, end: float) -> float:
        """Units of work done between two moments; see :func:`units_between`."""
        return sum(units_between(reader, begin, end) for reader in self.readers)

    def cpu_s(self) -> float:
        """Processor seconds so far."""
        return cpu_s(self._pids)

    def close(self) -> None:
        """End it and take its fence down."""
        end(self.process)
        if self.fence is not None:
            with contextlib.suppress(PinningError):
                self.fence.remove()


def units_between(reader: StampReader, begin: float, end: float) -> float:
    """Units between two moments, parts of units included: a unit that spans a moment counts by time.

    A block of two seconds holds few units of a slow pool, and whole ones would be out by one.
    """
    inside = reader.between(begin, end)
    if len(inside) < 2:
        return float(len(inside))
    usual = (inside[-1] - inside[0]) / (len(inside) - 1)
    # what a unit at the edge got done inside is not known; no more than one unit's worth
    edges = min(1.0, (inside[0] - begin) / usual) + min(1.0, (end - inside[-1]) / usual)
    return len(inside) - 1 + edges
