"""Run a command as the kernel's scheduler weighs a slot, so that other work weighs on both alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ENTER = 'echo $$ > "$1" && shift && exec "$@"'
_FILES = ("cpu.shares", "cpu.weight")


@contextmanager
def weighed_like(pid: int) -> Iterator[list[str]]:
    """The beginning of a command line that gets the priority of ``pid`` and, where that has a CPU weight of
    its own, a cgroup of that weight beside its own."""
    priority = ["nice", "-n", str(max(0, os.getpriority(os.PRIO_PROCESS, pid)))]
    found = _group(pid)
    if found is None:
        yield priority
        return
    group, file = found
    beside = group.parent / f"{group.name}-beside"
    beside.mkdir(exist_ok=True)
    try:
        (beside / file).write_text((group / file).read_text())
        yield ["/bin/sh", "-c", _ENTER, "sh", str(beside / "cgroup.procs"), *priority]
    finally:
        beside.rmdir()


def _group(pid: int) -> tuple[Path, str] | None:
    """The process's cgroup with its file of CPU weight; ``None`` where it shares its weight with us."""
    ours = Path("/proc/self/cgroup").read_text().splitlines()
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if line in ours or (names and "cpu" not in names.split(",")):
            continue
        for mount in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"):
            for file in _FILES:
                if (Path(mount + path) / file).exists():
                    return Path(mount + path), file
    return None
