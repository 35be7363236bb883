"""Turns a recorded machine back into what the readers read: a sysfs and procfs tree, and NVML's answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_pinning import cpulist
from gpu_pinning.machine import Gpu, Topology

RECORDED = Path(__file__).parents[2] / "recorded_machines"


def recorded(name: str) -> Topology:
    """A recorded machine by name."""
    return Topology.load(RECORDED / f"{name}.json")


def put(root: Path, path: str, text: object) -> None:
    """Write a kernel file."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{text}\n")


def write_tree(machine: Topology, root: Path) -> None:
    """The parts of /sys and /proc that describe ``machine``, in the kernel's formats."""
    cpus = [cpu for core in machine.cores for cpu in core.cpus]
    base = "sys/devices/system/cpu"
    put(root, f"{base}/online", cpulist.show(cpus))
    put(root, f"{base}/isolated", cpulist.show(machine.kernel.isolated))
    if machine.kernel.smt:
        put(root, f"{base}/smt/control", machine.kernel.smt)
    for core in machine.cores:
        for cpu in core.cpus:
            put(root, f"{base}/cpu{cpu}/topology/core_cpus_list", cpulist.show(core.cpus))
            put(root, f"{base}/cpu{cpu}/topology/physical_package_id", core.package)
            put(root, f"{base}/cpu{cpu}/topology/die_id", core.die)
            put(root, f"{base}/cpu{cpu}/cache/index0/level", 1)
            put(root, f"{base}/cpu{cpu}/cache/index0/type", "Data")
            put(root, f"{base}/cpu{cpu}/cache/index0/shared_cpu_list", cpulist.show(core.cpus))
    for cache in machine.caches:
        for cpu in cache.cpus:
            folder = f"{base}/cpu{cpu}/cache/index{cache.level}"
            put(root, f"{folder}/level", cache.level)
            put(root, f"{folder}/type", "Unified")
            put(root, f"{folder}/size", f"{(cache.bytes or 0) >> 10}K")
            put(root, f"{folder}/shared_cpu_list", cpulist.show(cache.cpus))
    put(root, "sys/devices/system/node/online", cpulist.show(node.id for node in machine.nodes))
    for node in machine.nodes:
        folder = f"sys/devices/system/node/node{node.id}"
        put(root, f"{folder}/cpulist", cpulist.show(node.cpus))
        put(root, f"{folder}/meminfo", f"Node {node.id} MemTotal:       {node.bytes // 1024} kB")
        put(root, f"{folder}/distance", " ".join(str(x) for x in node.distances.values()))
    classes = {"gpu": "0x030200", "network": "0x020000", "storage": "0x010802"}
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    for device in machine.pci:
        path = "/".join(["sys/devices", device.root or "pci", *device.bridges, device.address])
        put(root, f"{path}/class", classes[device.kind])
        put(root, f"{path}/numa_node", -1 if device.node is None else device.node)
        near = next((gpu.local_cpus for gpu in machine.gpus if gpu.pci == device.address), ())
        put(root, f"{path}/local_cpulist", cpulist.show(near))
        (links / device.address).symlink_to(root / path)
        for line in machine.interrupts:
            if line.device == device.address:
                put(root, f"{path}/msi_irqs/{line.irq}", "msix")
    table = ["           CPU0       CPU1"]
    for line in machine.interrupts:
        table.append(f" {line.irq}:          7          0 PCI-MSIX-{line.device}   0-edge      {line.name}")
        put(root, f"proc/irq/{line.irq}/smp_affinity_list", cpulist.show(line.cpus))
    put(root, "proc/interrupts", "\n".join(table))
    for number, governor in enumerate(machine.governors):
        put(root, f"{base}/cpufreq/policy{number}/scaling_governor", governor.name)
        put(root, f"{base}/cpufreq/policy{number}/affected_cpus", " ".join(str(x) for x in governor.cpus))
    if machine.kernel.transparent_hugepages:
        words = [f"[{w}]" if w == machine.kernel.transparent_hugepages else w for w in ("always", "madvise")]
        put(root, "sys/kernel/mm/transparent_hugepage/enabled", " ".join([*words, "never"]))
    put(root, "proc/sys/kernel/numa_balancing", int(bool(machine.kernel.numa_balancing)))
    put(root, "proc/sys/kernel/osrelease", machine.kernel.release)
    hypervisor = machine.hypervisor != "none"
    limits = machine.kernel.bandwidth_limits
    flags = ["fpu", "vme", *(["hypervisor"] if hypervisor else []), "sse2"]
    flags += ["mba"] if limits in ("not mounted", "not in kernel") else []
    put(root, "proc/cpuinfo", f"processor : 0\nflags\t\t: {' '.join(flags)}")
    put(root, "proc/filesystems", "nodev\tresctrl" if limits == "not mounted" else "nodev\tsysfs")
    if machine.hypervisor not in (None, "none"):
        put(root, "sys/hypervisor/type", machine.hypervisor)
    if machine.container == "docker":
        put(root, ".dockerenv", "")
    put(
        root,
        "proc/self/status",
        f"Name:\tx\nCpus_allowed_list:\t{cpulist.show(machine.allowed_cpus)}\n"
        f"Mems_allowed_list:\t{cpulist.show(machine.allowed_nodes)}",
    )
    for gpu in machine.gpus:
        for instance in gpu.mig:
            folder = f"proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{instance.gpu_instance}"
            put(root, f"{folder}/access", f"DeviceFileMinor: {instance.caps[0]}\nDeviceFileMode: 292")
            put(root, f"{folder}/ci0/access", f"DeviceFileMinor: {instance.caps[1]}\nDeviceFileMode: 292")


