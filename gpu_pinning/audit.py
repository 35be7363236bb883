"""Looks whether slots still are where the plan put them; differences are findings.

``audit_slot`` is for a slot that runs, ``audit_gpus`` for the machine's GPUs, ``await_free`` for the moment
between a slot's death and the next lease of its GPU.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from gpu_pinning import procfs
from gpu_pinning.board import IDLE_SHARE, busy_reason
from gpu_pinning.errors import DeviceBusy
from gpu_pinning.fence import Fence
from gpu_pinning.machine import Gpu, GpuProcess, Part, Topology
from gpu_pinning.nvml import GpuHealth, Nvml
from gpu_pinning.plan import Plan, SlotPlan

FindingKind = Literal[
    "cpus",
    "memory-nodes",
    "memory-policy",
    "environment",
    "nice",
    "device-open",
    "left-group",
    "limits",
    "class",
    "gone",
    "stranger-on-gpu",
    "wrong-gpu",
    "gpu-lost",
    "ecc",
    "xid",
    "throttled",
    "orphaned-vram",
]


class Finding(Part):
    """One difference between what is wanted and what is."""

    kind: FindingKind
    slot: str | None
    subject: str
    """Thread, process, GPU or variable."""
    wanted: str
    found: str
    drains: bool
    """True where the slot should be drained and started again, or its GPU taken out."""
    detail: str = ""


_KINDS: tuple[tuple[str, FindingKind], ...] = (
    ("CPUs of thread", "cpus"),
    ("memory nodes", "memory-nodes"),
    ("memory policy", "memory-policy"),
    ("CUDA_", "environment"),
    ("nice", "nice"),
    ("forbidden devices", "device-open"),
)


def audit_slot(fence: Fence, pid: int, everyone: list[procfs.Process] | None = None) -> tuple[Finding, ...]:
    """Differences of a slot that runs as ``pid``: every thread, also those that libraries started later.

    ``everyone`` is a fresh ``procfs.all_processes()``, for who audits many slots at once.
    """
    slot = fence.slot
    state = procfs.process(pid)
    if state is None or state.state in "ZX":
        return (
            Finding(
                kind="gone", slot=slot.name, subject=f"pid {pid}", wanted="runs", found="gone", drains=False
            ),
        )
    found = []
    for row in fence.read_back(pid):
        if row.ok:
            continue
        kind = next(kind for head, kind in _KINDS if row.what.startswith(head))
        found.append(
            Finding(
                kind=kind,
                slot=slot.name,
                subject=row.what,
                wanted=row.wanted,
                found=row.found,
                drains=kind not in ("memory-policy", "nice"),
                detail=row.error,
            )
        )
    return (*found, *_left_group(fence, pid, everyone), *_limits(fence))


def _left_group(fence: Fence, pid: int, everyone: list[procfs.Process] | None) -> list[Finding]:
    found = []
    members = procfs.family(pid, everyone=everyone) if fence.group.folders else []
    for controller, folder in fence.group.folders.items():
        found += _threads_elsewhere(fence, controller, folder, members)
        listed = fence.group.pids_of(folder)
        # A process that ended between the two looks is no finding.
        missing = [
            member
            for member in members
            if member not in listed and (now := procfs.process(member)) is not None and now.state not in "ZX"
        ]
        if missing:
            found.append(
                Finding(
                    kind="left-group",
                    slot=fence.slot.name,
                    subject=controller,
                    wanted=str(folder),
                    found=f"processes {missing} are elsewhere",
                    drains=True,
                )
            )
    return found


def _threads_elsewhere(fence: Fence, controller: str, folder: Path, members: list[int]) -> list[Finding]:
    """Threads that were moved alone, which v1 allows; their process still counts as a member."""
    if fence.group.versions[controller] != 1:
        return []
    inside, listed = fence.group.pids_of(folder), fence.group.threads_of(folder)
    if listed is None:
        return []
    missing = [
        tid for member in members if member in inside for tid in procfs.threads(member) if tid not in listed
    ]
    # one that was started between the two looks is in its group by now
    again = fence.group.threads_of(folder) or set() if missing else set()
    missing = [tid for tid in missing if tid not in again and Path(f"/proc/{tid}").exists()]
    if not missing:
        return []
    return [
        Finding(
            kind="left-group",
            slot=fence.slot.name,
            subject=controller,
            wanted=str(folder),
            found=f"threads {missing} are elsewhere",
            drains=True,
        )
    ]


def _limits(fence: Fence) -> list[Finding]:
    return [
        Finding(
            kind="limits",
            slot=fence.slot.name,
            subject=row.what,
            wanted=row.wanted,
            found=row.found or "cannot be read",
            drains=True,
        )
        for row in fence.group.read_limits()
        if not row.ok
    ]


def audit_gpus(
    plan: Plan, nvml: Nvml, members: Mapping[str, Iterable[int]], was: Mapping[str, GpuHealth] | None = None
) -> tuple[Finding, ...]:
    """Differences on the GPUs that slots own.

    ``members`` gives the processes of each running slot by its name. ``was`` holds earlier health by UUID, so
    that only new ECC errors are told.
    """
    found: list[Finding] = []
    by_slot = {name: set(pids) for name, pids in members.items()}
    for slot in plan.slots:
        for uuid in slot.gpus:
            health = nvml.health(uuid)
            found += _health(slot, health, (was or {}).get(uuid))
            if not health.present:
                continue
            others = {p for s in plan.slots if uuid in s.gpus for p in by_slot.get(s.name, ())}
            for process in nvml.processes(uuid) or ():
                if process.pid in others:
                    continue
                owner = next((name for name, pids in by_slot.items() if process.pid in pids), None)
                found.append(_stranger(slot, uuid, process, owner))
    return tuple(dict.fromkeys(found))


def _stranger(slot: SlotPlan, uuid: str, process: GpuProcess, owner: str | None) -> Finding:
    text = f"{process.kind} process {process.pid} {process.name}".rstrip()
    if process.memory_bytes is not None:
        text += f", {process.memory_bytes >> 20} MiB"
    if owner is not None:
        return Finding(
            kind="wrong-gpu",
            slot=owner,
            subject=uuid,
            wanted=f"slot {slot.name} alone",
            found=text,
            drains=True,
        )
    return Finding(
        kind="stranger-on-gpu",
        slot=slot.name,
        subject=uuid,
        wanted="this slot's processes alone",
        found=text,
        drains=False,
    )


def _health(slot: SlotPlan, health: GpuHealth, was: GpuHealth | None) -> list[Finding]:
    if not health.present:
        return [
            Finding(
                kind="gpu-lost",
                slot=slot.name,
                subject=health.uuid,
                wanted="answers",
                found=health.cause,
                drains=True,
            )
        ]
    found = []
    earlier = was.ecc_uncorrected if was else None
    before = earlier or 0
    if (health.ecc_uncorrected or 0) > before:
        found.append(
            Finding(
                kind="ecc",
                slot=slot.name,
                subject=health.uuid,
                wanted=f"{before} uncorrected errors",
                found=f"{health.ecc_uncorrected} uncorrected errors",
                # errors from before the first look may be a month old: they are told, and that is all
                drains=earlier is not None,
            )
        )
    if health.throttled:
        found.append(
            Finding(
                kind="throttled",
                slot=slot.name,
                subject=health.uuid,
                wanted="full clocks",
                found=", ".join(health.throttled),
                drains=False,
            )
        )
    return found


# Of a GPU in MIG mode the line names the GPU instance too: "(PCI:0000:07:00 GPU-I:05)".
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)(?: GPU-I:(\d+))?\): (\d+)(.*)")
# NVIDIA's Xid catalogue: errors after which the GPU or its context cannot be trusted.
_FATAL_XIDS = {48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140, 154}


def xid_findings(lines: Iterable[str], plan: Plan, machine: Topology | None = None) -> tuple[Finding, ...]:
    """Xid errors of the plan's GPUs out of kernel log lines (``NVRM: Xid (PCI:0000:3b:00): 79, …``).

    An error of one MIG instance is told of the slot on it alone, where ``machine`` says which that is.
    """
    found = []
    instance_of = {m.uuid: m.gpu_instance for g in (machine.gpus if machine else ()) for m in g.mig}
    for line in lines:
        match = _XID.search(line)
        if match is None:
            continue
        address = match[1].lower()
        instance = None if match[2] is None else int(match[2])
        number = int(match[3])
        for slot in plan.slots:
            elsewhere = instance is not None and instance_of.get(slot.mig or "", instance) != instance
            if any(pci.startswith(address) for pci in slot.pci) and not elsewhere:
                found.append(
                    Finding(
                        kind="xid",
                        slot=slot.name,
                        subject=match[1],
                        wanted="no Xid",
                        found=f"Xid {number}",
                        drains=number in _FATAL_XIDS,
                        detail=match[4].strip(" ,"),
                    )
                )
    return tuple(found)


def kernel_log(since: int = 0) -> tuple[list[str], int]:
    """Kernel messages after a sequence number, and the last number seen; empty without the right to read."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return [], since
    lines: list[str] = []
    last = since
    try:
        while True:
            try:
                record = os.read(fd, 8192).decode(errors="replace")
            except BrokenPipeError:
                continue  # overwritten while we read: the next read goes on behind it
            except OSError:
                return lines, last
            head, _, text = record.partition(";")
            number = int(head.split(",")[1])
            if number > since:
                lines.append(text.strip())
                last = max(last, number)
    finally:
        os.close(fd)


