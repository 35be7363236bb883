"""Which cgroup controllers can be used here, found out by using each one once.

A mounted controller may still refuse: read-only mounts in containers, no delegation, a cpuset that has no
CPUs to give. So a child group is made, the setting that the fence will need is written and read back, and the
group is removed. Controllers are judged one by one, since hybrid machines keep ``kill`` and ``freeze`` in v2
and the rest in v1.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_pinning import files
from gpu_pinning.machine import CONTROLLERS, CgroupRight

V1_NAME = {
    "cpuset": "cpuset",
    "cpu": "cpu",
    "memory": "memory",
    "io": "blkio",
    "pids": "pids",
    "devices": "devices",
    "freeze": "freezer",
}
_V1_SETTING = {
    "cpu": "cpu.shares",
    "memory": "memory.limit_in_bytes",
    "io": "blkio.throttle.write_bps_device",
}
AGENT_LEAF = "agent"
"""A v2 group that gives controllers to its children may hold no processes itself, so the agent sits in a
child of this name (systemd: ``DelegateSubgroup=agent``) and slots are its siblings."""


@dataclass(frozen=True)
class Hierarchies:
    """Where this process stands: its own folder in each v1 controller and in v2."""

    v1: dict[str, Path]
    v2: Path | None


def own_hierarchies(root: Path = Path("/")) -> Hierarchies:
    """The groups of this process, out of /proc/self/mountinfo and /proc/self/cgroup (cgroups(7))."""
    mounts: dict[str, tuple[str, Path]] = {}
    for row in (files.read(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = row.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        inner, point = fields[3], root / _unescape(fields[4]).lstrip("/")
        if kind[0] == "cgroup2":
            mounts.setdefault("", (inner, point))
        else:
            for option in kind[2].split(","):
                mounts.setdefault(option, (inner, point))
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for row in (files.read(root / "proc/self/cgroup") or "").splitlines():
        number, names, path = row.split(":", 2)
        if number == "0" and not names:
            v2 = _locate(mounts.get(""), path)
            continue
        for name in names.split(","):
            folder = _locate(mounts.get(name), path)
            if folder is not None:
                v1[name] = folder
    return Hierarchies(v1=v1, v2=v2)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def _locate(mount: tuple[str, Path] | None, path: str) -> Path | None:
    if mount is None:
        return None
    inner, point = mount
    if inner != "/" and (path == inner or path.startswith(inner + "/")):
        path = path[len(inner) :]
    folder = point / path.lstrip("/")
    # Inside a container without a cgroup namespace the path is the host's and does not exist here.
    return folder if folder.is_dir() else point


def slot_base(own: Path) -> Path:
    """The v2 folder under which slots go: beside the agent where it sits in its own leaf."""
    return own.parent if own.name == AGENT_LEAF else own


def probe(hierarchies: Hierarchies) -> tuple[CgroupRight, ...]:
    """Try every controller once. Leaves nothing behind."""
    return tuple(_probe_one(name, hierarchies) for name in CONTROLLERS)


def _probe_one(name: str, at: Hierarchies) -> CgroupRight:
    v2_reason = "no cgroup v2"
    if at.v2 is not None:
        base = slot_base(at.v2)
        if name == "devices":
            v2_reason = "v2 filters devices with BPF, which is tried apart"
        else:
            v2_reason = _try_v2(name, base)
            if not v2_reason:
                return CgroupRight(controller=name, version=2, base=str(base), granted=True)
    v1_name = V1_NAME.get(name)
    if v1_name in at.v1:
        base = at.v1[v1_name]
        reason = _try_v1(name, base)
        return CgroupRight(controller=name, version=1, base=str(base), granted=not reason, reason=reason)
    if name == "kill" and at.v2 is None:
        v2_reason = "cgroup.kill is in v2 alone (Linux 5.14)"
    return CgroupRight(
        controller=name,
        version=2 if at.v2 is not None else 0,
        base=str(at.v2) if at.v2 else None,
        granted=False,
        reason=v2_reason,
    )


@contextlib.contextmanager
def child(base: Path) -> Iterator[Path]:
    """A group for a trial, removed again."""
    # one that a process of another container, or a killed one of this id, has left must not be in the way
    folder = base / f"stillframe-probe-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        folder.rmdir()


@contextlib.contextmanager
def _enabled(name: str, base: Path) -> Iterator[None]:
    """A v2 controller given to the children of ``base``, and taken back where it was not given before."""
    control = base / "cgroup.subtree_control"
    given = name in (files.read(control) or "").split()
    if not given:
        files.write(control, f"+{name}")
    try:
        yield
    finally:
        if not given:
            files.write(control, f"-{name}")


def _try_v2(name: str, base: Path) -> str:
    try:
        if name in ("kill", "freeze"):
            with child(base) as group:
                if not (group / f"cgroup.{name}").exists():
                    return f"this kernel has no cgroup.{name}"
                files.write(group / f"cgroup.{name}", "1" if name == "kill" else "0")
            return ""
        if name not in (files.read(base / "cgroup.controllers") or "").split():
            return f"{name} is not given to {base}"
        setting = {
            "cpuset": "cpuset.cpus",
            "cpu": "cpu.weight",
            "memory": "memory.max",
            "io": "io.weight",
            "pids": "pids.max",
        }[name]
        with _enabled(name, base), child(base) as group:
            target = group / setting
            if name == "io" and not target.exists():
                target = group / "io.max"
            if not os.access(target, os.W_OK):
                return f"{target} cannot be written"
        return ""
    except OSError as error:
        return f"{os.path.basename(str(error.filename or base))}: {error.strerror}"  # noqa: PTH119


def _try_v1(name: str, base: Path) -> str:
    try:
        with child(base) as group:
            if name == "cpuset":
                for part in ("cpus", "mems"):
                    wanted = files.read(base / f"cpuset.{part}") or ""
                    files.write(group / f"cpuset.{part}", wanted)
                    if files.read(group / f"cpuset.{part}") != wanted:
                        return f"cpuset.{part} does not keep what is written"
            elif name == "devices":
                files.write(group / "devices.deny", "c 195:* rwm")
            elif name == "freeze":
                files.write(group / "freezer.state", "THAWED")
            elif name == "pids":
                files.write(group / "pids.max", "4096")
                if files.read(group / "pids.max") != "4096":
                    return "pids.max does not keep what is written"
            else:
                if not os.access(group / _V1_SETTING[name], os.W_OK):
                    return f"{_V1_SETTING[name]} cannot be written"
        return ""
    except OSError as error:
        return f"{os.path.basename(str(error.filename or base))}: {error.strerror}"  # noqa: PTH119
