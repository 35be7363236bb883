"""Writes the recorded machines beside this file: ``python tests/recorded_machines/build.py``.

The numbers follow the makers' documents for such machines (core counts, cache sizes, how Linux numbers
hardware threads, which PCIe switch holds what); no machine here is anybody's. UUIDs are made up.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, Literal

from gpu_pinning.machine import (
    Cache,
    CgroupRight,
    Core,
    DeviceNode,
    Governor,
    Gpu,
    GpuProcess,
    Interrupt,
    KernelFlags,
    MemoryNode,
    MigInstance,
    NvLink,
    PciDevice,
    PcieLink,
    Topology,
)

HERE = Path(__file__).parent
GIB = 1 << 30
NAMESPACE = uuid.UUID("5a1f0000-0000-4000-8000-000000000000")


def gpu_uuid(machine: str, number: int) -> str:
    """A GPU's UUID that stays the same from build to build."""
    return f"GPU-{uuid.uuid5(NAMESPACE, f'{machine}/{number}')}"


def mig_uuid(machine: str, number: int) -> str:
    """A MIG instance's UUID."""
    return f"MIG-{uuid.uuid5(NAMESPACE, f'{machine}/mig/{number}')}"


def processors(
    sockets: int, cores: int, threads: int, per_llc: int, nodes_per_socket: int = 1, l3: int = 32 << 20
) -> tuple[list[Core], list[Cache], list[list[int]]]:
    """Cores numbered as Linux does: first threads of all cores, then second threads."""
    total = sockets * cores
    caches: list[Cache] = []
    llc_base = total
    found: list[Core] = []
    node_cpus: list[list[int]] = [[] for _ in range(sockets * nodes_per_socket)]
    for core in range(total):
        cpus = tuple(core + total * thread for thread in range(threads))
        socket = core // cores
        node = socket * nodes_per_socket + core % cores // (cores // nodes_per_socket)
        node_cpus[node] += cpus
        caches.append(Cache(id=core, level=2, bytes=1 << 20, cpus=cpus))
        found.append(
            Core(id=core, package=socket, die=0, node=node, llc=llc_base + core // per_llc, cpus=cpus)
        )
    for group in range(total // per_llc):
        cpus = tuple(cpu for core in found if core.llc == llc_base + group for cpu in core.cpus)
        caches.append(Cache(id=llc_base + group, level=3, bytes=l3, cpus=cpus))
    return found, caches, node_cpus


def memory(node_cpus: list[list[int]], gib: int, far: int = 32, bare: int = 0) -> list[MemoryNode]:
    """Nodes with CPUs, then ``bare`` nodes of memory alone (CXL)."""
    ids = range(len(node_cpus) + bare)
    return [
        MemoryNode(
            id=node,
            cpus=tuple(node_cpus[node]) if node < len(node_cpus) else (),
            bytes=(gib if node < len(node_cpus) else 128) * GIB,
            distances={
                other: 10 if other == node else far if max(node, other) < len(node_cpus) else 50
                for other in ids
            },
        )
        for node in ids
    ]


V2 = "/sys/fs/cgroup/system.slice/stillframe-node.service"


def delegated() -> tuple[CgroupRight, ...]:
    """A systemd machine on pure v2 with every controller delegated, devices by BPF."""
    return tuple(
        CgroupRight(controller=name, version=2, base=V2, granted=True)
        for name in ("cpuset", "cpu", "memory", "io", "pids", "devices", "freeze", "kill")
    )


def refused(reason: str) -> tuple[CgroupRight, ...]:
    """A machine that gives no right to any controller."""
    return tuple(
        CgroupRight(controller=name, version=2, base="/sys/fs/cgroup", granted=False, reason=reason)
        for name in ("cpuset", "cpu", "memory", "io", "pids", "devices", "freeze", "kill")
    )


def nvidia_nodes(gpus: list[Gpu]) -> tuple[DeviceNode, ...]:
    """The driver's device files, major 195 and the dynamic majors of uvm and caps."""
    nodes = [
        DeviceNode(path=f"/dev/nvidia{gpu.minor}", major=195, minor=gpu.minor or 0, gpu=gpu.uuid)
        for gpu in gpus
    ]
    nodes.append(DeviceNode(path="/dev/nvidiactl", major=195, minor=255, gpu=None))
    nodes.append(DeviceNode(path="/dev/nvidia-uvm", major=510, minor=0, gpu=None))
    for gpu in gpus:
        for instance in gpu.mig:
            nodes += [
                DeviceNode(path=f"/dev/nvidia-caps/nvidia-cap{cap}", major=511, minor=cap, gpu=gpu.uuid)
                for cap in instance.caps
            ]
    return tuple(sorted(nodes, key=lambda node: node.path))


def gpu(machine: str, number: int, name: str, pci: str, gib: int, **more: Any) -> Gpu:
    """One GPU with the usual values."""
    fields: dict[str, Any] = {
        "uuid": gpu_uuid(machine, number),
        "name": name,
        "pci": pci,
        "minor": number,
        "nvml_index": number,
        "memory_bytes": gib * GIB,
        "memory_used_bytes": 0,
        "node": None,
        "local_cpus": (),
        "pcie": PcieLink(generation=5, width=16, max_generation=5, max_width=16),
        "processes": (),
    }
    return Gpu(**{**fields, **more})


def function(
    address: str,
    kind: Literal["gpu", "network", "storage"],
    bridges: list[str],
    node: int | None,
    root: str | None = None,
) -> PciDevice:
    """A PCI function; its host bridge is the bus of its root port."""
    host = root or "pci" + (bridges[0] if bridges else address)[:7]
    return PciDevice(address=address, kind=kind, root=host, bridges=tuple(bridges), node=node)


def machine(**fields: Any) -> Topology:
    """A bare-metal Linux machine unless told otherwise."""
    cpus = tuple(cpu for core in fields["cores"] for cpu in core.cpus)
    usual: dict[str, Any] = {
        "arch": "x86_64",
        "hypervisor": "none",
        "container": None,
        "allowed_cpus": cpus,
        "allowed_nodes": tuple(node.id for node in fields["nodes"]),
        "kernel": KernelFlags(
            release="6.8.0-60-generic",
            smt="on",
            transparent_hugepages="madvise",
            numa_balancing=False,
            bandwidth_limits="not mounted",
        ),
        "pci": (),
        "nvml": "ok",
        "driver": "580.159.03",
        "cuda": "13.0",
        "gpus": (),
        "governors": (Governor(name="performance", cpus=cpus),),
        "cgroups": delegated(),
        "device_fence": "devices-bpf",
    }
    return Topology(**{**usual, **fields})


def hgx_8gpu() -> Topology:
    """Two sockets of 128 cores, eight NVSwitch-linked GPUs, two behind each of four PCIe switches."""
    cores, caches, node_cpus = processors(sockets=2, cores=128, threads=2, per_llc=8, l3=16 << 20)
    pci, gpus, lines = [], [], []
    for number in range(8):
        node, switch, place = number // 4, number // 2, number % 2
        bus = 0x18 + 0x20 * switch
        port, upstream = f"0000:{bus - 2:02x}:01.0", f"0000:{bus - 1:02x}:00.0"
        downstream = f"0000:{bus:02x}:0{place}.0"
        address = f"0000:{bus + 1 + place:02x}:00.0"
        pci.append(function(address, "gpu", [port, upstream, downstream], node))
        if place == 0:
            nic = f"0000:{bus + 4:02x}:00.0"
            pci.append(function(nic, "network", [port, upstream, f"0000:{bus:02x}:02.0"], node))
            lines += [
                Interrupt(
                    irq=300 + switch * 4 + q,
                    name=f"mlx5_comp{q}@pci:{nic}",
                    device=nic,
                    cpus=(node * 128 + q,),
                )
                for q in range(4)
            ]
        gpus.append(
            gpu(
                "hgx-8gpu",
                number,
                "NVIDIA H200",
                address,
                141,
                node=node,
                local_cpus=tuple(node_cpus[node]),
                nvlink=(NvLink(peer="switch", links=18),),
            )
        )
        lines.append(Interrupt(irq=200 + number, name="nvidia", device=address, cpus=tuple(node_cpus[node])))
    return machine(
        cores=cores,
        caches=caches,
        nodes=memory(node_cpus, 1152),
        pci=sorted(pci, key=lambda d: d.address),
        gpus=gpus,
        device_nodes=nvidia_nodes(gpus),
        interrupts=sorted(lines, key=lambda line: line.irq),
    )


def pcie_4gpu() -> Topology:
    """One socket of 32 cores, eight last-level caches; two GPUs on a switch, two on ports of their own."""
    cores, caches, node_cpus = processors(sockets=1, cores=32, threads=2, per_llc=4)
    switch = ["0000:40:01.1", "0000:41:00.0"]
    places = [
        ("0000:01:00.0", ["0000:00:01.1"], None),
        ("0000:43:00.0", [*switch, "0000:42:00.0"], None),
        ("0000:44:00.0", [*switch, "0000:42:01.0"], None),
        ("0000:81:00.0", ["0000:80:01.1"], None),
    ]
    gpus = [
        gpu("pcie-4gpu", i, "NVIDIA L40S", pci, 45, node=0, local_cpus=tuple(node_cpus[0]))
        for i, (pci, _, _) in enumerate(places)
    ]
    return machine(
        cores=cores,
        caches=caches,
        nodes=memory(node_cpus, 512),
        pci=[function(pci, "gpu", bridges, 0) for pci, bridges, _ in places],
        gpus=gpus,
        device_nodes=nvidia_nodes(gpus),
    )


def mig_box() -> Topology:
    """Two sockets of 32 cores; one GPU cut into 3g, 2g, 1g and 1g, the other whole."""
    cores, caches, node_cpus = processors(sockets=2, cores=32, threads=2, per_llc=32, l3=54 << 20)
    cuts = [("3g.20gb", 2, 20), ("2g.10gb", 3, 10), ("1g.5gb", 9, 5), ("1g.5gb", 10, 5)]
    instances = tuple(
        MigInstance(
            uuid=mig_uuid("mig-box", i),
            profile=profile,
            gpu_instance=gi,
            compute_instance=0,
            memory_bytes=gib * GIB - (256 << 20),
            caps=(3 + 9 * gi, 4 + 9 * gi),
        )
        for i, (profile, gi, gib) in enumerate(cuts)
    )
    gpus = [
        gpu(
            "mig-box",
            0,
            "NVIDIA A100-SXM4-40GB",
            "0000:07:00.0",
            40,
            node=0,
            local_cpus=tuple(node_cpus[0]),
            mig_enabled=True,
            mig=instances,
        ),
        gpu(
            "mig-box", 1, "NVIDIA A100-SXM4-40GB", "0000:87:00.0", 40, node=1, local_cpus=tuple(node_cpus[1])
        ),
    ]
    return machine(
        cores=cores,
        caches=caches,
        nodes=memory(node_cpus, 256, far=20),
        pci=[
            function("0000:07:00.0", "gpu", ["0000:00:03.1"], 0),
            function("0000:87:00.0", "gpu", ["0000:80:03.1"], 1),
        ],
        gpus=gpus,
        device_nodes=nvidia_nodes(gpus),
    )


def cxl_box() -> Topology:
    """Two sockets of 24 cores, two GPUs, and two CPU-less nodes of CXL memory."""
    cores, caches, node_cpus = processors(sockets=2, cores=24, threads=2, per_llc=24, l3=60 << 20)
    gpus = [
        gpu(
            "cxl-box", i, "NVIDIA L4", f"0000:{bus}:00.0", 23, node=i, local_cpus=tuple(node_cpus[i]),
            pcie=PcieLink(generation=1, width=8, max_generation=4, max_width=16),
        )
        for i, bus in enumerate(("2a", "bd"))
    ]  # fmt: skip
    return machine(
        cores=cores,
        caches=caches,
        nodes=memory(node_cpus, 256, far=21, bare=2),
        pci=[
            function("0000:2a:00.0", "gpu", ["0000:29:01.0"], 0),
            function("0000:bd:00.0", "gpu", ["0000:bc:01.0"], 1),
        ],
        gpus=gpus,
        device_nodes=nvidia_nodes(gpus),
    )


def permuted_minors() -> Topology:
    """Two sockets of 16 cores, four GPUs whose /dev numbers (3, 1, 0, 2) are not their NVML indices."""
    cores, caches, node_cpus = processors(sockets=2, cores=16, threads=2, per_llc=16, l3=36 << 20)
    minors = (3, 1, 0, 2)
    buses = ("3b", "5e", "af", "d8")
    gpus = [
        gpu(
            "permuted-minors", i, "NVIDIA RTX A6000", f"0000:{bus}:00.0", 48, minor=minors[i], node=i // 2,
            local_cpus=tuple(node_cpus[i // 2]),
        )
        for i, bus in enumerate(buses)
    ]  # fmt: skip
    ports = ("0000:3a:00.0", "0000:5d:00.0", "0000:ae:00.0", "0000:d7:00.0")
    return machine(
        cores=cores,
        caches=caches,
        nodes=memory(node_cpus, 192, far=21),
        pci=[
            function(f"0000:{bus}:00.0", "gpu", [port], i // 2)
            for i, (bus, port) in enumerate(zip(buses, ports, strict=True))
        ],
        gpus=gpus,
        device_nodes=nvidia_nodes(gpus),
    )


def virtual_machine() -> Topology:
    """A guest of 16 CPUs with one GPU on a flat PCI bus that tells no node."""
    cores, caches, node_cpus = processors(sockets=1, cores=16, threads=1, per_llc=16)
    gpus = [gpu("virtual-machine", 0, "NVIDIA H200", "0000:00:06.0", 141)]
    kernel = KernelFlags(
        release="6.1.0-cloud",
        smt="notsupported",
        transparent_hugepages="always",
        numa_balancing=False,
        bandwidth_limits="none",
    )
    return machine(
        hypervisor="kvm",
        kernel=kernel,
        cores=cores,
        caches=caches,
        nodes=memory(node_cpus, 128),
        pci=[function("0000:00:06.0", "gpu", [], None, root="pci0000:00")],
        gpus=gpus,
        device_nodes=nvidia_nodes(gpus),
        governors=(),
        cgroups=hybrid(),
        device_fence="devices-v1",
    )


def hybrid() -> tuple[CgroupRight, ...]:
    """kill and freeze in v2, the rest in v1."""
    v1 = {
        "cpuset": "cpuset",
        "cpu": "cpu",
        "memory": "memory",
        "io": "blkio",
        "pids": "pids",
        "devices": "devices",
    }
    rights = [
        CgroupRight(controller=name, version=1, base=f"/sys/fs/cgroup/{folder}", granted=True)
        for name, folder in v1.items()
    ]
    return (
        *rights,
        CgroupRight(controller="freeze", version=2, base="/sys/fs/cgroup/unified", granted=True),
        CgroupRight(controller="kill", version=2, base="/sys/fs/cgroup/unified", granted=True),
    )


def container() -> Topology:
    """A container on a two-socket machine: eight whole cores and four half ones, read-only cgroups."""
    cores, caches, node_cpus = processors(sockets=2, cores=24, threads=2, per_llc=24, l3=48 << 20)
    gpus = [
        gpu(
            "container", 0, "NVIDIA A40", "0000:31:00.0", 45, node=0, local_cpus=tuple(node_cpus[0]),
            processes=None,
        )
    ]  # fmt: skip
    return machine(
        container="docker",
        # Cores 4 to 11 with both threads (48 higher), cores 12 to 15 with the first thread alone.
        allowed_cpus=(*range(4, 16), *range(52, 60)),
        allowed_nodes=(0,),
        cores=cores,
        caches=caches,
        nodes=memory(node_cpus, 192, far=21),
        pci=[function("0000:31:00.0", "gpu", ["0000:30:02.0"], 0)],
        gpus=gpus,
        device_nodes=nvidia_nodes(gpus),
        cgroups=refused("Read-only file system"),
        device_fence="none",
    )


def laptop() -> Topology:
    """Six fast cores with two threads and eight slow ones with one, no GPU, no NVML."""
    cores = [Core(id=i, package=0, die=0, node=0, llc=8, cpus=(2 * i, 2 * i + 1)) for i in range(6)]
    cores += [Core(id=6 + i, package=0, die=0, node=0, llc=8, cpus=(12 + i,)) for i in range(8)]
    caches = [Cache(id=i, level=2, bytes=1280 << 10, cpus=(2 * i, 2 * i + 1)) for i in range(6)]
    caches += [
        Cache(id=6 + i, level=2, bytes=2 << 20, cpus=tuple(range(12 + 4 * i, 16 + 4 * i))) for i in range(2)
    ]
    caches.append(Cache(id=8, level=3, bytes=24 << 20, cpus=tuple(range(20))))
    return machine(
        cores=cores,
        caches=caches,
        nodes=[MemoryNode(id=0, cpus=tuple(range(20)), bytes=32 * GIB, distances={0: 10})],
        nvml="NVML does not start: NVML Shared Library Not Found",
        driver=None,
        cuda=None,
        governors=(Governor(name="powersave", cpus=tuple(range(20))),),
        kernel=KernelFlags(
            release="6.12.0-arch1",
            smt="on",
            transparent_hugepages="always",
            numa_balancing=False,
            bandwidth_limits="none",
        ),
        cgroups=refused("Permission denied"),
        device_fence="user-namespace",
    )


def workstation() -> Topology:
    """One socket, two caches; a GPU with a desktop and a language model on it, and a free one."""
    cores, caches, node_cpus = processors(sockets=1, cores=16, threads=2, per_llc=8)
    busy = (
        GpuProcess(pid=2211, kind="graphics", name="/usr/lib/xorg/Xorg", memory_bytes=310 << 20),
        GpuProcess(pid=4242, kind="compute", name="VLLM::EngineCore", memory_bytes=20 * GIB),
    )
    gpus = [
        gpu(
            "workstation", 0, "NVIDIA GeForce RTX 4090", "0000:01:00.0", 24, node=0,
            local_cpus=tuple(node_cpus[0]), processes=busy, memory_used_bytes=20 * GIB + (310 << 20),
        ),
        gpu(
            "workstation", 1, "NVIDIA GeForce RTX 4090", "0000:02:00.0", 24, node=0,
            local_cpus=tuple(node_cpus[0]),
        ),
    ]  # fmt: skip
    return machine(
        cores=cores,
        caches=caches,
        nodes=memory(node_cpus, 128),
        pci=[
            function("0000:01:00.0", "gpu", ["0000:00:01.1"], 0),
            function("0000:02:00.0", "gpu", ["0000:00:01.2"], 0),
        ],
        gpus=gpus,
        device_nodes=nvidia_nodes(gpus),
        governors=(Governor(name="schedutil", cpus=tuple(range(32))),),
    )


MACHINES = {
    "hgx-8gpu": hgx_8gpu,
    "pcie-4gpu": pcie_4gpu,
    "mig-box": mig_box,
    "cxl-box": cxl_box,
    "permuted-minors": permuted_minors,
    "virtual-machine": virtual_machine,
    "container": container,
    "laptop": laptop,
    "workstation": workstation,
}


if __name__ == "__main__":
    for name, build in MACHINES.items():
        (HERE / f"{name}.json").write_text(build().dump(), encoding="utf-8")
