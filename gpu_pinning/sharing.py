"""What a slot and a neighbour share, and the guarantee class that follows. Pure.

A: no GPU, PCIe switch, NUMA node or last-level cache in common, on bare metal, with everything known and the
cores fenced by a cgroup. B: disjoint cores, but something else in common or not known. C: a GPU in common
(MIG included: its instances share power, copy engines and PCIe), or cores in common, which measured as bad as
a shared GPU (p99 2.22 against 2.34 times the idle latency).
"""

from __future__ import annotations

from gpu_pinning.machine import Topology
from gpu_pinning.plan import NeighbourPlan, Sharing, SlotPlan
from gpu_pinning.wishes import Guarantee


class Place:
    """The parts of a machine that a set of GPUs and cores touches."""

    def __init__(
        self, machine: Topology, gpus: tuple[str, ...], cpus: tuple[int, ...], nodes: tuple[int, ...]
    ) -> None:
        own = [machine.gpu(uuid) for uuid in gpus]
        self.gpus = set(gpus)
        self.cores = {machine.core_of[cpu].id for cpu in cpus if cpu in machine.core_of}
        cores = [machine.core_by_id[core] for core in self.cores]
        self.packages = {core.package for core in cores}
        self.nodes = set(nodes) | {core.node for core in cores if core.node is not None}
        self.nodes |= {gpu.node for gpu in own if gpu.node is not None}
        self.llcs = {core.llc for core in cores if core.llc is not None}
        self.bridges: set[str] = set()
        self.unknown: list[str] = []
        for gpu in own:
            device = machine.pci_of.get(gpu.pci)
            if device is None or device.root is None:
                self.unknown.append(f"the PCIe path of {gpu.pci}")
            else:
                self.bridges |= set(device.bridges)
            if gpu.node is None and len(machine.nodes) > 1:
                self.unknown.append(f"the NUMA node of {gpu.pci}")
        if any(core.node is None for core in cores) or not machine.nodes:
            self.unknown.append("the NUMA nodes of its cores")
        if any(core.llc is None for core in cores):
            self.unknown.append("the last-level caches of its cores")


def place_of_slot(machine: Topology, slot: SlotPlan) -> Place:
    """Where a slot sits."""
    return Place(machine, slot.gpus, slot.cpus, slot.nodes)


def place_of_neighbour(machine: Topology, neighbour: NeighbourPlan) -> Place:
    """Where a neighbour sits; one that nothing holds may be on any core."""
    cpus = neighbour.cpus if neighbour.fence != "none" else machine.allowed_cpus
    return Place(machine, neighbour.gpus, cpus, neighbour.nodes)


def judge(
    machine: Topology,
    slot: SlotPlan,
    neighbour: NeighbourPlan,
    slot_place: Place | None = None,
    neighbour_place: Place | None = None,
) -> Sharing:
    """The sharing and class of one pair."""
    mine = slot_place or place_of_slot(machine, slot)
    theirs = neighbour_place or place_of_neighbour(machine, neighbour)
    shares: list[str] = []
    raise_by: list[str] = []
    gpus = sorted(machine.gpu(uuid).pci for uuid in mine.gpus & theirs.gpus)
    cores = sorted(mine.cores & theirs.cores)
    if gpus:
        how = "a MIG instance of " if slot.kind == "mig" else "by MPS " if slot.kind == "mps" else ""
        shares.append(f"{how}GPU {', '.join(gpus)}")
        raise_by.append("give the slot a GPU of its own")
    if cores:
        if neighbour.fence == "none":
            shares.append("cores (nothing holds the neighbour to its own)")
            raise_by.append(f"fence {neighbour.name}: {neighbour.mend}")
        else:
            shares.append(f"{len(cores)} cores")
            raise_by.append("give slot and neighbour disjoint cores")
    bridges = mine.bridges & theirs.bridges
    if bridges and not gpus:
        shares.append(f"PCIe switch {min(bridges)}")
        raise_by.append("use a GPU behind another PCIe switch")
    nodes = sorted(mine.nodes & theirs.nodes)
    if nodes and not cores:
        shares.append(f"NUMA node {', '.join(map(str, nodes))}")
        if len([node for node in machine.nodes if node.cpus]) > 1:
            raise_by.append(f"move the slot off NUMA node {', '.join(map(str, nodes))}")
        else:
            raise_by.append("split the socket into NUMA nodes in firmware (NPS, SNC), or use a second socket")
    if mine.llcs & theirs.llcs and not cores:
        shares.append("last-level cache")
        raise_by.append("leave the neighbour's cache group to it")
    grade, reason = _grade(machine, slot, neighbour, mine, theirs, bool(gpus or cores), shares, raise_by)
    return Sharing(
        slot=slot.name,
        neighbour=neighbour.name,
        shares=tuple(shares),
        guarantee=grade,
        reason=reason,
        raise_by="" if grade == "A" else "; ".join(dict.fromkeys(raise_by)),
    )


def _grade(
    machine: Topology,
    slot: SlotPlan,
    neighbour: NeighbourPlan,
    mine: Place,
    theirs: Place,
    hard: bool,
    shares: list[str],
    raise_by: list[str],
) -> tuple[Guarantee, str]:
    if hard:
        return "C", "shares " + ", ".join(shares)
    reasons = []
    if shares:
        reasons.append("shares " + ", ".join(shares))
    if machine.hypervisor is None:
        reasons.append("nothing says whether this is bare metal")
        raise_by.append("run where `systemd-detect-virt --vm` answers none")
    elif not machine.bare_metal:
        reasons.append(
            f"virtual machine ({machine.hypervisor}): its cores may be threads of the same real core"
        )
        raise_by.append("run on bare metal, or on a host that pins virtual CPUs to whole cores")
    unknown = sorted(set(mine.unknown) | set(theirs.unknown))
    if unknown:
        reasons.append("not known: " + ", ".join(unknown))
        raise_by.append("run where sysfs tells " + ", ".join(unknown))
    allowed = machine.allowed_set
    halves = [
        core for core in mine.cores | theirs.cores if not allowed.issuperset(machine.core_by_id[core].cpus)
    ]
    if halves:
        reasons.append(f"{len(halves)} cores have a thread outside this machine's cpuset")
        raise_by.append("give the container whole cores")
    if slot.fence.weak:
        reasons.append("cores held by affinity alone, which a child can widen")
        raise_by.append("give the node agent a delegated cgroup (`farm node install`)")
    if reasons:
        return "B", "disjoint cores; " + "; ".join(reasons)
    return "A", "shares no GPU, PCIe switch, NUMA node or last-level cache"


def lowest(grades: list[Guarantee]) -> Guarantee | None:
    """The worst of some classes."""
    return max(grades) if grades else None
