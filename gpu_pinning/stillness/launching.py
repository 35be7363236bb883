"""Starting, finding and ending the processes of a run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpu_pinning import actuator, procfs
from gpu_pinning.errors import FenceError, PinningError
from gpu_pinning.stillness.stamps import StampReader

_ROOT = Path(__file__).resolve().parents[2]
_TICK = os.sysconf("SC_CLK_TCK")
START_S = 120.0


def environment(threads: int, more: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment with thread counts for numeric libraries, and this package importable."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, **dict.fromkeys(names, str(threads)), **(more or {}), "PYTHONPATH": path}


@contextlib.contextmanager
def on_cpus(cpus: Iterable[int]) -> Iterator[None]:
    """This thread, and what it starts, on these CPUs: counting is not to disturb what is counted."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus) or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def spread(pid: int, cpus: Iterable[int]) -> None:
    """Let every thread of a process and its descendants run on these CPUs."""
    chosen = set(cpus)
    for member in procfs.family(pid) or [pid]:
        for tid in procfs.threads(member) or [member]:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(tid, chosen)


def on_gpu(uuid: str | None) -> dict[str, str]:
    """What makes this GPU the only one that a process sees; nothing to set without one.

    By UUID: CUDA numbers GPUs by speed, NVML by their place on the bus.
    """
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": uuid} if uuid else {}


def await_stamps(
    process: subprocess.Popen[bytes], files: Sequence[Path], log: Path, what: str
) -> list[StampReader]:
    """Readers of all these files, once each has two stamps. Raises PinningError where that never comes."""
    deadline = time.monotonic() + START_S
    readers: list[StampReader] = []
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PinningError(f"{what} ended with {process.returncode}: {tail(log)}")
        if len(readers) < len(files):
            file = files[len(readers)]
            if file.exists() and file.stat().st_size and len(reader := StampReader(file)) > 1:
                readers.append(reader)
                continue
        else:
            return readers
        time.sleep(0.02)
    end(process)
    raise PinningError(f"{what} did no work within {START_S:g} s: {tail(log)}")


def tail(log: Path) -> str:
    """The end of a log, for errors."""
    return log.read_text(errors="replace")[-1500:].strip() or "it said nothing"


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a process and all that it started."""
    with contextlib.suppress(FenceError):
        actuator.kill_family(process.pid)
    process.wait(10)


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds of these processes so far."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICK


def waited_s(pid: int) -> float | None:
    """Seconds that a process's threads were ready to run and had no core (proc/PID/task/*/schedstat).

    ``None`` where the kernel does not say.
    """
    waited = 0
    for tid in procfs.threads(pid):
        try:
            waited += int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_text().split()[1])
        except FileNotFoundError:
            if not Path(f"/proc/{pid}/schedstat").exists():
                return None
        except (OSError, ValueError, IndexError):
            return None
    return waited / 1e9


def held_by(pids: Iterable[int]) -> dict[str, object]:
    """What holds these processes, as the kernel says now: niceness, CPUs, policies, number of sessions."""
    nice, cpus, policies, sessions = set(), set(), set(), set()
    for pid in pids:
        with contextlib.suppress(OSError):
            nice.add(os.getpriority(os.PRIO_PROCESS, pid))
            cpus |= os.sched_getaffinity(pid)
            policies.add(os.sched_getscheduler(pid))
            sessions.add(os.getsid(pid))
    return {
        "nice": sorted(nice),
        "cpus": sorted(cpus),
        "policies": sorted(policies),
        "sessions": len(sessions),
    }