def await_free(
    nvml: Nvml, slot: SlotPlan, total_bytes: int, dead: Iterable[int], seconds: float = 10.0
) -> float:
    """Wait until the video memory of a slot that died is seen free; returns how long it took.

    ``total_bytes`` is the size of its GPU or MIG instance, ``dead`` the slot's former processes. A slot that
    owns its GPUs waits until nobody is listed there; one that shares its GPU only until its own are gone, and
    a MIG slot until its instance's memory is free too. Raises DeviceBusy, naming who holds the memory: the
    GPU must not be leased then.
    """
    mine = set(dead)
    began = time.monotonic()
    while True:
        held = vram_holders(nvml, slot, total_bytes, mine)
        waited = time.monotonic() - began
        if not held:
            return waited
        if waited > seconds:
            raise DeviceBusy(f"slot {slot.name}: after {waited:.0f} s {'; '.join(held)}")
        time.sleep(0.02)


def vram_holders(
    nvml: Nvml, slot: SlotPlan, total_bytes: int, dead: Iterable[int], before: int | None = None
) -> list[str]:
    """Who holds video memory of a slot that does not run, a text each; empty where it is free.

    ``before`` is what was in use when a GPU was given to the slot although it was in use: then only its own
    ``dead`` processes and what goes beyond that count.
    """
    mine = set(dead)
    return [text for uuid in slot.gpus for text in _holders(nvml, slot, uuid, total_bytes, mine, before)]


