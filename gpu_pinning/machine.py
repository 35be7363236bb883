"""What a machine has: the typed model that is read, recorded and planned on.

A ``Topology`` holds no live handles. Its JSON form is a recorded machine: ``Topology.load(path)`` of what
``dump()`` wrote gives an equal object.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from gpu_pinning.cpulist import IdList
from gpu_pinning.errors import TopologyError

CONTROLLERS = ("cpuset", "cpu", "memory", "io", "pids", "devices", "freeze", "kill")
"""What a fence asks of cgroups. ``io`` is called blkio and ``freeze`` freezer in v1; ``kill`` is v2 only."""


DeviceFenceMethod = Literal["devices-v1", "devices-bpf", "mount-namespace", "user-namespace", "none"]


class Part(BaseModel):
    """Base of every part of a machine: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values, which is asked anew for what follows from them (cached properties)."""
        made = super().model_copy(update=update, deep=deep)
        for name in made.__dict__.keys() - type(self).model_fields.keys():
            del made.__dict__[name]
        return made


class Core(Part):
    """A physical core with its hardware threads. ``None`` means that the machine does not say."""

    id: int
    package: int | None
    die: int | None
    node: int | None
    llc: int | None
    """Id of its last-level cache in ``Topology.caches``."""
    cpus: IdList


class Cache(Part):
    """A cache that more than one core, or one core alone, owns; ``level`` 2 and up."""

    id: int
    level: int
    bytes: int | None
    cpus: IdList


class MemoryNode(Part):
    """A NUMA node; ``cpus`` is empty for memory without cores (CXL, HBM, GPU memory)."""

    id: int
    cpus: IdList
    bytes: int
    distances: dict[int, int]


class PciDevice(Part):
    """A PCI function of interest: GPU, network or storage."""

    address: str
    """Domain, bus, device, function, in the kernel's form: ``0000:3b:00.0``."""
    kind: Literal["gpu", "network", "storage", "other"]
    root: str | None
    """Host bridge, ``pci0000:3a``; None where sysfs does not say."""
    bridges: tuple[str, ...]
    """Bridges above it, root port first."""
    node: int | None


class NvLink(Part):
    """Links to one peer: a GPU's PCI address, or ``switch``."""

    peer: str
    links: int


class PcieLink(Part):
    """PCIe generation and width, now and at most."""

    generation: int | None
    width: int | None
    max_generation: int | None
    max_width: int | None


class MigInstance(Part):
    """One MIG instance; a CUDA process sees it alone when its UUID is in CUDA_VISIBLE_DEVICES."""

    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    memory_bytes: int
    caps: tuple[int, ...] = ()
    """Minors of its ``/dev/nvidia-caps`` nodes."""


class GpuProcess(Part):
    """A process that NVML lists on a GPU."""

    pid: int
    kind: Literal["compute", "graphics", "mps"]
    name: str
    memory_bytes: int | None


