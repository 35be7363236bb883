"""Reads the machine that this process runs on."""

from __future__ import annotations

import os
import platform
import re
import stat
from pathlib import Path
from typing import Any

from gpu_pinning import device_fence as device_fences
from gpu_pinning import files, nvml, rights, sysfs, virt
from gpu_pinning.machine import CgroupRight, DeviceFenceMethod, DeviceNode, Gpu, PciDevice, Topology

_GPU_FILE = re.compile(r"nvidia(\d+)")


def read(
    root: Path = Path("/"),
    nvml_module: Any = None,
    cgroups: tuple[CgroupRight, ...] | None = None,
    device_nodes: tuple[DeviceNode, ...] | None = None,
    device_fence: DeviceFenceMethod | None = None,
) -> Topology:
    """The machine, out of NVML and the sysfs, procfs and devfs under ``root``.

    ``nvml_module`` stands in for ``pynvml``; ``cgroups``, ``device_nodes`` and ``device_fence`` for
    what would be probed and scanned. Raises TopologyError where not even CPUs can be read. A machine with no
    GPU, no NVML or no cgroup is a machine like any other.
    """
    caches = sysfs.read_caches(root, files.read_list(root / "sys/devices/system/cpu/online") or ())
    nodes = sysfs.read_nodes(root)
    cores = sysfs.read_cores(root, caches, nodes)
    pci = sysfs.read_pci(root)
    # The kernel's masks also allow CPUs and nodes that are offline, as on machines that can be extended.
    online, there = {cpu for core in cores for cpu in core.cpus}, {node.id for node in nodes}
    cpus, mems = (
        tuple(x for x in found if x in known)
        for found, known in zip(sysfs.allowed(root), (online, there), strict=True)
    )
    driver = cuda = None
    gpus: tuple[Gpu, ...] = ()
    state = "ok"
    with nvml.session(nvml_module) as lib:
        if isinstance(lib, str):
            state = lib
        else:
            driver, cuda = lib.driver(), lib.cuda()
            gpus = lib.gpus(
                local_cpus=lambda address: sysfs.local_cpus(root, address),
                node=_node_lookup(pci, root),
                caps=lambda minor, gi, ci: _mig_caps(root, minor, gi, ci),
                list_processes=not virt.own_pid_namespace(root),
            )
    if cgroups is None:
        cgroups = rights.probe(rights.own_hierarchies(root))
    if device_nodes is None:
        device_nodes = read_device_nodes(root, gpus)
    return Topology(
        arch=platform.machine(),
        hypervisor=virt.hypervisor(root),
        container=virt.container(root),
        allowed_cpus=cpus or tuple(cpu for core in cores for cpu in core.cpus),
        allowed_nodes=mems or tuple(node.id for node in nodes),
        kernel=sysfs.read_kernel(root),
        cores=cores,
        caches=caches,
        nodes=nodes,
        pci=pci,
        nvml=state,
        driver=driver,
        cuda=cuda,
        gpus=gpus,
        device_nodes=device_nodes,
        interrupts=sysfs.read_interrupts(root, pci),
        governors=sysfs.read_governors(root),
        cgroups=cgroups,
        device_fence=device_fence or device_fences.method(cgroups),
    )


def _node_lookup(pci: tuple[PciDevice, ...], root: Path) -> Any:
    known = {device.address: device.node for device in pci}

    def node(address: str) -> int | None:
        if address in known:
            return known[address]
        value = files.read_int(root / "sys/bus/pci/devices" / address / "numa_node")
        return value if value is not None and value >= 0 else None

    return node


def _mig_caps(root: Path, minor: int | None, gi: int, ci: int) -> tuple[int, ...]:
    """Minors of an instance's nvidia-caps nodes; the driver lists them by the GPU's minor."""
    base = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gi}"
    found = []
    for path in (base / "access", base / f"ci{ci}/access"):
        match = re.search(r"DeviceFileMinor:\s*(\d+)", files.read(path) or "")
        if match:
            found.append(int(match[1]))
    return tuple(found)


def read_device_nodes(root: Path, gpus: tuple[Gpu, ...]) -> tuple[DeviceNode, ...]:
    """Files under /dev through which a GPU can be opened: NVIDIA's own and DRM's.

    Those of the driver as such (``nvidiactl``, ``nvidia-uvm``, ``nvidia-nvswitch0``, ``nvidia-caps/…``)
    belong to no GPU.
    """
    by_minor = {gpu.minor: gpu.uuid for gpu in gpus if gpu.minor is not None}
    by_address = {gpu.pci: gpu.uuid for gpu in gpus}
    found = []
    for name in files.names(root / "dev"):
        if not name.startswith("nvidia"):
            continue
        match = _GPU_FILE.fullmatch(name)
        found += _node(root, f"dev/{name}", by_minor.get(int(match[1])) if match else None)
        # nvidia-caps (MIG), nvidia-caps-imex-channels (memory shared between machines)
        for below in files.names(root / "dev" / name):
            found += _node(root, f"dev/{name}/{below}", None)
    for name in files.names(root / "dev/dri"):
        device = os.path.basename(os.path.realpath(root / "sys/class/drm" / name / "device"))  # noqa: PTH119
        found += _node(root, f"dev/dri/{name}", by_address.get(device))
    return tuple(found)


def _node(root: Path, path: str, uuid: str | None) -> list[DeviceNode]:
    try:
        info = (root / path).stat()
    except OSError:
        return []
    if not stat.S_ISCHR(info.st_mode):
        return []
    return [DeviceNode(path=f"/{path}", major=os.major(info.st_rdev), minor=os.minor(info.st_rdev), gpu=uuid)]
