"""Puts itself behind a fence, then becomes the slot: ``python -I -S launch.py SPEC.json``.

A slot's fence must stand before the slot's first instruction, and the agent is threaded, so Python between
fork and exec is out of the question. This file runs as a fresh process instead, imports the standard library
alone, and keeps its pid over the exec, so a pidfd taken by the agent stays true.

SPEC.json: ``argv``; ``join`` (cgroup.procs files); ``cpus``, ``nodes`` (lists; nodes empty: no memory
policy); ``nice``; ``ionice`` ([class, level] of ioprio_set(2)); ``deny`` (device files that must not open);
``namespace`` (``mount``, ``user`` or null); ``parent`` (pid to die with); ``report`` (file that gets what was
found). Each step is read back. The report is a list of ``{what, wanted, found, ok, error}``; a step that is
not ok ends the launch with status 78 unless ``lenient`` names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import signal
import sys

REFUSED = 78
_NUMBERS = {
    "x86_64": {"set_mempolicy": 238, "get_mempolicy": 239, "ioprio_set": 251, "ioprio_get": 252},
    "aarch64": {"set_mempolicy": 237, "get_mempolicy": 236, "ioprio_set": 30, "ioprio_get": 31},
}
_NODES = 1024  # bits of a node mask; the kernel's largest MAX_NUMNODES
_MPOL_BIND = 2
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 4, 32, 4096, 16384, 1 << 18
# statvfs(3) flags and the mount(2) flags that must be kept when a mount of another user namespace is
# remounted.
_KEEP = {1: 1, 2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(answer: int, what: str) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return answer


def _syscall(name: str, *args: object) -> int:
    number = _NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        raise OSError(errno.ENOSYS, f"{name} has no known number on {platform.machine()}")
    return _check(_libc.syscall(number, *args), name)


def bind_memory(nodes: list[int]) -> None:
    """Take memory from these nodes alone (set_mempolicy(2), MPOL_BIND). Raises OSError."""
    mask = (ctypes.c_ulong * (_NODES // 64))()
    for node in nodes:
        mask[node // 64] |= 1 << (node % 64)
    _syscall("set_mempolicy", _MPOL_BIND, ctypes.byref(mask), ctypes.c_ulong(_NODES))


def memory_policy() -> tuple[int, list[int]]:
    """This thread's policy (2 is bind) and its nodes. Raises OSError."""
    mode = ctypes.c_int()
    mask = (ctypes.c_ulong * (_NODES // 64))()
    _syscall("get_mempolicy", ctypes.byref(mode), ctypes.byref(mask), ctypes.c_ulong(_NODES), None, 0)
    return mode.value, [node for node in range(_NODES) if mask[node // 64] >> (node % 64) & 1]


def io_priority(pid: int = 0) -> tuple[int, int]:
    """Class (0 none, 1 real time, 2 best effort, 3 idle) and level of a process. Raises OSError."""
    value = _syscall("ioprio_get", 1, pid)
    return value >> 13, value & 0x1FFF


def set_io_priority(kind: int, level: int) -> None:
    """ioprio_set(2) for this process. Raises OSError."""
    _syscall("ioprio_set", 1, 0, kind << 13 | level)


def enter_namespace(user: bool) -> None:
    """A mount namespace of our own, as root, or inside a user namespace that maps this user alone."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)), "unshare")
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            _write(f"/proc/self/{name}", text)
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")


def cover(path: str) -> None:
    """Make a device file unopenable in this mount namespace: a bind mount of itself with ``nodev``."""
    name = os.fsencode(path)
    kept = os.statvfs(path).f_flag
    flags = sum(mount for stat, mount in _KEEP.items() if kept & stat)
    _check(_libc.mount(name, name, None, _MS_BIND, None), path)
    _check(_libc.mount(None, name, None, _MS_BIND | _MS_REMOUNT | _MS_NODEV | flags, None), path)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def opens(path: str) -> str:
    """Empty where a device file does not open, else why that is wrong."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENXIO):
            return ""
        # Some other answer came from the driver itself, so the fence let the call through.
        return f"{path} reached its driver ({error.strerror})"
    os.close(fd)
    return f"{path} opens"


class Steps:
    """What was wanted and what was read back, step by step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, what: str, wanted: object, found: object, error: str = "") -> None:
        ok = not error and wanted == found
        self.rows.append({"what": what, "wanted": wanted, "found": found, "ok": ok, "error": error})

    @contextlib.contextmanager
    def trying(self, what: str, wanted: object):  # type: ignore[no-untyped-def]
        try:
            yield
        except OSError as error:
            self.add(what, wanted, None, f"{error.filename or what}: {error.strerror}")


def enforce(spec: dict) -> Steps:  # type: ignore[type-arg]
    """Do every step of ``spec`` to this process and read each one back."""
    steps = Steps()
    for procs in spec.get("join", []):
        with steps.trying("cgroup", procs):
            _write(procs, "0")
            with open(procs) as listed:  # noqa: PTH123 - no pathlib: every import delays the slot
                found = procs if str(os.getpid()) in listed.read().split() else "not in it"
            steps.add("cgroup", procs, found)
    if (space := spec.get("namespace")) is not None:
        with steps.trying("namespace", space):
            enter_namespace(user=space == "user")
            for path in spec.get("deny", []):
                if os.path.exists(path):  # noqa: PTH110 - as above
                    cover(path)
            steps.add("namespace", space, space)
    if cpus := spec.get("cpus"):
        with steps.trying("affinity", cpus):
            os.sched_setaffinity(0, cpus)
            steps.add("affinity", cpus, sorted(os.sched_getaffinity(0)))
    if nodes := spec.get("nodes"):
        with steps.trying("memory policy", nodes):
            bind_memory(nodes)
            mode, bound = memory_policy()
            steps.add("memory policy", nodes, bound if mode == _MPOL_BIND else None)
    if (nice := spec.get("nice")) is not None:
        with steps.trying("nice", nice):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
            steps.add("nice", nice, os.getpriority(os.PRIO_PROCESS, 0))
    if ionice := spec.get("ionice"):
        with steps.trying("ionice", ionice):
            set_io_priority(*ionice)
            steps.add("ionice", ionice, list(io_priority()))
    if deny := spec.get("deny"):
        open_ones = [why for path in deny if (why := opens(path))]
        steps.add("devices", [], open_ones)
    return steps


def main(path: str) -> None:
    """Enforce, report, exec."""
    with open(path) as file:  # noqa: PTH123 - as above
        spec = json.load(file)
    if (parent := spec.get("parent")) is not None:
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL), "prctl")
        # It may have died before the signal was asked for.
        if os.getppid() != parent:
            sys.exit(f"stillframe: the agent that started this slot is gone ({path})")
    with contextlib.suppress(PermissionError):
        os.setsid()  # refused where the agent made this process a session leader already
    steps = enforce(spec)
    if report := spec.get("report"):
        partial = f"{report}.part"
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.write(fd, json.dumps({"pid": os.getpid(), "steps": steps.rows}).encode())
        os.close(fd)
        os.replace(partial, report)  # noqa: PTH105 - as above
    lenient = spec.get("lenient", [])
    failed = [row for row in steps.rows if not row["ok"] and row["what"] not in lenient]
    if failed:
        for row in failed:
            why = row["error"] or f"wanted {row['wanted']}, found {row['found']}"
            print(f"stillframe: fence refused: {row['what']}: {why}", file=sys.stderr)
        sys.exit(REFUSED)
    argv = spec["argv"]
    os.execvp(argv[0], argv)


def try_namespaces() -> str:
    """Which kind of mount namespace this user may make: ``mount-namespace``, ``user-namespace`` or
    ``none``."""
    user = os.geteuid() != 0
    try:
        enter_namespace(user)
        cover("/dev/null")
        return ("user-namespace" if user else "mount-namespace") if not opens("/dev/null") else "none"
    except OSError:
        return "none"


if __name__ == "__main__":
    if sys.argv[1] == "--try-namespaces":
        print(try_namespaces())
    else:
        main(sys.argv[1])
