"""Keeping device nodes from a slot: engines that ignore CUDA_VISIBLE_DEVICES (EGL, Vulkan) open them
directly.

Four methods, strongest and least intrusive first: the devices controller of cgroup v1; a BPF program on a v2
group; a mount namespace in which the nodes are covered (root); the same inside a user namespace (anyone,
where the kernel allows it). All are read back by opening the nodes from inside.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpu_pinning import bpf_devices, files, probes, rights
from gpu_pinning.errors import FenceError, TopologyError
from gpu_pinning.machine import CgroupRight, DeviceFenceMethod, DeviceNode

_MISC_MAJOR = 10
_answers: dict[str, str] = {}
"""What the trial said last, by the Python that made it."""
LAUNCHER = Path(__file__).with_name("launch.py")


def method(cgroups: tuple[CgroupRight, ...]) -> DeviceFenceMethod:
    """The method that works here, found by trying.

    Where the trial is cut off, the last answer in this process stands. Raises TopologyError without one: "no
    right" would put every slot outside its fence.
    """
    by_name = {right.controller: right for right in cgroups}
    devices = by_name.get("devices")
    if devices and devices.granted and devices.version == 1:
        return "devices-v1"
    kill = by_name.get("kill")
    if kill and kill.granted and kill.base and not _try_bpf(Path(kill.base)):
        return "devices-bpf"
    argv = [sys.executable, "-I", "-S", str(LAUNCHER), "--try-namespaces"]
    try:
        answer = _answers[argv[0]] = probes.ask(argv, 10)
    except TopologyError:
        if argv[0] not in _answers:
            raise
        answer = _answers[argv[0]]
    if answer == "mount-namespace":
        return "mount-namespace"
    return "user-namespace" if answer == "user-namespace" else "none"


def _try_bpf(base: Path) -> str:
    try:
        with rights.child(base) as group:
            bpf_devices.deny(group, [(195, None)])
    except FenceError as error:
        return str(error)
    except OSError as error:
        return error.strerror or "refused"
    return ""


def denied_numbers(nodes: tuple[DeviceNode, ...], keep_none: bool) -> list[tuple[int, int | None]]:
    """What to refuse: a CPU slot (``keep_none``) loses whole majors, so that a node made later is covered
    too.

    DRM's major (226) and the driver's (195, and dynamic ones) hold nothing but GPUs; the one for all kinds of
    devices (10: fuse, kvm, …) does.
    """
    exact = {(node.major, node.minor) for node in nodes if not keep_none or node.major == _MISC_MAJOR}
    whole = {node.major for node in nodes if keep_none and node.major != _MISC_MAJOR}
    return [*((major, None) for major in sorted(whole)), *sorted(exact)]


def deny_v1(group: Path, numbers: list[tuple[int, int | None]]) -> None:
    """Refuse devices to a v1 devices group. Raises FenceError."""
    for major, minor in numbers:
        rule = f"c {major}:{'*' if minor is None else minor} rwm"
        try:
            files.write(group / "devices.deny", rule)
        except OSError as error:
            raise FenceError(f"{group}/devices.deny: {rule!r}: {error.strerror}") from None
