"""Where a slot sits: its cores, nice value and the environment that must stand before exec.

Today from ``farm.toml`` and defaults alone. ``gpu_pinning`` plans whole machines; once a node has a plan,
this is the one place where its answer for a slot (cores, memory nodes, device, environment) enters.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from workers.node_config import SlotConfig

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Placement:
    """What the keeper applies before exec, and what the slot is told of its device."""

    cpus: frozenset[int]
    nice: int
    environment: dict[str, str]
    device: dict[str, Any]


def place(slot: SlotConfig) -> Placement:
    """The placement of a slot."""
    cpus = slot.cpu_set()
    threads = slot.threads or len(cpus) or len(os.sched_getaffinity(0))
    device = dict(slot.device)
    device.setdefault("threads", threads)
    environment = dict.fromkeys(_THREAD_VARIABLES, str(threads))
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    # a CPU slot sees no GPU at all: no library of its may so much as open a neighbour's device
    environment["CUDA_VISIBLE_DEVICES"] = str(device.get("uuid", ""))
    environment |= slot.environment
    return Placement(cpus, slot.nice, environment, device)
