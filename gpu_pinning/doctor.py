"""What about this machine harms neighbours or slots, with the effect of each thing and the command that mends
it.

The findings are pure functions of topology, plan and what was observed; ``live_findings`` looks at what only
the running machine can tell (free space, torch, endpoints). Effects quote measurements of this project where
there are any.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from gpu_pinning import cpulist
from gpu_pinning.claims import APART
from gpu_pinning.machine import Part, Topology
from gpu_pinning.observed import ObservedNeighbour
from gpu_pinning.plan import Plan

Level = Literal["ok", "note", "warn", "bad"]
_LOW_SPACE = 10 << 30
# NVIDIA's release notes: the oldest Linux driver that runs each CUDA major (minor version compatibility).
_DRIVER_FOR_CUDA = {"11": 450, "12": 525, "13": 580}

_LIMIT_BANDWIDTH = (
    "mkdir /sys/fs/resctrl/farm; echo 'MB:0=50' > /sys/fs/resctrl/farm/schemata; "
    "for t in /proc/PID/task/*; do echo ${t##*/} > /sys/fs/resctrl/farm/tasks; done (for each slot's PID)"
)


class DoctorFinding(Part):
    """One thing that was looked at."""

    check: str
    level: Level
    what: str
    effect: str = ""
    mend: str = ""
    """A shell command, or what to do; empty where nothing is to be done."""


def examine(
    machine: Topology, plan: Plan | None = None, observed: Iterable[ObservedNeighbour] = ()
) -> tuple[DoctorFinding, ...]:
    """Findings that follow from what the machine has. Pure."""
    found = [_metal(machine), _container(machine), *_cgroups(machine), _device_fence(machine)]
    found += [_governor(machine), _smt(machine), _hugepages(machine), _balancing(machine), _gpus(machine)]
    found += _bandwidth(machine)
    if plan is not None:
        found += [_interrupts(plan), *_sharing(plan), *_neighbours(plan, observed)]
    return tuple(found)


def other_agents(clashes: Iterable[str]) -> tuple[DoctorFinding, ...]:
    """What other agents of this machine give out of this node's slots."""
    return tuple(
        DoctorFinding(
            check="other agents",
            level="bad",
            what=text,
            effect="two slots on the same cores or GPU, in no plan: this node's agent does not start",
            mend=APART,
        )
        for text in clashes
    )


def exit_code(findings: Iterable[DoctorFinding]) -> int:
    """0 where nothing is worse than a note, 1 with warnings, 2 where something is bad."""
    levels = {finding.level for finding in findings}
    return 2 if "bad" in levels else 1 if "warn" in levels else 0


def _find(check: str, level: Level, what: str, effect: str = "", mend: str = "") -> DoctorFinding:
    return DoctorFinding(check=check, level=level, what=what, effect=effect, mend=mend)


def _metal(machine: Topology) -> DoctorFinding:
    if machine.bare_metal:
        return _find("bare-metal", "ok", "bare metal")
    name = machine.hypervisor or "not known"
    return _find(
        "bare-metal",
        "warn",
        f"hypervisor: {name}",
        "cores that look separate may be threads of one real core: launch-bound decode beside encode on "
        "cores of its own measured 1.45 to 2.36 times its idle latency; class A is never given",
        "run on bare metal, or pin the guest's virtual CPUs to whole cores on the host",
    )


def _container(machine: Topology) -> DoctorFinding:
    if machine.container is None:
        return _find("container", "ok", "no container")
    return _find(
        "container",
        "note",
        f"inside a container ({machine.container})",
        "processes of others on the GPUs may not be seen, so no GPU is taken unless farm.toml names it",
        "run the node agent on the host (`farm node install`), or start the container with --pid=host",
    )


def _cgroups(machine: Topology) -> list[DoctorFinding]:
    effects = {
        "cpuset": "slots are held by affinity, which a child can widen; class A is not given",
        "kill": "slots are ended process by process, and one that leaves its session may be missed",
        "freeze": "slots are stopped by SIGSTOP, which programs can notice",
        "memory": "a slot's memory cannot be limited",
        "io": "a slot's disk writes cannot be limited",
        "pids": "a slot's processes cannot be limited",
        "cpu": "slots cannot be slowed down step by step",
    }
    bad = [(name, machine.right(name)) for name in effects if not machine.right(name).granted]
    if not bad:
        versions = {str(machine.right(name).version) for name in effects}
        return [_find("cgroups", "ok", f"all controllers can be used (v{' and v'.join(sorted(versions))})")]
    return [
        _find(
            f"cgroup-{name}",
            "warn" if name in ("cpuset", "kill", "freeze") else "note",
            f"no right to {name}: {right.reason or 'not there'}",
            effects[name],
            "farm node install, then: systemctl start stillframe-node",
        )
        for name, right in bad
    ]


