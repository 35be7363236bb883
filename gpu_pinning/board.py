"""The board on which a plan is laid out: what is still free, and what sharing with neighbours costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpu_pinning.cores import CorePool
from gpu_pinning.machine import Gpu, GpuProcess, Topology
from gpu_pinning.observed import ObservedNeighbour
from gpu_pinning.plan import NeighbourPlan, Refusal, Sharing, SlotPlan
from gpu_pinning.sharing import Place
from gpu_pinning.wishes import Wishes

IDLE_SHARE = 0.01
"""A GPU with this share of its memory in use, or more, is somebody's."""
# What a slot pays for sharing with a neighbour: its node, its cache, its PCIe switch.
_PRICE = {"decode": (40, 80, 80), "prefill": (1, 3, 8)}
_REMOTE = 6


def busy_reason(gpu: Gpu) -> str | None:
    """Why a GPU is somebody else's, or None where it is free."""
    return busy_text(gpu.processes, gpu.memory_used_bytes, gpu.memory_bytes)


def busy_text(processes: tuple[GpuProcess, ...] | None, used: int | None, total: int) -> str | None:
    """Why a GPU with these processes and bytes in use is somebody else's, or None where it is free."""
    if processes is None:
        return "the processes on it cannot be listed here"
    if processes:
        return "used by " + ", ".join(f"{p.name or 'a process'} (pid {p.pid})" for p in processes)
    if used is None or total <= 0:
        return "its memory in use cannot be read here"
    if used >= IDLE_SHARE * total:
        share = used / total
        return f"{share:.0%} of its memory is in use by processes that are not listed here"
    return None


@dataclass
class Board:
    """State of a plan in the making."""

    machine: Topology
    wishes: Wishes
    observed: tuple[ObservedNeighbour, ...]
    cores: CorePool
    implied: bool
    """True where the slots are the default ones."""
    memory: dict[int, int]
    """Bytes per memory node that no slot has been given."""
    taken: set[str] = field(default_factory=set)
    """GPUs and MIG instances that have an owner."""
    busy: dict[str, str] = field(default_factory=dict)
    """GPUs that are a stranger's, and why."""
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    neighbours: list[NeighbourPlan] = field(default_factory=list)
    slots: dict[str, SlotPlan] = field(default_factory=dict)
    sharing: list[Sharing] = field(default_factory=list)
    matched: set[int] = field(default_factory=set)
    """Pids of observed servers that are declared neighbours."""
    places: dict[str, Place] = field(default_factory=dict)
    """Where each neighbour may really be."""
    meant: list[tuple[NeighbourPlan, Place]] = field(default_factory=list)
    """Where each neighbour is meant to be: what prices follow, also where nothing holds it there yet."""
    price: dict[int, int] = field(default_factory=dict)
    """What a core costs a slot."""

    def named_gpus(self, where: str, names: Iterable[str]) -> list[Gpu] | None:
        found: list[Gpu] = []
        for name in names:
            hits = self.machine.gpus_called(name)
            if len(hits) != 1:
                here = (
                    ", ".join(f"{g.uuid} at {g.pci}" for g in self.machine.gpus)
                    or f"none ({self.machine.nvml})"
                )
                what = "fits no GPU" if not hits else f"fits {len(hits)} GPUs"
                self.refuse(where, f"{name!r} {what} of this machine", f"GPUs here: {here}")
                return None
            if hits[0] in found:
                self.refuse(where, f"{name!r} is named twice", "name each GPU once")
                return None
            found.append(hits[0])
        return found

    def refuse(self, wish: str, reason: str, fix: str) -> None:
        self.refusals.append(Refusal(wish=wish, reason=reason, fix=fix))

    def busy_reason_of(self, gpu: Gpu) -> str | None:
        if any(gpu.uuid in n.gpus for n in self.neighbours):
            return None
        seen = [o for o in self.observed if gpu.uuid in o.gpus]
        if seen:
            return f"used by a {seen[0].kind} server (pid {seen[0].pid})"
        return busy_reason(gpu)

    def nodes_of(self, cores: Iterable[int]) -> tuple[int, ...]:
        """Memory nodes of cores: their own where those have memory that we may use, else the nearest that
        does."""
        usable = [n.id for n in self.machine.nodes if n.bytes > 0 and n.id in self.machine.allowed_nodes]
        nodes = set()
        for home in {self.machine.core_by_id[core].node for core in cores}:
            if home in usable:
                nodes.add(home)
            elif home is not None and usable:
                far = self.machine.node_of[home].distances
                nodes.add(min(usable, key=lambda node: (far.get(node, 255), node)))
        return tuple(sorted(nodes)) or tuple(self.machine.allowed_nodes)

    def distance(self, core: int, home: set[int]) -> int:
        node = self.machine.core_by_id[core].node
        return 0 if not home or node is None or node in home else _REMOTE

    def core_price(self, core: int) -> int:
        place = self.machine.core_by_id[core]
        total = 0
        for neighbour, theirs in self.meant:
            node, llc, _ = _PRICE[neighbour.role]
            total += node * (place.node in theirs.nodes) + llc * (place.llc in theirs.llcs)
        return total

    def gpu_price(self, gpu: Gpu) -> int:
        total = 0
        device = self.machine.pci_of.get(gpu.pci)
        bridges = set(device.bridges) if device else set()
        for neighbour, theirs in self.meant:
            node, _, switch = _PRICE[neighbour.role]
            total += node * (gpu.node in theirs.nodes) + switch * bool(bridges & theirs.bridges)
        return total

    def slots_of(self, wish: str) -> list[SlotPlan]:
        """Slots made so far for a wish."""
        return [slot for slot in self.slots.values() if slot.wish == wish]