def _holders(
    nvml: Nvml, slot: SlotPlan, uuid: str, total_bytes: int, mine: set[int], before: int | None = None
) -> list[str]:
    shared = slot.kind in ("mig", "mps") or before is not None
    listed = [p for p in nvml.processes(uuid) or () if p.pid in mine or not shared]
    if listed:
        names = ", ".join(f"{p.kind} process {p.pid} {p.name}".rstrip() for p in listed)
        return [f"{uuid} is held by {names}"]
    if slot.kind == "mps":
        return []
    used = nvml.memory_used(slot.mig or uuid)
    if used is None:
        return [f"memory of {uuid} cannot be read: {nvml.health(uuid).cause or 'no answer'}"]
    if used - (before or 0) >= IDLE_SHARE * total_bytes:
        return [f"{used >> 20} MiB of {uuid} are held by no process that can be listed here"]
    return []


def why_busy_now(nvml: Nvml, gpu: Gpu, mine: Iterable[int] = ()) -> str | None:
    """Why a GPU is not free at this moment, or None: looked at again before each claim.

    ``mine`` are processes of its own slot, which count as nobody; while they run, the memory is theirs.
    """
    own = set(mine)
    listed = nvml.processes(gpu.uuid)
    # Where lists were incomplete when the machine was read, they still are.
    blind = listed is None or gpu.processes is None
    others = None if blind else tuple(p for p in listed or () if p.pid not in own)
    used = 0 if own and listed and len(others or ()) < len(listed) else nvml.memory_used(gpu.uuid)
    return busy_reason(gpu.model_copy(update={"processes": others, "memory_used_bytes": used}))


def orphaned_vram(
    plan: Plan, nvml: Nvml, live: Mapping[str, Iterable[int]], sizes: Mapping[str, int]
) -> tuple[Finding, ...]:
    """Memory in use on GPUs of slots that do not run, with the process that holds it.

    ``live`` gives the processes of running slots, ``sizes`` the memory of each GPU or MIG instance in bytes.
    """
    found = []
    for slot in plan.slots:
        if list(live.get(slot.name, ())) or slot.kind == "mps":
            continue
        for uuid in slot.gpus:
            for text in _holders(nvml, slot, uuid, sizes[slot.mig or uuid], set()):
                found.append(
                    Finding(
                        kind="orphaned-vram",
                        slot=slot.name,
                        subject=slot.mig or uuid,
                        wanted="free",
                        found=text,
                        drains=True,
                    )
                )
    return tuple(found)