def _device_fence(machine: Topology) -> DoctorFinding:
    if machine.device_fence != "none":
        return _find("device-fence", "ok", f"device nodes are kept from slots by {machine.device_fence}")
    if not machine.device_nodes:
        return _find("device-fence", "note", "no way to fence device nodes, and no GPU nodes here")
    return _find(
        "device-fence",
        "warn",
        "device nodes are not fenced",
        "engines that ignore CUDA_VISIBLE_DEVICES (EGL, Vulkan) can open a neighbour's GPU",
        "farm node install (the unit gives the right), or allow user namespaces: "
        "sysctl -w kernel.unprivileged_userns_clone=1",
    )


def _governor(machine: Topology) -> DoctorFinding:
    if not machine.governors:
        return _find("governor", "ok", "no frequency governor")
    slow = [g for g in machine.governors if g.name != "performance"]
    if not slow:
        return _find("governor", "ok", "governor: performance")
    text = ", ".join(f"{g.name} on CPUs {cpulist.show(g.cpus)}" for g in slow)
    return _find(
        "governor",
        "warn",
        f"governor: {text}",
        "decode steps that wait for the CPU begin at a low clock",
        "cpupower frequency-set -g performance",
    )


def _smt(machine: Topology) -> DoctorFinding:
    pairs = sum(len(core.cpus) > 1 for core in machine.cores)
    if not pairs:
        return _find("smt", "ok", "one thread per core")
    return _find(
        "smt",
        "note",
        f"SMT is on: {pairs} cores have several threads",
        "the plan gives whole cores, so no slot is a neighbour's sibling; its own threads still share",
        "for the stillest decode: echo off > /sys/devices/system/cpu/smt/control",
    )


