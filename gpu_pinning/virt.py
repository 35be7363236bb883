"""Whether a hypervisor runs this machine, and whether a container holds this process."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gpu_pinning import files, probes
from gpu_pinning.errors import TopologyError

_answers: dict[str, str] = {}
"""What each program said last."""
_DMI = {
    "qemu": "qemu",
    "kvm": "kvm",
    "vmware": "vmware",
    "virtualbox": "oracle",
    "innotek": "oracle",
    "xen": "xen",
    "microsoft corporation virtual machine": "microsoft",
    "google compute engine": "google",
    "openstack": "openstack",
    "bhyve": "bhyve",
    "parallels": "parallels",
}
_CONTAINER_CGROUPS = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("lxc", "lxc"),
    ("crio", "crio"),
    ("containerd", "containerd"),
)


def hypervisor(root: Path) -> str | None:
    """``none`` on bare metal, the hypervisor's name, or None where nothing says.

    Asked in turn: ``systemd-detect-virt --vm`` (only for the running machine), /sys/hypervisor, DMI and the
    CPU's own ``hypervisor`` flag. The flag is set by every x86 hypervisor that does not hide itself; cloud
    "metal" machines do not set it. Where the program is there and does not answer, its last answer in this
    process stands; without one, only a hypervisor that shows itself otherwise is known.
    """
    asked = True
    if root == Path("/") and (tool := shutil.which("systemd-detect-virt")):
        try:
            _answers[tool] = probes.ask([tool, "--vm"], 2)
        except TopologyError:
            asked = tool in _answers
        if asked and _answers[tool] not in ("none", ""):
            return _answers[tool]
    found = _by_traces(root)
    return found if asked or found != "none" else None


def _by_traces(root: Path) -> str | None:
    if kind := files.read(root / "sys/hypervisor/type"):
        return kind
    dmi = " ".join(
        text
        for name in ("sys_vendor", "product_name", "board_vendor")
        if (text := files.read(root / "sys/class/dmi/id" / name))
    ).lower()
    for word, name in _DMI.items():
        if word in dmi:
            return name
    if (root / "proc/device-tree/hypervisor").exists():
        return "device-tree"
    info = files.read(root / "proc/cpuinfo")
    if info is None:
        return None
    flags = re.search(r"^flags\s*:(.*)$", info, re.MULTILINE)
    if flags is None:
        # No x86 flags line (Arm, POWER): DMI is the only witness, and without it nothing is known.
        return "none" if dmi else None
    return "unnamed" if " hypervisor" in flags.group(1) else "none"


def container(root: Path) -> str | None:
    """The kind of container around this process, or None."""
    if text := files.read(root / "run/systemd/container"):
        return text
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if (root / ".dockerenv").exists():
        return "docker"
    cgroup = files.read(root / "proc/1/cgroup") or ""
    for word, name in _CONTAINER_CGROUPS:
        if word in cgroup:
            return name
    return None


def own_pid_namespace(root: Path) -> bool:
    """Whether this process sees only a part of the machine's processes.

    The first PID namespace has the fixed inode 0xEFFFFFFC (``PROC_PID_INIT_INO`` in the kernel's
    include/linux/proc_ns.h).
    """
    try:
        return (root / "proc/self/ns/pid").stat().st_ino != 0xEFFFFFFC
    except OSError:
        return True
