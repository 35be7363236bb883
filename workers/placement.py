"""Where this node's slots sit: the machine, the plan for it, and what the database is told of each slot."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from farm.errors import Conflict, FieldFault, InvalidInput
from farm.settings import Settings
from gpu_pinning import (
    Claimed,
    Claims,
    Plan,
    SlotPlan,
    Topology,
    cpulist,
    discover_neighbours,
    make_plan,
    move_interrupts,
    read_topology,
)
from gpu_pinning.group import Setting
from jobs.render.blender.installation import backends, versions
from workers.node_config import NodeConfig, pointer
from workers.node_folders import agent_pid, node_folder

log = structlog.get_logger(__name__)

_KEPT_PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class Seating:
    """A node's wishes, its machine as it was read, and the plan that follows from both."""

    config: NodeConfig
    machine: Topology
    plan: Plan

    def slot(self, name: str) -> SlotPlan | None:
        """A slot by name."""
        return self.plan.by_name.get(name)

    def memory_bytes(self, slot: SlotPlan) -> int:
        """Video memory of a slot's GPU (the smallest of several) or MIG instance; 0: it has none."""
        if slot.mig:
            return next(m.memory_bytes for g in self.machine.gpus for m in g.mig if m.uuid == slot.mig)
        return min((self.machine.gpu(uuid).memory_bytes for uuid in slot.gpus), default=0)

    def in_use_before(self, slot: SlotPlan) -> int | None:
        """Bytes in use on a GPU that the slot was given by name although it was in use; None: it was free."""
        gpus = [self.machine.gpu(uuid) for uuid in slot.gpus]
        if slot.kind in ("cpu", "mps") or not any(gpu.processes != () for gpu in gpus):
            return None
        return max(gpu.memory_used_bytes or 0 for gpu in gpus)


def seat(config: NodeConfig, seen: Callable[[Topology], Topology] = lambda machine: machine) -> Seating:
    """Read the machine, find its neighbours, plan. Raises :class:`gpu_pinning.PinningError`.

    ``seen`` may correct what was read before it is planned on.
    """
    machine = seen(read_topology())
    return Seating(config, machine, make_plan(machine, config.wishes, discover_neighbours(machine)))


def refuse_impossible(seating: Seating, running: Plan | None = None) -> None:
    """Refuse a farm.toml that cannot be: a neighbour without a place, or no slot at all.

    A farm.toml that is to take the place of a ``running`` plan may not bring any refusal that is new. Raises
    :class:`farm.errors.InvalidInput` with each refusal that counts.
    """
    plan = seating.plan
    grave = [
        refusal
        for refusal in plan.refusals
        if not plan.slots or (running is not None and refusal not in running.refusals)
    ]
    if grave:
        faults = [FieldFault(pointer(r.wish), f"{r.reason}; {r.fix}") for r in grave]
        text = "; ".join(f"{r.wish}: {r.reason} ({r.fix})" for r in grave)
        raise InvalidInput(f"{seating.config.path or 'this node'}: {text}", faults)


def claim(settings: Settings, seating: Seating) -> Claims | None:
    """Claim what the slots sit on for this process; None where FARM_MACHINE_CLAIMS says not to.

    Raises :class:`farm.errors.Conflict` where another agent of this machine gives out some of it.
    """
    if not settings.machine_claims:
        return None
    claims = Claims(seating.config.name)
    try:
        claims.add(seating.plan.slots)
    except Claimed as error:
        raise Conflict(str(error)) from None
    return claims


def keep_plan(folder: Path, plan: Plan) -> None:
    """Keep the plan that runs in the node's folder, for ``farm plan --diff``."""
    target = folder / _KEPT_PLAN
    partial = target.with_suffix(f".{os.getpid()}.part")
    partial.write_text(plan.dump(), encoding="utf-8")
    partial.replace(target)


def forget_plan(folder: Path) -> None:
    """The node's slots have ended: no plan runs."""
    (folder / _KEPT_PLAN).unlink(missing_ok=True)


def running_plan(settings: Settings, config: NodeConfig) -> Plan | None:
    """The plan that this node's agent has applied; None where no agent of it runs with this data folder.

    Raises :class:`gpu_pinning.PinningError` for a plan of another version of the farm.
    """
    folder = node_folder(settings, config.name)
    kept = folder / _KEPT_PLAN
    if agent_pid(folder) is None or not kept.exists():
        return None
    return Plan.parse(kept.read_text(encoding="utf-8"), str(kept))