def _hugepages(machine: Topology) -> DoctorFinding:
    if machine.kernel.transparent_hugepages != "always":
        return _find("hugepages", "ok", f"transparent huge pages: {machine.kernel.transparent_hugepages}")
    return _find(
        "hugepages",
        "note",
        "transparent huge pages: always",
        "compaction can stall a neighbour's thread for milliseconds when memory is fragmented",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _balancing(machine: Topology) -> DoctorFinding:
    if not machine.kernel.numa_balancing or len(machine.nodes) < 2:
        return _find("numa-balancing", "ok", "NUMA balancing is off or has nothing to do")
    return _find(
        "numa-balancing",
        "warn",
        "NUMA balancing is on",
        "the kernel unmaps pages to watch them, and moves them: hiccups in decode and in pinned buffers",
        "sysctl -w kernel.numa_balancing=0",
    )


def _bandwidth(machine: Topology) -> list[DoctorFinding]:
    """Cores of one's own leave the memory shared; some processors can limit who takes how much of it."""
    what = "memory bandwidth by group (resctrl): "
    match machine.kernel.bandwidth_limits:
        case None:
            return []
        case "none":
            return [_find("memory-bandwidth", "ok", what + "this processor, or hypervisor, sets no limits")]
        case "ready":
            state, mend = "can be limited; the farm sets no limit by itself", _LIMIT_BANDWIDTH
        case "not mounted":
            state, mend = "could be limited, but is not mounted", "mount -t resctrl resctrl /sys/fs/resctrl"
        case _:
            state = "the processor could limit it, the kernel cannot"
            mend = "run a kernel with CONFIG_X86_CPU_RESCTRL"
    effect = "farm work on cores of its own still shares it with a decode that the host limits"
    return [_find("memory-bandwidth", "note", what + state, effect, mend)]


def _gpus(machine: Topology) -> DoctorFinding:
    if machine.gpus:
        return _find("gpus", "ok", f"{len(machine.gpus)} GPUs, driver {machine.driver}, CUDA {machine.cuda}")
    level: Level = "ok" if not machine.device_nodes else "bad"
    return _find(
        "gpus",
        level,
        f"no GPU: {machine.nvml}",
        "" if level == "ok" else "device nodes are there, but NVML finds no GPU",
        "" if level == "ok" else "nvidia-smi; dmesg | grep -i nvrm",
    )


def _interrupts(plan: Plan) -> DoctorFinding:
    if not plan.interrupts:
        return _find("interrupts", "ok", "no interrupt line of another device runs on decode cores")
    return _find(
        "interrupts",
        "warn",
        f"{len(plan.interrupts)} interrupt lines may run on decode cores",
        "each interrupt steals microseconds from a decode step",
        "systemctl stop irqbalance; " + "; ".join(move.command for move in plan.interrupts),
    )


def _sharing(plan: Plan) -> list[DoctorFinding]:
    found = []
    for neighbour in plan.neighbours:
        pairs = [pair for pair in plan.sharing if pair.neighbour == neighbour.name]
        for grade in ("C", "B"):
            same = [pair for pair in pairs if pair.guarantee == grade]
            if same:
                found.append(
                    _find(
                        "sharing",
                        "warn" if grade == "C" else "note",
                        f"{len(same)} of {len(pairs)} slots are class {grade} beside {neighbour.name}",
                        same[0].reason,
                        same[0].raise_by,
                    )
                )
        if pairs and all(pair.guarantee == "A" for pair in pairs):
            found.append(_find("sharing", "ok", f"every slot is class A beside {neighbour.name}"))
    return found


def _neighbours(plan: Plan, observed: Iterable[ObservedNeighbour]) -> list[DoctorFinding]:
    found = [
        _find(
            "neighbour-fence",
            "warn",
            f"nothing holds {n.name} to CPUs {cpulist.show(n.cpus)}",
            "its threads may run on the farm's cores, where p99 latency measured up to 2.2 times its own",
            n.mend or "",
        )
        for n in plan.neighbours
        if n.fence == "none"
    ]
    declared = {gpu for n in plan.neighbours for gpu in n.gpus}
    for seen in observed:
        # One whose GPUs cannot be seen may be any of the declared ones.
        if not declared & set(seen.gpus) and (seen.gpus or not plan.neighbours):
            found.append(
                _find(
                    "neighbour-unknown",
                    "warn",
                    f"a {seen.kind} server (pid {seen.pid}) is not declared in farm.toml",
                    "the farm keeps off its GPU, but not off its cores",
                    "farm neighbours discover",
                )
            )
    return found


def live_findings(
    machine: Topology,
    folders: Iterable[Path] = (),
    endpoints: Iterable[tuple[str, str]] = (),
    seconds: float = 2.0,
) -> tuple[DoctorFinding, ...]:
    """What only the running machine can tell: torch, free space, and whether endpoints (name, URL) answer."""
    found = [_torch(machine)]
    found += [_space(folder) for folder in folders]
    found += [_endpoint(name, url, seconds) for name, url in endpoints]
    return tuple(found)


def torch_finding(machine: Topology, version: str | None) -> DoctorFinding:
    """Whether this driver runs the CUDA that torch was built for. Pure."""
    if version is None:
        return _find("torch", "note", "torch is not installed", "no video and no NeRF work on this node")
    build = re.search(r"\+cu(\d\d)(\d)", version)
    if not machine.gpus:
        return _find("torch", "ok", f"torch {version}, no GPU")
    if build is None:
        return _find(
            "torch",
            "bad" if "+cpu" in version else "note",
            f"torch {version} names no CUDA build",
            "GPU slots may fall back to nothing",
            "install the CUDA build of torch",
        )
    needed = _DRIVER_FOR_CUDA.get(build[1])
    driver = int((machine.driver or "0").split(".")[0])
    if needed is not None and driver < needed:
        return _find(
            "torch",
            "bad",
            f"torch {version} needs driver {needed} or newer, and {machine.driver} is here",
            "every GPU task fails at its first CUDA call",
            f"install driver {needed}, or torch for CUDA {machine.cuda}",
        )
    return _find("torch", "ok", f"torch {version} with driver {machine.driver}")


def _torch(machine: Topology) -> DoctorFinding:
    # Read from torch's own files: importing it takes seconds and may touch CUDA.
    try:
        version = importlib.metadata.version("torch")
        spec = importlib.util.find_spec("torch")
    except importlib.metadata.PackageNotFoundError:
        return torch_finding(machine, None)
    if spec is not None and spec.origin is not None:
        with contextlib.suppress(OSError):
            version = torch_build(version, Path(spec.origin).with_name("version.py").read_text())
    return torch_finding(machine, version)


def torch_build(version: str, text: str) -> str:
    """The version with its CUDA build, out of ``torch/version.py``: packages may leave it out of theirs.

    A CUDA build may be called plain ``2.11.0`` in its metadata.
    """
    own = re.search(r"^__version__ = ['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    version = own[1] if own else version
    cuda = re.search(r"^cuda\b[^=]*= ['\"](\d+)\.(\d+)", text, re.MULTILINE)
    if cuda and "+" not in version:
        version += f"+cu{cuda[1]}{cuda[2]}"
    return version


def _space(folder: Path) -> DoctorFinding:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    free = shutil.disk_usage(there).free
    text = f"{folder}: {free / 2**30:.0f} GiB free"
    if free >= _LOW_SPACE:
        return _find("space", "ok", text)
    return _find("space", "bad", text, "frames and checkpoints cannot be written", f"farm gc; df -h {there}")


def _endpoint(name: str, url: str, seconds: float) -> DoctorFinding:
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite"):
        return _find(name, "ok", f"{name}: SQLite in a file")
    if parts.scheme in ("unix", "redis+socket") or (not parts.hostname and parts.path):
        family, address = socket.AF_UNIX, parts.path
        if Path(address).is_socket():
            return _find(name, "ok", f"{name}: {family.name} {address}")
        return _find(
            name, "bad", f"{name}: {address} is no socket", f"no work without the {name}", f"start the {name}"
        )
    default = {"redis": 6379, "rediss": 6379}.get(parts.scheme.split("+")[0], 5432)
    where = (parts.hostname or "localhost", parts.port or default)
    try:
        socket.create_connection(where, timeout=seconds).close()
    except OSError as error:
        return _find(
            name,
            "bad",
            f"{name}: {where[0]}:{where[1]} does not answer: {error.strerror or error}",
            f"no work without the {name}",
            f"start the {name}, or correct its URL",
        )
    return _find(name, "ok", f"{name}: {where[0]}:{where[1]} answers")