class NVMLError(Exception):
    """NVML's refusal."""


class RecordedNvml:
    """NVML's functions, answering for a recorded machine the way a driver does.

    ``lost`` holds UUIDs that fell off the bus; ``used`` and ``running`` may be changed while a test runs.
    """

    NVMLError = NVMLError
    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 2

    def __init__(self, machine: Topology) -> None:
        self.machine = machine
        self.lost: set[str] = set()
        self.used: dict[str, int] = {}
        self.running: dict[str, list[tuple[int, str, int]]] = {}
        self.throttle: dict[str, int] = {}
        self.ecc: dict[str, int] = {}

    def nvmlInit(self) -> None:
        if self.machine.nvml != "ok":
            raise NVMLError(self.machine.nvml.removeprefix("NVML does not start: "))

    def nvmlShutdown(self) -> None:
        return None

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return (self.machine.driver or "").encode()

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        major, minor = (self.machine.cuda or "0.0").split(".")
        return int(major) * 1000 + int(minor) * 10

    def nvmlDeviceGetCount(self) -> int:
        return len(self.machine.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return next(gpu for gpu in self.machine.gpus if gpu.nvml_index == index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        if uuid in self.lost:
            raise NVMLError("GPU is lost")
        for gpu in self.machine.gpus:
            if gpu.uuid == uuid:
                return gpu
            for instance in gpu.mig:
                if instance.uuid == uuid:
                    return instance
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return str(handle.uuid)

    def nvmlDeviceGetPciInfo(self, handle: Gpu) -> Any:
        return SimpleNamespace(busId=f"0000{handle.pci}".upper().encode())

    def nvmlDeviceGetMinorNumber(self, handle: Gpu) -> int:
        if handle.minor is None:
            raise NVMLError("Not Supported")
        return handle.minor

    def nvmlDeviceGetName(self, handle: Any) -> str:
        if isinstance(handle, Gpu):
            return handle.name
        owner = next(gpu for gpu in self.machine.gpus if handle in gpu.mig)
        return f"{owner.name} MIG {handle.profile}"

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        used = self.used.get(handle.uuid, getattr(handle, "memory_used_bytes", 0) or 0)
        return SimpleNamespace(total=handle.memory_bytes, used=used)

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> list[int]:
        return [int(handle.mig_enabled)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, index: int) -> Any:
        if index >= len(handle.mig):
            raise NVMLError("Not Found")
        return handle.mig[index]

    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        return int(handle.gpu_instance)

    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:
        return int(handle.compute_instance)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Gpu) -> int | None:
        return handle.pcie.generation

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Gpu) -> int | None:
        return handle.pcie.width

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Gpu) -> int | None:
        return handle.pcie.max_generation

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Gpu) -> int | None:
        return handle.pcie.max_width

    def nvmlDeviceGetNvLinkState(self, handle: Gpu, link: int) -> int:
        if not handle.nvlink:
            raise NVMLError("Not Supported")
        return int(link < sum(peer.links for peer in handle.nvlink))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Gpu, link: int) -> int:
        return 2

    def _rows(self, handle: Gpu, kind: str) -> list[Any]:
        if handle.processes is None:
            raise NVMLError("Insufficient Permissions")
        listed = [(p.pid, p.kind, p.memory_bytes) for p in handle.processes]
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used)
            for pid, which, used in [*listed, *self.running.get(handle.uuid, [])]
            if which == kind
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Gpu) -> list[Any]:
        return self._rows(handle, "compute")

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Gpu) -> list[Any]:
        return self._rows(handle, "graphics")

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        for gpu in self.machine.gpus:
            for process in gpu.processes or ():
                if process.pid == pid:
                    return process.name
        raise NVMLError("Not Found")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Gpu) -> int:
        return self.throttle.get(handle.uuid, 0)

    def nvmlDeviceGetTotalEccErrors(self, handle: Gpu, kind: int, counter: int) -> int:
        return self.ecc.get(handle.uuid, 0) if kind == 1 else 0

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:
        return 41
