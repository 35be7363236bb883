"""Confinement of children that read untrusted scenes: bubblewrap where it works, else what the kernel gives.

Under bubblewrap a child has no network, no other processes, an empty environment, its code and inputs
read-only, and one folder to write in. Where bubblewrap is missing or not allowed, the child still gets an
empty environment, a process group, limits and no new privileges, and the farm says so. A slot that runs as
root gives its children a user of their own, because limits on processes do not bind root.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import jobs
from jobs.render.bounds import Bounds

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf")
_SYSTEM_MORE: Final = ("/etc/ld.so.conf.d", "/etc/alternatives", "/etc/vulkan", "/etc/OpenCL", "/opt")
CODE_ROOT: Final = Path(jobs.__file__).resolve().parents[1]
_SETPRIV: Final = "/usr/bin/setpriv"
_FIRST_USER: Final = 1_900_000_000
"""Users of children are this number and their slot's process id: nobody else's, and one per slot."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """How children are confined on this machine. ``name`` is ``bubblewrap`` or ``plain``."""

    name: str
    reason: str
    flags: tuple[str, ...] = ()
    user: int | None = None
    """User that children become; ``None`` where they stay the slot's own."""

    def describe(self) -> str:
        """One line for logs and device records."""
        return f"{self.name} ({self.reason})" if self.reason else self.name


