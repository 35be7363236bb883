"""Finds the language model servers that run on this machine, and where they may really run.

A server is recognised by its command line or by the title that its workers give themselves
(``VLLM::EngineCore``, ``sglang::scheduler``). Processes of one server are those of one session or one
ancestor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from gpu_pinning import procfs
from gpu_pinning.machine import Topology
from gpu_pinning.observed import ObservedNeighbour, ServerKind
from gpu_pinning.procfs import PROC, Process

_ENTRY: tuple[tuple[ServerKind, str], ...] = (
    ("vllm", r"vllm\.entrypoints\.(openai\.)?api_server|(^|[/ ])vllm serve( |$)"),
    ("sglang", r"sglang\.launch_server|(^|[/ ])sglang serve( |$)"),
    ("tensorrt-llm", r"(^|[/ ])trtllm-serve( |$)|tensorrt_llm\.commands\.serve"),
    ("tgi", r"(^|[/ ])text-generation-(launcher|server)( |$)"),
    ("llama.cpp", r"(^|[/ ])llama-server( |$)"),
)
_TITLE: tuple[tuple[ServerKind, str], ...] = (("vllm", r"^VLLM::"), ("sglang", r"^sglang::"))
_DEFAULT_PORT: dict[ServerKind, int] = {
    "vllm": 8000,
    "sglang": 30000,
    "tensorrt-llm": 8000,
    "tgi": 3000,
    "llama.cpp": 8080,
}
_CONTAINER = re.compile(r"(?:docker|cri-containerd|crio|libpod)[-/]([0-9a-f]{64})|/([0-9a-f]{64})(?:/|$)")
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?:/|$)")


def discover_neighbours(machine: Topology, proc: Path = PROC) -> tuple[ObservedNeighbour, ...]:
    """Every server found, in order of pid. What cannot be read of other users' processes stays unknown."""
    everyone = {p.pid: p for p in procfs.all_processes(proc) if p.state not in "ZX"}
    commands = {pid: procfs.command(pid, proc) for pid in everyone}
    kinds = {pid: kind for pid, argv in commands.items() if (kind := _kind(argv)) is not None}
    roots = [pid for pid in kinds if _ancestor(everyone, kinds, pid) is None]
    found = []
    for root in sorted(roots):
        members = _members(everyone, root)
        found.append(_observe(machine, proc, kinds[root], root, members, commands))
    return tuple(found)


def _kind(argv: list[str]) -> ServerKind | None:
    line = " ".join(argv)
    # A shell or an editor that merely names a server is none: the entry point is among the first arguments.
    head = " ".join(argv[:4])
    for kind, pattern in _TITLE:
        if re.search(pattern, line):
            return kind
    if argv and Path(argv[0]).name in ("bash", "sh", "dash", "zsh", "grep", "vim", "less", "tail", "docker"):
        return None
    for kind, pattern in _ENTRY:
        if re.search(pattern, head):
            return kind
    return None


def _ancestor(everyone: Mapping[int, Process], kinds: Mapping[int, ServerKind], pid: int) -> int | None:
    parent = everyone[pid].parent
    while parent in everyone:
        if kinds.get(parent) == kinds[pid]:
            return parent
        parent = everyone[parent].parent
    return None


def _members(everyone: Mapping[int, Process], root: int) -> tuple[int, ...]:
    found = {root}
    while True:
        more = {p.pid for p in everyone.values() if p.parent in found} - found
        if not more:
            return tuple(sorted(found))
        found |= more


def _option(argv: list[str], *names: str) -> str | None:
    for name in names:
        for number, part in enumerate(argv):
            if part == name and number + 1 < len(argv):
                return argv[number + 1]
            if part.startswith(f"{name}="):
                return part.partition("=")[2]
    return None


def _observe(
    machine: Topology,
    proc: Path,
    kind: ServerKind,
    root: int,
    members: tuple[int, ...],
    commands: Mapping[int, list[str]],
) -> ObservedNeighbour:
    argv = commands[root]
    port = _option(argv, "--port", "-p")
    cpus: set[int] = set()
    for pid in members:
        for tid in procfs.threads(pid, proc):
            seen = procfs.allowed(pid, tid, proc)
            cpus |= set(seen[0]) if seen else set()
    online = {cpu for core in machine.cores for cpu in core.cpus}
    groups = procfs.cgroups(root, proc)
    container = next((m[1] or m[2] for path in groups.values() if (m := _CONTAINER.search(path))), None)
    path = groups.get("name=systemd") or groups.get("") or ""
    units = [unit for unit in _UNIT.findall(path) if not unit.startswith(("user@", "init.", "session-"))]
    return ObservedNeighbour(
        kind=kind,
        pid=root,
        pids=members,
        model=_model(kind, argv),
        role=_role(argv),
        port=int(port) if port and port.isdigit() else _DEFAULT_PORT[kind],
        gpus=_gpus(machine, proc, members),
        cpus=tuple(sorted(cpus & online)),
        unit=units[-1] if units and container is None else None,
        container=container,
        whole_machine=not cpus or online <= cpus,
    )


def _model(kind: ServerKind, argv: list[str]) -> str | None:
    # Of a Python module, -m names the module.
    short = ("-m",) if kind == "llama.cpp" else ()
    named = _option(argv, "--model", "--model-path", "--model-id", *short)
    if named is None:
        start = next((n for n, part in enumerate(argv) if part.endswith(("serve", "trtllm-serve"))), None)
        rest = argv[start + 1 :] if start is not None else []
        named = rest[0] if rest and not rest[0].startswith("-") else None
    return named


def _role(argv: list[str]) -> Literal["decode", "prefill", "both"]:
    """SGLang says it in one option; vLLM in its connector's JSON."""
    mode = _option(argv, "--disaggregation-mode")
    if mode == "prefill":
        return "prefill"
    if mode == "decode":
        return "decode"
    transfer = _option(argv, "--kv-transfer-config") or ""
    if "kv_producer" in transfer:
        return "prefill"
    return "decode" if "kv_consumer" in transfer else "both"


def _gpus(machine: Topology, proc: Path, members: tuple[int, ...]) -> tuple[str, ...]:
    own = set(members)
    by_nvml = [g.uuid for g in machine.gpus if any(p.pid in own for p in g.processes or ())]
    if by_nvml:
        return tuple(by_nvml)
    opened = {path for pid in members for path in procfs.open_devices(pid, proc)}
    by_file = {node.gpu for node in machine.device_nodes if node.path in opened and node.gpu}
    # The driver's library opens every GPU that it may: all of them says nothing, unless there is one.
    if by_file and (len(by_file) < len(machine.gpus) or len(machine.gpus) == 1):
        return tuple(sorted(by_file))
    environments = [procfs.environment(pid, proc) or {} for pid in members]
    environments = [procfs.environment(pid, proc) or {} for pid in members]
    stated = [env["CUDA_VISIBLE_DEVICES"] for env in environments if "CUDA_VISIBLE_DEVICES" in env]
    visible = stated[0] if stated else None
    if visible is None:
        return tuple(sorted(by_file))
    ordered = sorted(machine.gpus, key=lambda gpu: gpu.pci)
    found = []
    for part in visible.split(","):
        part = part.strip()
        if part.isdigit() and int(part) < len(ordered):
            found.append(ordered[int(part)].uuid)
        found += [gpu.uuid for gpu in machine.gpus if part.startswith("GPU-") and gpu.uuid.startswith(part)]
    return tuple(found)