class Gpu(Part):
    """A GPU, keyed on UUID and PCI address: NVML, CUDA and ``/dev/nvidiaN`` number GPUs three ways."""

    uuid: str
    name: str
    pci: str
    minor: int | None
    nvml_index: int
    memory_bytes: int
    memory_used_bytes: int | None
    """Without what the driver reserves for itself."""
    node: int | None
    local_cpus: IdList
    pcie: PcieLink
    nvlink: tuple[NvLink, ...] = ()
    mig_enabled: bool = False
    mig: tuple[MigInstance, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    """None where processes cannot be listed, for example in a PID namespace of our own."""


class Interrupt(Part):
    """A device's interrupt line and the CPUs that may serve it."""

    irq: int
    name: str
    device: str | None
    cpus: IdList


class DeviceNode(Part):
    """A file under /dev that opens a GPU; ``gpu`` None opens the driver as such (``nvidiactl``)."""

    path: str
    major: int
    minor: int
    gpu: str | None
    """UUID."""


class CgroupRight(Part):
    """Whether a controller can be used, found out by using it once."""

    controller: str
    version: Literal[0, 1, 2]
    """0: no such controller."""
    base: str | None
    """Folder under which groups are made."""
    granted: bool
    reason: str = ""


class Governor(Part):
    """A frequency governor and the CPUs that run under it."""

    name: str
    cpus: IdList


class KernelFlags(Part):
    """Settings of the running kernel that move latency; None where the kernel does not say."""

    release: str
    isolated: IdList = ()
    nohz_full: IdList = ()
    rcu_nocbs: IdList = ()
    smt: str | None = None
    transparent_hugepages: str | None = None
    numa_balancing: bool | None = None
    bandwidth_limits: Literal["ready", "not mounted", "not in kernel", "none"] | None = None
    """Whether memory bandwidth can be limited by group (resctrl): ``none`` where the processor cannot."""


class Topology(Part):
    """One machine."""

    version: Literal[1] = 1
    arch: str
    hypervisor: str | None
    """``none`` on bare metal, else its name; None where nothing says: then nothing is promised."""
    container: str | None
    allowed_cpus: IdList
    allowed_nodes: IdList
    kernel: KernelFlags
    cores: tuple[Core, ...]
    caches: tuple[Cache, ...]
    nodes: tuple[MemoryNode, ...]
    pci: tuple[PciDevice, ...]
    nvml: str
    """``ok``, or why NVML gives nothing."""
    driver: str | None = None
    cuda: str | None = None
    """The newest CUDA that the driver serves, ``13.0``."""
    gpus: tuple[Gpu, ...]
    device_nodes: tuple[DeviceNode, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    governors: tuple[Governor, ...] = ()
    cgroups: tuple[CgroupRight, ...] = ()
    device_fence: DeviceFenceMethod = "none"
    """How device nodes can be kept from a slot here."""

    @cached_property
    def core_of(self) -> dict[int, Core]:
        """Core by CPU."""
        return {cpu: core for core in self.cores for cpu in core.cpus}

    @cached_property
    def core_by_id(self) -> dict[int, Core]:
        """Core by its id."""
        return {core.id: core for core in self.cores}

    @cached_property
    def allowed_set(self) -> frozenset[int]:
        """``allowed_cpus`` as a set."""
        return frozenset(self.allowed_cpus)

    @cached_property
    def pci_of(self) -> dict[str, PciDevice]:
        """PCI device by address."""
        return {device.address: device for device in self.pci}

    @cached_property
    def node_of(self) -> dict[int, MemoryNode]:
        """Memory node by id."""
        return {node.id: node for node in self.nodes}

    @property
    def bare_metal(self) -> bool:
        """True only where the machine says that no hypervisor runs it."""
        return self.hypervisor == "none"

    def gpus_called(self, name: str) -> list[Gpu]:
        """GPUs whose UUID begins so, or that sit at this PCI address (with or without its domain)."""
        short = name.lower()
        if short.count(":") == 1:
            short = f"0000:{short}"
        return [gpu for gpu in self.gpus if gpu.uuid.lower().startswith(short) or gpu.pci == short]

    def gpu(self, uuid: str) -> Gpu:
        """The GPU with this UUID; KeyError where there is none."""
        for gpu in self.gpus:
            if gpu.uuid == uuid:
                return gpu
        raise KeyError(uuid)

    def cuda_index(self, uuid: str) -> int:
        """The index that CUDA gives this GPU under CUDA_DEVICE_ORDER=PCI_BUS_ID with all GPUs visible."""
        return sorted(g.pci for g in self.gpus).index(self.gpu(uuid).pci)

    def right(self, controller: str) -> CgroupRight:
        """The right to one of CONTROLLERS."""
        for right in self.cgroups:
            if right.controller == controller:
                return right
        return CgroupRight(
            controller=controller, version=0, base=None, granted=False, reason="not looked for"
        )

    def dump(self) -> str:
        """This machine as JSON, one part a line."""
        return dump_by_line(self.model_dump(mode="json"))

    @classmethod
    def parse(cls, text: str, source: str = "recorded machine") -> Topology:
        """A machine out of ``dump()``'s JSON. Raises TopologyError, naming the field."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(x) for x in first["loc"]) or "the whole file"
            raise TopologyError(f"{source}: {where}: {first['msg']}") from None

    @classmethod
    def load(cls, path: Path) -> Topology:
        """A recorded machine. Raises TopologyError."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise TopologyError(f"{path}: {error.strerror}") from None
        return cls.parse(text, str(path))


def dump_by_line(value: dict[str, Any]) -> str:
    """JSON with one member, or one element of a member that is a list, a line: good to read and to diff."""
    lines = []
    for key, member in value.items():
        if isinstance(member, list) and member and isinstance(member[0], dict):
            body = ",\n".join("    " + json.dumps(item, ensure_ascii=False) for item in member)
            lines.append(f"  {json.dumps(key)}: [\n{body}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(member, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