@dataclass(frozen=True, slots=True)
class Program:
    """What runs in a child: its command line, its environment, and the folders that it must read."""

    argv: tuple[str, ...]
    folders: tuple[Path, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sealed:
    """A command ready to start, and where the child sees its folders."""

    argv: list[str]
    env: dict[str, str]
    inputs: Path
    output: Path
    user: int | None
    """User that the output folder must belong to; ``None``: the slot's own."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a child may touch: ``inputs`` read-only, ``output`` to write in, ``links`` files behind links."""

    inputs: Path
    output: Path
    links: Mapping[str, Path] = field(default_factory=dict)
    """Job path to real file, for inputs that are symbolic links made by the farm."""
    cuda: bool = False
    devices: tuple[str, ...] = ()
    """Device files and folders of them that it may use besides."""


@lru_cache(maxsize=1)
def confinement() -> Confinement:
    """What works here, tried once. ``FARM_SANDBOX=plain`` turns bubblewrap off, ``=bubblewrap`` insists."""
    wish = os.environ.get("FARM_SANDBOX", "auto")
    user = _FIRST_USER + os.getpid() if os.getuid() == 0 and Path(_SETPRIV).exists() else None
    if wish == "plain":
        return Confinement("plain", "FARM_SANDBOX=plain", user=user)
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return Confinement("plain", "bubblewrap is not installed: apt-get install bubblewrap", user=user)
    common = ("--die-with-parent", "--cap-drop", "ALL")
    # root needs no user namespace, and without one its children can become another user for good
    apart = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    become = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--perms", "1777", "--tmpfs", "/tmp")
    ways: list[tuple[tuple[str, ...], int | None]] = []
    if user is not None:
        ways.append(((*apart, *common, *become), user))
    ways.append((("--unshare-all", *common, "--tmpfs", "/tmp"), None))
    reason = ""
    for way, becomes in ways:
        for proc in (("--proc", "/proc"), ()):
            flags = (bwrap, *way, "--dev", "/dev", *proc)
            probe = [*flags, *_system_binds(), "--", *_become(becomes), "/bin/true"]
            try:
                done = subprocess.run(probe, capture_output=True, timeout=20, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                reason = str(error)
                continue
            if done.returncode == 0:
                return Confinement("bubblewrap", "" if proc else "without /proc", flags, becomes)
            reason = done.stderr.decode("utf-8", "replace").strip()[:200] or f"exit {done.returncode}"
    return Confinement("plain", f"bubblewrap does not work here: {reason}", user=user)


def farm_python(module: str, *arguments: str) -> Program:
    """``python -m module arguments`` of this very Python, with the farm's own packages."""
    return Program(
        (sys.executable, "-P", "-s", "-m", module, *arguments),
        tuple(_code_folders()),
        {"PYTHONPATH": str(CODE_ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def seal(program: Program, room: Room, env: Mapping[str, str], bounds: Bounds | None = None) -> Sealed:
    """The command that runs ``program`` in ``room`` within ``bounds``, with ``env`` and little more."""
    how = confinement()
    inner = {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/tmp" if how.name == "bubblewrap" else str(room.output),
        **program.env,
        **env,
    }
    user = how.user
    if how.name != "bubblewrap" and user is not None:
        # without mounts of its own the child walks to its folders like everybody else
        ways = (*program.folders, room.inputs, room.output, *room.links.values())
        user = user if all(_everybody_may_enter(path) for path in ways) else None
    enter = bounds.enter() if bounds else []
    limits = bounds.resource_limits(user is not None) if bounds else []
    if how.name != "bubblewrap":
        argv = [*enter, *_become(user), *limits, *program.argv]
        return Sealed(argv, inner, room.inputs, room.output, user)
    argv = [*enter, *how.flags, "--clearenv"]
    for name, value in inner.items():
        argv += ["--setenv", name, value]
    argv += _system_binds()
    assets = {f"/assets/{name}": real for name, real in room.links.items()} or {"/assets": room.inputs}
    binds = {str(folder): folder for folder in program.folders} | assets
    argv += _folders_above(binds)
    for target, real in binds.items():
        argv += ["--ro-bind", str(real), target]
    if room.cuda:
        argv += _cuda_binds()
    for name in room.devices:
        argv += ["--dev-bind-try", name, name]
    if room.links:
        argv += ["--remount-ro", "/"]
    argv += ["--bind", str(room.output), "/out", "--chdir", "/out", "--"]
    argv += [*(_become(user) if user is not None else []), *limits, *program.argv]
    return Sealed(argv, {"PATH": "/usr/bin:/bin"}, Path("/assets"), Path("/out"), user)


def _become(user: int | None) -> list[str]:
    """The ``setpriv`` that goes before a program: no new privileges, death with the parent, its own user."""
    if not Path(_SETPRIV).exists():
        return []
    argv = [_SETPRIV, "--no-new-privs"]
    if user is not None:
        argv += [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all"]
    return [*argv, "--pdeathsig=KILL"]


def _everybody_may_enter(path: Path) -> bool:
    real = path.resolve()
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in (real, *real.parents) if parent.is_dir())


def _folders_above(targets: Iterable[str]) -> list[str]:
    """Folders above mounts, open to every user: bubblewrap itself makes them for root alone."""
    above = {str(parent) for target in targets for parent in Path(target).parents[:-1]}
    return [word for folder in sorted(above) for word in ("--perms", "0755", "--dir", folder)]


def _system_binds() -> list[str]:
    names = (*_SYSTEM, *_SYSTEM_MORE)
    argv = _folders_above(names)
    for name in names:
        path = Path(name)
        if path.is_symlink() and path.is_dir():
            argv += ["--symlink", str(path.readlink()), name]
        elif path.exists():
            argv += ["--ro-bind", name, name]
    return argv


def _code_folders() -> list[Path]:
    """Python itself, its packages, and the two packages of the farm that a child imports."""
    wanted = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent]
    wanted += [Path(entry) for entry in sys.path if entry and Path(entry).name.endswith("-packages")]
    wanted += [CODE_ROOT / "jobs", CODE_ROOT / "farm"]
    kept: list[Path] = []
    for path in wanted:
        system = any(path.is_relative_to(name) for name in ("/usr", "/bin", "/lib"))
        if path.is_dir() and not system and not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def _cuda_binds() -> list[str]:
    argv = ["--ro-bind", "/sys", "/sys"]
    for path in sorted(Path("/dev").glob("nvidia*")):
        argv += ["--dev-bind", str(path), str(path)]
    return argv
