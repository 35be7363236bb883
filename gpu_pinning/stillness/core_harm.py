"""What busy cores do to one that nobody shares: the part of harm that no fence inside this machine can mend.

On a virtual machine a core may be one thread of a real core, whose other thread is another of the guest's
cores or somebody else's; the guest is seldom told. So it is measured: a loop of plain interpreter work, as
launching kernels is, timed on one of decode's cores while others are idle, while each of them alone works,
and while all of the farm's do, on arithmetic in registers, then on memory. What arithmetic costs is the
real core's, its clock's or the hypervisor's; what memory costs beyond that is the bandwidth's or the cache's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_pinning.machine import Topology
from gpu_pinning.stillness.launching import environment

SAME_CORE = 1.15
"""A core that slows the loop this much by itself is taken for a thread of the same real core."""
_LOOP = 20_000
_BEGIN = "import ctypes, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"  # ends with its parent
_SPIN = _BEGIN + "print('ready', flush=True); x = 1\nwhile True:\n    x = (x * 3) & 1023\n"
_MEMORY = (
    _BEGIN + "import numpy as np\na = np.ones(1 << 22); b = np.empty_like(a)\n"
    "print('ready', flush=True)\nwhile True:\n    np.copyto(b, a)\n"
)


def measure(decode: Sequence[int], farm: Sequence[int], look_s: float = 0.15) -> dict[str, Any]:
    """Ratios of the loop's median time on decode's first core to its time with all others idle.

    ``beside_one``: by CPU. Takes about ``look_s`` for each other CPU of the two, and a second or two more.
    The calling thread's affinity is as before at the end.
    """
    home, others = decode[0], [cpu for cpu in (*decode[1:], *farm) if cpu != decode[0]]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {home})
    try:
        _loop_s(2 * look_s)
        alone = [_loop_s(2 * look_s)]
        beside_one: dict[str, float] = {}
        with _busy(_SPIN, others[:1]) as spinners:
            for cpu in others:
                for pid in spinners:
                    os.sched_setaffinity(pid, {cpu})
                beside_one[str(cpu)] = _loop_s(look_s)
        alone.append(_loop_s(2 * look_s))
        with _busy(_SPIN, farm):
            arithmetic = _loop_s(4 * look_s)
        alone.append(_loop_s(2 * look_s))
        with _busy(_MEMORY, farm):
            memory = _loop_s(4 * look_s)
        alone.append(_loop_s(2 * look_s))
    finally:
        os.sched_setaffinity(0, before)
    normal = statistics.median(alone)
    one = {cpu: round(seconds / normal, 4) for cpu, seconds in beside_one.items()}
    return {
        "cpu": home,
        "loop_us": round(normal * 1e6, 2),
        "alone_spread": round(max(alone) / min(alone), 4),
        "beside_one": one,
        "same_real_core": [int(cpu) for cpu, ratio in one.items() if ratio >= SAME_CORE],
        "farm_on_arithmetic": round(arithmetic / normal, 4),
        "farm_on_memory": round(memory / normal, 4),
    }


def with_real_cores(machine: Topology, stride: int) -> Topology:
    """The machine with CPU n and CPU n + ``stride`` as threads of one core, which a hypervisor may hide.

    Then no core is given to decode and to the farm. Raises :class:`ValueError` where that leaves CPUs over,
    or where the machine tells its threads itself.
    """
    cores = {cpu: core for core in machine.cores for cpu in core.cpus}
    if len(cores) != len(machine.cores):
        raise ValueError("this machine tells itself which CPUs are threads of one core")
    firsts = [cpu for cpu in sorted(cores) if stride > 0 and cpu // stride % 2 == 0]
    if {cpu + offset for cpu in firsts for offset in (0, stride)} != set(cores):
        raise ValueError(f"a stride of {stride} does not pair CPUs {min(cores)} to {max(cores)}")
    pairs = tuple(cores[cpu].model_copy(update={"cpus": (cpu, cpu + stride)}) for cpu in firsts)
    return machine.model_copy(update={"cores": pairs})


def in_words(found: dict[str, Any]) -> str:
    """The findings in a sentence, for the log of a run."""
    shared = found["same_real_core"]
    text = (
        f"a loop on CPU {found['cpu']} takes {found['farm_on_arithmetic']:.2f} x as long while the farm's "
        f"cores do arithmetic, {found['farm_on_memory']:.2f} x while they copy memory"
    )
    most = max(found["beside_one"].items(), key=lambda item: item[1], default=("none", 1.0))
    text += f"; the one other core that slows it most is CPU {most[0]}, {most[1]:.2f} x"
    return text + (f"; threads of the same real core: {shared}" if shared else "")


def _loop_s(seconds: float) -> float:
    """Median seconds of one loop, over this time."""
    times = []
    ends = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < ends:
        x = 1
        for _ in range(_LOOP):
            x = (x * 3) & 1023
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


@contextlib.contextmanager
def _busy(program: str, cpus: Sequence[int]) -> Iterator[list[int]]:
    """That program on each of these CPUs, once all are at work; their pids."""
    children: list[subprocess.Popen[str]] = []
    try:
        for cpu in cpus:
            child = subprocess.Popen(
                [sys.executable, "-c", program],
                env=environment(1, {"CUDA_VISIBLE_DEVICES": ""}),
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            children.append(child)
            os.sched_setaffinity(child.pid, {cpu})
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        yield [child.pid for child in children]
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            child.wait(10)
            if child.stdout is not None:
                child.stdout.close()
