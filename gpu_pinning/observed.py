"""A language model server as it was found running: the data that discovery gives and the plan may take."""

from __future__ import annotations

from typing import Literal

from gpu_pinning.cpulist import IdList
from gpu_pinning.machine import Part

ServerKind = Literal["vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp"]


class ObservedNeighbour(Part):
    """One running server."""

    kind: ServerKind
    pid: int
    """The process that listens, or the eldest."""
    pids: tuple[int, ...]
    model: str | None
    role: Literal["decode", "prefill", "both"]
    port: int | None
    gpus: tuple[str, ...]
    """UUIDs, out of NVML's process lists; else of open device files; else of its CUDA_VISIBLE_DEVICES."""
    cpus: IdList
    """CPUs that any of its threads may run on."""
    unit: str | None = None
    """systemd unit."""
    container: str | None = None
    """Container id."""
    whole_machine: bool
    """True where nothing holds it to a part of the machine's CPUs."""


def fence_command(cpus: str, found: ObservedNeighbour | None, name: str) -> str:
    """The command that holds a server to ``cpus`` (a CPU list)."""
    if found is None:
        return (
            f"systemctl set-property --runtime {name}.service AllowedCPUs={cpus}  # or its unit's real name"
        )
    if found.container:
        return f"docker update --cpuset-cpus={cpus} {found.container[:12]}"
    if found.unit:
        return f"systemctl set-property --runtime {found.unit} AllowedCPUs={cpus}"
    return " && ".join(f"taskset -acp {cpus} {pid}" for pid in found.pids)
