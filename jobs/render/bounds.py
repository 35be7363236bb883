"""Limits around a child that reads an untrusted scene: processes and memory, set before it runs.

Where the pids and memory controllers exist and may be written, the child gets a cgroup of its own in each (v1
hierarchies, or v2 where the slot's own cgroup delegates them); beside that, or instead, resource limits
(``RLIMIT_NPROC``, ``RLIMIT_DATA``), which bind an unprivileged user alone. What holds is what reads back.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

_NAME: Final = "stillframe-child-"
_PRLIMIT: Final = "/usr/bin/prlimit"
_COUNT: Final = itertools.count()
_ENTER: Final = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 97; shift; n=$((n-1)); done; exec "$@"'
)
"""A shell that enters N cgroups and becomes the command: limits hold before its first instruction."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``memory`` in bytes; ``private``: whether private memory may also be bounded address by address, which
    CUDA does not bear; ``processes`` counts threads too."""

    memory: int
    processes: int
    private: bool = True


@dataclass(slots=True)
class Bounds:
    """What one child is held by. Make it before the child starts, :meth:`remove` it when it has ended."""

    limits: Limits
    groups: dict[str, Path] = field(default_factory=dict)
    """Controller (``pids``, ``memory``) to the child's cgroup, where the limit read back."""
    reasons: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, limits: Limits) -> Bounds:
        """Make the cgroups that can be made; the others are left out, with the reason."""
        bounds = cls(limits)
        name = f"{_NAME}{os.getpid()}-{next(_COUNT)}"
        for controller, file, value in (
            ("pids", "pids.max", limits.processes),
            ("memory", "", limits.memory),
        ):
            try:
                bounds.groups[controller] = _make_group(controller, name, file, value)
            except OSError as error:
                bounds.reasons[controller] = f"{error.strerror or error}"
        return bounds

    def enter(self) -> list[str]:
        """The beginning of a command line that enters the cgroups first."""
        files = sorted({str(group / "cgroup.procs") for group in self.groups.values()})
        return ["/bin/sh", "-c", _ENTER, "sh", str(len(files)), *files] if files else []

    def resource_limits(self, unprivileged: bool) -> list[str]:
        """The ``prlimit`` that goes right before the program, inside everything else."""
        if not Path(_PRLIMIT).exists():
            return []
        count = self.limits.processes
        if not unprivileged:
            # our own user's other processes count too
            count += _tasks_of(os.getuid())
        argv = [_PRLIMIT, "--core=0", f"--nproc={count}:{count}"]
        if self.limits.private:
            argv.append(f"--data={self.limits.memory}:{self.limits.memory}")
        return [*argv, "--"]

    def peak(self) -> int | None:
        """The most memory that the child held, in bytes, by its cgroup's own count."""
        group = self.groups.get("memory")
        for name in ("memory.max_usage_in_bytes", "memory.peak") if group else ():
            with contextlib.suppress(OSError, ValueError):
                return int((group / name).read_text())  # type: ignore[operator]
        return None

    def ran_out(self) -> bool:
        """Whether the kernel killed for the memory limit."""
        group = self.groups.get("memory")
        for name in ("memory.oom_control", "memory.events") if group else ():
            with contextlib.suppress(OSError, ValueError):
                lines = (group / name).read_text().splitlines()  # type: ignore[operator]
                facts = dict(line.split() for line in lines)
                if int(facts.get("oom_kill", 0)) > 0:
                    return True
        return False

    def describe(self, pid: int) -> str:
        """What holds for the process ``pid`` (the renderer itself), as it reads back now."""
        said = []
        in_groups = _groups_of(pid)
        for controller, group in self.groups.items():
            if any(path.endswith(group.name) for path in in_groups):
                said.append(f"{controller} cgroup of {_limit(controller, group)}")
        with contextlib.suppress(OSError, IndexError, ValueError):
            lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
            soft = {line[:25].strip(): line[25:].split()[0] for line in lines[1:]}
            root = psutil.Process(pid).uids().real == 0
            if soft["Max processes"] != "unlimited" and not root:
                said.append(f"at most {soft['Max processes']} processes")
            if soft["Max data size"] != "unlimited":
                said.append(f"at most {int(soft['Max data size']) / 2**30:.2f} GiB of private memory")
            said.append("as root" if root else f"as user {psutil.Process(pid).uids().real}")
        return ", ".join(said)

    def remove(self) -> None:
        """Remove the cgroups; their processes must have been killed. Never raises."""
        for group in self.groups.values():
            # the kernel lets go of a group a moment after its last process has been reaped
            for _ in range(50):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)
                else:
                    break


def remove_stale() -> None:
    """Remove cgroups of children whose slot has died."""
    for controller in ("pids", "memory"):
        with contextlib.suppress(OSError):
            for group in _own_group(controller).glob(f"{_NAME}*"):
                owner = group.name.removeprefix(_NAME).partition("-")[0]
                if owner.isdigit() and not psutil.pid_exists(int(owner)):
                    with contextlib.suppress(OSError):
                        group.rmdir()


def _make_group(controller: str, name: str, file: str, value: int) -> Path:
    """A cgroup below our own with the limit written and read back. Raises :class:`OSError`."""
    group = _own_group(controller) / name
    group.mkdir(exist_ok=True)
    try:
        if not file:
            file = next(
                (f for f in ("memory.limit_in_bytes", "memory.max") if (group / f).exists()), "memory.max"
            )
        # unbuffered: a refused write must be seen
        handle = os.open(group / file, os.O_WRONLY)
        try:
            os.write(handle, str(value).encode())
        finally:
            os.close(handle)
        found = (group / file).read_text().strip()
        if not found.isdigit() or not value * 0.9 <= int(found) <= value:
            raise OSError(f"{file} reads back {found}")
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise
    return group


def _own_group(controller: str) -> Path:
    """Our cgroup in the hierarchy that has the controller. Raises :class:`OSError` where there is none."""
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for each in names.split(","):
            own[each] = path
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, mount, system, options, *_ in mounts:
        if system == "cgroup" and controller in options.split(",") and controller in own:
            return _inside(Path(mount), own[controller])
    for _, mount, system, *_ in mounts:
        if system == "cgroup2" and "" in own:
            group = _inside(Path(mount), own[""])
            if controller in (group / "cgroup.subtree_control").read_text().split():
                return group
    raise OSError(f"no {controller} controller that a child could be given")


def _inside(mount: Path, path: str) -> Path:
    """A cgroup below its mount; in a container the mount may begin at our own group already."""
    group = mount / path.lstrip("/")
    return group if group.is_dir() else mount


def _groups_of(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return [line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    return []


def _limit(controller: str, group: Path) -> str:
    for name in ("pids.max", "memory.limit_in_bytes", "memory.max"):
        with contextlib.suppress(OSError, ValueError):
            value = int((group / name).read_text())
            return f"{value} processes" if controller == "pids" else f"{value / 2**30:.2f} GiB"
    return "no limit"


def _tasks_of(uid: int) -> int:
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == uid:
                count += process.num_threads()
    return count
