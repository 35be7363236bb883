"""How long topology and plan take on the 8-GPU, 256-core recording: ``python -m tests.benchmarks.placement``.

Prints each time, its bound, and their ratio; ends with 1 where a bound is passed. Each figure is the median
of several runs. The topology is read from a sysfs tree written from the recording, cgroup rights included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gpu_pinning import Fence, audit_slot, procfs, rights, topology
from gpu_pinning.machine import Topology
from gpu_pinning.placement import make_plan
from gpu_pinning.wishes import Wishes
from tests.unit.gpu_pinning.trees import RECORDED, RecordedNvml, recorded, write_tree

TOPOLOGY_S, PLAN_S, AUDIT_S = 0.300, 0.050, 0.100
AUDIT_THREADS = 32
BUSY = "\n".join(
    f'[[neighbours]]\nname = "n{i}"\nrole = "{role}"\ngpus = ["{pci}"]\ncpus = "{cpus}"'
    for i, (pci, role, cpus) in enumerate(
        [
            ("19:00.0", "decode", "0-15,256-271"),
            ("1a:00.0", "decode", "16-31,272-287"),
            ("39:00.0", "prefill", "32-47,288-303"),
            ("3a:00.0", "decode", "48-63,304-319"),
        ]
    )
)


def least(work: Callable[[], object], runs: int = 7) -> float:
    """Least wall time of ``work`` in seconds."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def audit_s() -> float:
    """Seconds of one audit of a real slot with many threads, the walk over /proc included."""
    machine = topology.read()
    wish = '[[slots]]\nname = "t"\npools = ["render"]\ncores = 1'
    with tempfile.TemporaryDirectory() as folder:
        fence = Fence.create(machine, make_plan(machine, Wishes.parse(wish)).slot("t"), Path(folder))
        fence.apply()
        code = "import threading, time\nfor _ in range(%d):\n threading.Timer(60, int).start()"
        child = subprocess.Popen(
            fence.command([sys.executable, "-c", code % (AUDIT_THREADS - 1)]),
            env={**os.environ, **fence.environment()},
        )
        try:
            fence.await_launch(child.pid)
            while len(list(Path(f"/proc/{child.pid}/task").iterdir())) < AUDIT_THREADS:
                time.sleep(0.01)
            return least(lambda: audit_slot(fence, child.pid, procfs.all_processes()))
        finally:
            child.kill()
            child.wait()
            fence.remove()


def main() -> int:
    """Measure, print, and judge."""
    machine = recorded("hgx-8gpu")
    rows: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_tree(machine, Path(folder))
        module = RecordedNvml(machine)

        def read_all() -> None:
            rights.probe(rights.own_hierarchies())
            topology.read(Path(folder), module, machine.cgroups, machine.device_nodes, machine.device_fence)

        rows.append(("topology from sysfs, with cgroup trials", least(read_all, 5), TOPOLOGY_S))
    rows.append(("topology of this machine", least(topology.read, 5), TOPOLOGY_S))
    rows.append((f"audit of a slot of {AUDIT_THREADS} threads", audit_s(), AUDIT_S))
    text = (RECORDED / "hgx-8gpu.json").read_text()
    rows.append(("topology from the recording", least(lambda: Topology.parse(text)), TOPOLOGY_S))
    rows.append(("plan without wishes (120 slots)", least(lambda: make_plan(machine)), PLAN_S))
    wishes = Wishes.parse(BUSY)
    rows.append(("plan beside four neighbours", least(lambda: make_plan(machine, wishes)), PLAN_S))
    for name, seconds, bound in rows:
        print(f"{name:42} {seconds * 1e3:8.1f} ms  bound {bound * 1e3:4.0f} ms  ratio {seconds / bound:.2f}")
    return int(any(seconds > bound for _, seconds, bound in rows))


if __name__ == "__main__":
    sys.exit(main())