def device_of(
    seating: Seating,
    slot: SlotPlan,
    launched: Iterable[Setting] | None = None,
    findings: Iterable[dict[str, Any]] = (),
) -> dict[str, Any]:
    """What the database is told of a slot: device, seat, guarantee class and how it is held.

    ``launched`` is what the launcher read back of the process that runs; before that the plan speaks. The
    scheduler fits ``kind``, ``vram`` (bytes) and any other value against what a step requires.
    """
    fence = slot.fence
    device: dict[str, Any] = {
        "kind": "cuda" if slot.gpus else "cpu",
        "threads": int(slot.environment["OMP_NUM_THREADS"]),
        "cores": len(slot.cores),
        "cpus": cpulist.show(slot.cpus),
        "memory_nodes": cpulist.show(slot.nodes),
        "class": slot.guarantee,
        "blender": versions(),
        "blender_devices": backends(),
    }
    if slot.gpus:
        first = seating.machine.gpu(slot.gpus[0])
        device |= {
            "name": first.name,
            "uuid": slot.mig or slot.gpus[0],
            "gpus": list(slot.gpus),
            "gpu_count": len(slot.gpus),
            "pci": list(slot.pci),
            "vram": seating.memory_bytes(slot),
            "share": {"mig": "mig", "mps": "mps"}.get(slot.kind),
            "in_use_by_wish": seating.in_use_before(slot) is not None,
        }
    worst = max(
        (pair for pair in seating.plan.sharing if pair.slot == slot.name),
        key=lambda pair: pair.guarantee,
        default=None,
    )
    if worst is not None:
        device |= {"class_reason": f"beside {worst.neighbour}: {worst.reason}", "raise_by": worst.raise_by}
    labels, reasons = _labels(slot, launched)
    device["fence"] = {
        "cpus": fence.cpus,
        "memory": fence.memory,
        "devices": fence.devices if slot.deny else "nothing to fence",
        "kill": fence.kill,
        "freeze": fence.freeze,
        # None: no right to weigh here; where it is set, the fence has read it back
        "cpu_weight": slot.limits.cpu_weight,
        "read_back": launched is not None,
    }
    device["labels"] = labels
    if reasons:
        device["label_reasons"] = reasons
    if found := list(findings):
        device["audit"] = found
    return device


def _labels(slot: SlotPlan, launched: Iterable[Setting] | None) -> tuple[list[str], list[str]]:
    labels, reasons = [], []
    if slot.fence.weak:
        labels.append("weak")
        reasons.append("weak: its cores are held by affinity alone, which a child can widen")
    rows = {row.what: row for row in launched or ()}
    unfenced = slot.fence.devices == "none"
    why = "no right to fence device files here"
    for what in ("namespace", "devices"):
        if (row := rows.get(what)) is not None and not row.ok:
            unfenced, why = True, row.error or f"inside the fence {row.found}"
    if slot.deny and unfenced:
        labels.append("not fenced")
        reasons.append(f"not fenced: {why}")
    return labels, reasons


def node_info(seating: Seating) -> dict[str, Any]:
    """What the database is told of a node."""
    plan, machine = seating.plan, seating.machine
    return {
        "hostname": platform.node(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pid": os.getpid(),
        "labels": dict(seating.config.wishes.labels),
        "preemptible": seating.config.wishes.preemptible,
        "hypervisor": machine.hypervisor,
        "gpus": [
            {"uuid": g.uuid, "pci": g.pci, "name": g.name, "memory": g.memory_bytes} for g in machine.gpus
        ],
        "gpus_in_use": [used.model_dump(mode="json") for used in plan.in_use],
        "neighbours": [
            {
                "name": n.name,
                "role": n.role,
                "cpus": cpulist.show(n.cpus),
                "gpus": list(n.gpus),
                "fence": n.fence,
            }
            for n in plan.neighbours
        ],
        "refusals": [refusal.model_dump(mode="json") for refusal in plan.refusals],
        "notes": list(plan.notes),
    }


def tell_plan(seating: Seating) -> None:
    """Log what the plan refuses and leaves alone, with what would change it."""
    for refusal in seating.plan.refusals:
        log.error("a wish was refused", wish=refusal.wish, reason=refusal.reason, fix=refusal.fix)
    for used in seating.plan.in_use:
        log.warning("a GPU is in use and left alone", gpu=used.pci, reason=used.reason, declare=used.toml)
    for note in seating.plan.notes:
        log.info("note on the plan", note=note)


def move_planned_interrupts(seating: Seating) -> None:
    """Move device interrupts off decode cores, as planned; a line that the kernel keeps is told."""
    if not seating.config.wishes.placement.move_interrupts:
        return
    for row in move_interrupts(seating.plan.interrupts):
        if not row.ok:
            why = row.error or f"it stays on {row.found}"
            log.warning("an interrupt was not moved off decode cores", what=row.what, reason=why)
