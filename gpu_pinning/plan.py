"""The plan: the placement of slots and neighbours on one machine, as data.

Made by ``gpu_pinning.placement.make_plan``; it holds nothing live and is the same for the same machine and
wishes, so two plans can be compared.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import ValidationError

from gpu_pinning.cpulist import IdList
from gpu_pinning.errors import PinningError
from gpu_pinning.machine import DeviceFenceMethod, DeviceNode, Part, dump_by_line
from gpu_pinning.wishes import Guarantee, Pool, Role

SlotKind = Literal["gpu", "mig", "mps", "cpu"]


class FencePlan(Part):
    """With what a slot is held where it is. ``affinity`` and ``policy`` are weaker: the child can widen
    them."""

    cpus: Literal["cgroup", "affinity"]
    memory: Literal["cgroup", "policy"]
    devices: DeviceFenceMethod
    device_fence_required: bool
    kill: Literal["cgroup.kill", "signals"]
    freeze: Literal["cgroup", "SIGSTOP"]

    @property
    def weak(self) -> bool:
        """True where the slot's cores are held by affinity alone."""
        return self.cpus == "affinity"


class Limits(Part):
    """What a slot may use at most; None sets no limit."""

    memory_bytes: int | None = None
    processes: int | None = None
    disk_write_bytes: int | None = None
    disk_path: str | None = None
    cpu_weight: int | None = None
    """Share of contended CPUs; 100 is what others have."""
    cpu_weight_required: bool = False
    """Whether it was asked for, so that it has to hold."""


class SlotPlan(Part):
    """One slot."""

    name: str
    wish: str
    """Name of the ``[[slots]]`` entry that it comes from."""
    kind: SlotKind
    pools: tuple[Pool, ...]
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it owns, or of the one it has a share of."""
    pci: tuple[str, ...] = ()
    mig: str | None = None
    mps_percent: int | None = None
    cores: tuple[int, ...]
    """Ids of physical cores in the topology."""
    cpus: IdList
    nodes: IdList
    environment: dict[str, str]
    fence: FencePlan
    limits: Limits
    nice: int
    ionice: Literal["none", "best-effort", "idle"]
    deny: tuple[DeviceNode, ...]
    """Device nodes that must not open inside."""
    guarantee: Guarantee | None = None
    """The lowest class beside any neighbour; None where there is no neighbour."""

    @property
    def devices(self) -> tuple[str, ...]:
        """What CUDA may see: a MIG instance, or GPUs."""
        return (self.mig,) if self.mig else self.gpus

    @property
    def kill_allowed(self) -> bool:
        """False for MPS clients: SIGKILL on one ends every client of that GPU."""
        return self.kind != "mps"


class NeighbourPlan(Part):
    """Where a neighbour sits, and whether anything holds it there."""

    name: str
    role: Role
    gpus: tuple[str, ...]
    pci: tuple[str, ...]
    mig: tuple[str, ...]
    cores: tuple[int, ...]
    cpus: IdList
    nodes: IdList
    fence: Literal["declared", "observed", "none"]
    environment: dict[str, str]
    """With indices instead of UUIDs: some servers fail on a UUID in CUDA_VISIBLE_DEVICES."""
    mend: str | None = None
    """The command that would hold it to ``cpus``."""


class Sharing(Part):
    """What one slot and one neighbour share, and the class that follows."""

    slot: str
    neighbour: str
    shares: tuple[str, ...]
    guarantee: Guarantee
    reason: str
    raise_by: str
    """What would raise the class; empty for A."""


class InterruptMove(Part):
    """An interrupt line that should leave a neighbour's cores."""

    irq: int
    name: str
    device: str | None
    from_cpus: IdList
    to_cpus: IdList
    why: str

    @property
    def command(self) -> str:
        """The shell command that moves it."""
        from gpu_pinning import cpulist

        return f"echo {cpulist.show(self.to_cpus)} > /proc/irq/{self.irq}/smp_affinity_list"


class Refusal(Part):
    """A wish that was not met."""

    wish: str
    reason: str
    fix: str


class GpuInUse(Part):
    """A GPU that the farm leaves alone, and the lines that would declare its user."""

    uuid: str
    pci: str
    reason: str
    toml: str


class Plan(Part):
    """One machine's placement."""

    version: Literal[1] = 1
    slots: tuple[SlotPlan, ...]
    neighbours: tuple[NeighbourPlan, ...]
    sharing: tuple[Sharing, ...]
    interrupts: tuple[InterruptMove, ...]
    refusals: tuple[Refusal, ...]
    in_use: tuple[GpuInUse, ...]
    notes: tuple[str, ...]
    spare_cpus: IdList

    @cached_property
    def by_name(self) -> dict[str, SlotPlan]:
        """Slots by name."""
        return {slot.name: slot for slot in self.slots}

    def slot(self, name: str) -> SlotPlan:
        """A slot. KeyError where there is none of this name."""
        return self.by_name[name]

    def dump(self) -> str:
        """This plan as JSON, one part a line."""
        return dump_by_line(self.model_dump(mode="json"))

    @classmethod
    def parse(cls, text: str, source: str = "plan") -> Plan:
        """A plan out of ``dump()``'s JSON. Raises PinningError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            raise PinningError(f"{source}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
