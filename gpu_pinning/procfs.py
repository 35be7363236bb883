"""Processes and their threads as /proc shows them (proc(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gpu_pinning import cpulist, files

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process: its parent, its session and when it started (clock ticks after boot)."""

    pid: int
    parent: int
    session: int
    started: int
    state: str
    name: str


def process(pid: int, proc: Path = PROC) -> Process | None:
    """What /proc/PID/stat says; None where there is no such process."""
    text = files.read(proc / str(pid) / "stat")
    if not text:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started=int(fields[19]),
        state=fields[0],
        name=head.partition("(")[2],
    )


def all_processes(proc: Path = PROC) -> list[Process]:
    """Every process, threads aside."""
    return [p for name in files.names(proc) if name.isdigit() and (p := process(int(name), proc)) is not None]


def family(pid: int, proc: Path = PROC, everyone: list[Process] | None = None) -> list[int]:
    """A process, its descendants, and whoever else is in the session that it leads; the dead left out.

    A child that was given another parent is found by its session; one that left both is not, which is why a
    cgroup is better. ``everyone`` saves a walk over /proc where it was walked just now.
    """
    everyone = [p for p in (everyone or all_processes(proc)) if p.state not in "ZX"]
    found = {p.pid for p in everyone if p.pid == pid or p.session == pid}
    while True:
        more = {p.pid for p in everyone if p.parent in found} - found
        if not more:
            return sorted(found)
        found |= more


def threads(pid: int, proc: Path = PROC) -> list[int]:
    """Thread ids of a process."""
    return [int(name) for name in files.names(proc / str(pid) / "task") if name.isdigit()]


def command(pid: int, proc: Path = PROC) -> list[str]:
    """A process's arguments."""
    text = files.read(proc / str(pid) / "cmdline") or ""
    return [part for part in text.split("\0") if part]


def environment(pid: int, proc: Path = PROC) -> dict[str, str] | None:
    """The environment that a process was started with; None where it cannot be read."""
    text = files.read(proc / str(pid) / "environ")
    if text is None:
        return None
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


def allowed(pid: int, tid: int, proc: Path = PROC) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """CPUs and memory nodes that a thread may use; None where it is gone."""
    text = files.read(proc / str(pid) / "task" / str(tid) / "status")
    if text is None:
        return None
    cpus = re.search(r"^Cpus_allowed_list:\s*(\S*)", text, re.MULTILINE)
    nodes = re.search(r"^Mems_allowed_list:\s*(\S*)", text, re.MULTILINE)
    return cpulist.parse(cpus[1]) if cpus else (), cpulist.parse(nodes[1]) if nodes else ()


def memory_policy(pid: int, proc: Path = PROC) -> str | None:
    """The policy of a process's ordinary memory, ``default`` or ``bind:0``, out of numa_maps."""
    text = files.read(proc / str(pid) / "numa_maps")
    if not text:
        return None
    fields = text.splitlines()[0].split()
    return fields[1] if len(fields) > 1 else None


def open_devices(pid: int, proc: Path = PROC) -> list[str]:
    """GPU device files that a process holds open; empty also where it cannot be looked at."""
    found = set()
    folder = proc / str(pid) / "fd"
    for name in files.names(folder):
        try:
            target = str((folder / name).readlink())
        except OSError:
            continue
        if target.startswith(("/dev/nvidia", "/dev/dri/")):
            found.add(target)
    return sorted(found)


def cgroups(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Path in each v1 hierarchy by controller, and in v2 under the empty name."""
    found: dict[str, str] = {}
    for row in (files.read(proc / str(pid) / "cgroup") or "").splitlines():
        parts = row.split(":", 2)
        if len(parts) == 3:
            found.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return found
