"""What a report says of the machine that it was made on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from gpu_pinning import files, topology
from gpu_pinning.errors import TopologyError
from gpu_pinning.machine import Topology
from gpu_pinning.stillness.seating import Seats


def read_machine() -> Topology | None:
    """This machine; None where it cannot be read."""
    try:
        return topology.read()
    except TopologyError:
        return None


def host_facts(machine: Topology | None, seats: Seats) -> dict[str, Any]:
    """Processor, kernel, hypervisor and GPUs."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "processor": model,
        "cpus": len(seats.everyone),
        "kernel": platform.release(),
        "autogroup": _autogroup(),
        "hypervisor": None if machine is None or machine.bare_metal else machine.hypervisor or "not known",
        "gpus": [gpu.name for gpu in machine.gpus] if machine else [],
    }


def _autogroup() -> bool | None:
    """Whether the kernel's scheduler weighs sessions (sched(7)); None where it does not say."""
    told = files.read(Path("/proc/sys/kernel/sched_autogroup_enabled"))
    return None if told is None else told.strip() == "1"
