"""The machine as it would be without slots that run already: their GPUs are free to be planned anew."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from gpu_pinning import procfs
from gpu_pinning.machine import Topology
from gpu_pinning.plan import SlotPlan
from gpu_pinning.procfs import PROC


def without_slots(machine: Topology, slots: Mapping[str, SlotPlan], pids: Collection[int]) -> Topology:
    """``machine`` without what ``slots`` (by name), whose processes are ``pids``, have in use.

    A stranger on one of their GPUs stays one.
    """
    ours = {uuid for slot in slots.values() for uuid in slot.gpus}
    gpus = []
    for gpu in machine.gpus:
        if gpu.uuid in ours and gpu.processes is not None:
            others = tuple(process for process in gpu.processes if process.pid not in pids)
            used = 0 if len(others) < len(gpu.processes) else gpu.memory_used_bytes
            gpu = gpu.model_copy(update={"processes": others, "memory_used_bytes": used})
        gpus.append(gpu)
    return machine.model_copy(update={"gpus": tuple(gpus)})


def slot_processes(machine: Topology, slots: Mapping[str, SlotPlan], proc: Path = PROC) -> frozenset[int]:
    """Processes on the GPUs that are those of ``slots`` (by name), told by what stands in their environment.

    One whose environment may not be read counts as a stranger's.
    """
    found = set()
    for gpu in machine.gpus:
        owners = {name for name, slot in slots.items() if gpu.uuid in slot.gpus}
        for process in gpu.processes or ():
            name = (procfs.environment(process.pid, proc) or {}).get("STILLFRAME_SLOT")
            if name in owners:
                found.add(process.pid)
    return frozenset(found)
