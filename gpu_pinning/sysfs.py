"""Cores, caches, memory nodes, PCI devices, interrupts and kernel flags out of sysfs and procfs.

Formats: the kernel's Documentation/ABI/stable/sysfs-devices-system-cpu and -node,
Documentation/admin-guide/cputopology.rst and Documentation/PCI/sysfs-pci.rst. Every function takes the root
under which ``sys`` and ``proc`` lie, so that a tree on disk can stand for a machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from gpu_pinning import cpulist, files
from gpu_pinning.errors import TopologyError
from gpu_pinning.machine import Cache, Core, Governor, Interrupt, KernelFlags, MemoryNode, PciDevice

_CLASSES = {"03": "gpu", "12": "gpu", "02": "network", "01": "storage"}
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)


def _size(text: str | None) -> int | None:
    match = re.fullmatch(r"(\d+)([KMG]?)", text or "")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else None


def read_caches(root: Path, cpus: tuple[int, ...]) -> tuple[Cache, ...]:
    """Data and unified caches of level 2 and up, each once, last level last."""
    found: dict[tuple[int, tuple[int, ...]], int | None] = {}
    for cpu in cpus:
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/cache"
        for name in files.names(folder):
            if not name.startswith("index"):
                continue
            level = files.read_int(folder / name / "level")
            shared = files.read_list(folder / name / "shared_cpu_list")
            if level is None or level < 2 or not shared or (level, shared) in found:
                continue
            if files.read(folder / name / "type") != "Instruction":
                found[level, shared] = _size(files.read(folder / name / "size"))
    return tuple(
        Cache(id=number, level=level, bytes=found[level, shared], cpus=shared)
        for number, (level, shared) in enumerate(sorted(found))
    )


def read_nodes(root: Path) -> tuple[MemoryNode, ...]:
    """Online NUMA nodes with their memory and distances, also those without CPUs."""
    base = root / "sys/devices/system/node"
    ids = files.read_list(base / "online") or ()
    nodes = []
    for node in ids:
        folder = base / f"node{node}"
        total = re.search(r"MemTotal:\s*(\d+) kB", files.read(folder / "meminfo") or "")
        row = [int(x) for x in (files.read(folder / "distance") or "").split()]
        nodes.append(
            MemoryNode(
                id=node,
                cpus=files.read_list(folder / "cpulist") or (),
                bytes=int(total[1]) * 1024 if total else 0,
                distances=dict(zip(ids, row, strict=False)),
            )
        )
    return tuple(nodes)


def read_cores(root: Path, caches: tuple[Cache, ...], nodes: tuple[MemoryNode, ...]) -> tuple[Core, ...]:
    """Physical cores with their online hardware threads. Raises TopologyError where there are no CPUs."""
    base = root / "sys/devices/system/cpu"
    online = files.read_list(base / "online")
    if not online:
        raise TopologyError(f"{base}/online lists no CPUs")
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    last = max((cache.level for cache in caches), default=0)
    llc_of = {cpu: cache.id for cache in caches if cache.level == last for cpu in cache.cpus}
    cores: list[Core] = []
    seen: set[int] = set()
    for cpu in online:
        if cpu in seen:
            continue
        folder = base / f"cpu{cpu}/topology"
        threads = files.read_list(folder / "core_cpus_list") or files.read_list(
            folder / "thread_siblings_list"
        )
        threads = tuple(x for x in threads or (cpu,) if x in online)
        seen.update(threads)
        package = files.read_int(folder / "physical_package_id")
        die = files.read_int(folder / "die_id")
        cores.append(
            Core(
                id=len(cores),
                package=package if package is not None and package >= 0 else None,
                die=die if die is not None and die >= 0 else None,
                node=node_of.get(cpu),
                llc=llc_of.get(cpu),
                cpus=threads,
            )
        )
    return tuple(cores)


def read_pci(root: Path) -> tuple[PciDevice, ...]:
    """GPUs, network and storage controllers, with the bridges above them up to the root port."""
    base = root / "sys/bus/pci/devices"
    devices = []
    for address in files.names(base):
        code = (files.read(base / address / "class") or "").removeprefix("0x")
        kind = _CLASSES.get(code[:2])
        if kind is None:
            continue
        parts = Path(os.path.realpath(base / address)).parts
        above = [part for part in parts[:-1] if _ADDRESS.fullmatch(part)]
        host = next((part for part in parts if part.startswith("pci")), None)
        node = files.read_int(base / address / "numa_node")
        devices.append(
            PciDevice(
                address=address.lower(),
                kind=kind,  # type: ignore[arg-type]  # one of the literals of _CLASSES
                root=host,
                bridges=tuple(above),
                node=node if node is not None and node >= 0 else None,
            )
        )
    return tuple(devices)


def local_cpus(root: Path, address: str) -> tuple[int, ...]:
    """CPUs that the firmware calls near to a PCI device; empty where it does not say."""
    return files.read_list(root / "sys/bus/pci/devices" / address / "local_cpulist") or ()


def read_interrupts(root: Path, devices: tuple[PciDevice, ...]) -> tuple[Interrupt, ...]:
    """Interrupt lines of the PCI devices of interest, with the CPUs that may serve them."""
    owner: dict[int, str] = {}
    for device in devices:
        folder = root / "sys/bus/pci/devices" / device.address
        lines = files.names(folder / "msi_irqs") or [files.read(folder / "irq") or ""]
        owner.update({int(line): device.address for line in lines if line.isdigit() and line != "0"})
    if not owner:
        return ()
    label: dict[int, str] = {}
    for row in (files.read(root / "proc/interrupts") or "").splitlines():
        number, _, rest = row.strip().partition(":")
        if number.isdigit() and int(number) in owner:
            label[int(number)] = rest.split()[-1] if rest.split() else ""
    found = []
    for irq, address in sorted(owner.items()):
        cpus = files.read_list(root / f"proc/irq/{irq}/smp_affinity_list")
        if cpus is not None:
            found.append(Interrupt(irq=irq, name=label.get(irq, ""), device=address, cpus=cpus))
    return tuple(found)


def read_governors(root: Path) -> tuple[Governor, ...]:
    """Frequency governors and the CPUs under each; none where the kernel does not scale frequencies."""
    base = root / "sys/devices/system/cpu/cpufreq"
    cpus: dict[str, set[int]] = {}
    for policy in files.names(base):
        name = files.read(base / policy / "scaling_governor")
        covered = [int(x) for x in (files.read(base / policy / "affected_cpus") or "").split()]
        if name:
            cpus.setdefault(name, set()).update(covered)
    return tuple(Governor(name=name, cpus=tuple(sorted(found))) for name, found in sorted(cpus.items()))


def read_kernel(root: Path) -> KernelFlags:
    """Isolation flags and the settings that move latency."""
    cpu = root / "sys/devices/system/cpu"
    thp = re.search(r"\[(\w+)\]", files.read(root / "sys/kernel/mm/transparent_hugepage/enabled") or "")
    balancing = files.read_int(root / "proc/sys/kernel/numa_balancing")
    nocbs = re.search(r"\brcu_nocbs=([\d,:/-]+)", files.read(root / "proc/cmdline") or "")
    return KernelFlags(
        release=files.read(root / "proc/sys/kernel/osrelease") or "unknown",
        isolated=files.read_list(cpu / "isolated") or (),
        nohz_full=files.read_list(cpu / "nohz_full") or (),
        rcu_nocbs=cpulist.parse(nocbs[1]) if nocbs else (),
        smt=files.read(cpu / "smt/control"),
        transparent_hugepages=thp[1] if thp else None,
        numa_balancing=None if balancing is None else balancing != 0,
        bandwidth_limits=read_bandwidth_limits(root),
    )


def read_bandwidth_limits(root: Path) -> Literal["ready", "not mounted", "not in kernel", "none"] | None:
    """Whether memory bandwidth can be limited by group (Documentation/filesystems/resctrl.rst).

    ``None`` where the processor does not tell its flags.
    """
    if (root / "sys/fs/resctrl/info/MB").is_dir():
        return "ready"
    flags = re.search(r"^flags\s*:(.*)$", files.read(root / "proc/cpuinfo") or "", re.MULTILINE)
    if flags is None:
        return None
    if "mba" not in flags[1].split():
        return "none"
    return "not mounted" if "resctrl" in (files.read(root / "proc/filesystems") or "") else "not in kernel"


def allowed(root: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """CPUs and memory nodes that this process may use (/proc/self/status)."""
    text = files.read(root / "proc/self/status") or ""
    cpus = re.search(r"^Cpus_allowed_list:\s*(\S+)", text, re.MULTILINE)
    nodes = re.search(r"^Mems_allowed_list:\s*(\S+)", text, re.MULTILINE)
    return cpulist.parse(cpus[1]) if cpus else (), cpulist.parse(nodes[1]) if nodes else ()
