"""Confinement of children that read untrusted scenes: bubblewrap where it works, else what the kernel gives.

Under bubblewrap a child has no network, no other processes, an empty environment, its code and inputs
read-only, and one folder to write in. Where bubblewrap is missing or not allowed, the child still gets an
empty environment, a process group, limits and no new privileges (:func:`limit_self`), and the farm says so.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import jobs

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/ld.so.conf")
_SYSTEM_MORE: Final = ("/etc/ld.so.conf.d", "/etc/alternatives", "/etc/vulkan", "/etc/OpenCL", "/opt")
CODE_ROOT: Final = Path(jobs.__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Confinement:
    """How children are confined on this machine. ``name`` is ``bubblewrap`` or ``plain``."""

    name: str
    reason: str
    flags: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for logs and device records."""
        return f"{self.name} ({self.reason})" if self.reason else self.name


@dataclass(frozen=True, slots=True)
class Sealed:
    """A command ready to start, and where the child sees its folders."""

    argv: list[str]
    env: dict[str, str]
    inputs: Path
    output: Path


@dataclass(frozen=True, slots=True)
class Room:
    """What a child may touch: ``inputs`` read-only, ``output`` to write in, ``links`` files behind links."""

    inputs: Path
    output: Path
    links: Mapping[str, Path] = field(default_factory=dict)
    """Job path to real file, for inputs that are symbolic links made by the farm."""
    cuda: bool = False


@lru_cache(maxsize=1)
def confinement() -> Confinement:
    """What works here, tried once. ``FARM_SANDBOX=plain`` turns bubblewrap off, ``=bubblewrap`` insists."""
    wish = os.environ.get("FARM_SANDBOX", "auto")
    if wish == "plain":
        return Confinement("plain", "FARM_SANDBOX=plain")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return Confinement("plain", "bubblewrap is not installed: apt-get install bubblewrap")
    base = ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--dev", "/dev", "--tmpfs", "/tmp")
    reason = ""
    for proc in (("--proc", "/proc"), ()):
        flags = (bwrap, *base, *proc)
        probe = [*flags, *_system_binds(), "--", "/bin/true"]
        try:
            done = subprocess.run(probe, capture_output=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
            continue
        if done.returncode == 0:
            return Confinement("bubblewrap", "" if proc else "without /proc", flags)
        reason = done.stderr.decode("utf-8", "replace").strip()[:200] or f"exit status {done.returncode}"
    return Confinement("plain", f"bubblewrap does not work here: {reason}")


def seal(module: str, arguments: Sequence[str], room: Room, env: Mapping[str, str]) -> Sealed:
    """The command that runs ``python -m module arguments`` in ``room``, with ``env`` and little more."""
    how = confinement()
    python = [sys.executable, "-P", "-s", "-m", module, *arguments]
    inner = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(CODE_ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
        "HOME": "/tmp" if how.name == "bubblewrap" else str(room.output),
        **env,
    }
    if how.name != "bubblewrap":
        return Sealed(python, inner, room.inputs, room.output)
    argv = [*how.flags, "--clearenv"]
    for name, value in inner.items():
        argv += ["--setenv", name, value]
    argv += _system_binds()
    for folder in _code_folders():
        argv += ["--ro-bind", str(folder), str(folder)]
    if room.cuda:
        argv += _cuda_binds()
    if room.links:
        argv += ["--dir", "/assets"]
        for name, real in room.links.items():
            argv += ["--ro-bind", str(real), f"/assets/{name}"]
        argv += ["--remount-ro", "/"]
    else:
        argv += ["--ro-bind", str(room.inputs), "/assets"]
    argv += ["--bind", str(room.output), "/out", "--chdir", "/out", "--", *python]
    return Sealed(argv, {"PATH": "/usr/bin:/bin"}, Path("/assets"), Path("/out"))


def limit_self(memory: int | None) -> None:
    """Called first thing in a child: no new privileges, no core files, die with the parent, memory limit.

    ``memory`` bounds private writable memory in bytes (``RLIMIT_DATA``); ``None`` leaves it to the parent's
    watch, as CUDA reserves far more than it uses. Holds for root too, as the process itself asks for it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_PDEATHSIG, 9)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _system_binds() -> list[str]:
    argv: list[str] = []
    for name in (*_SYSTEM, *_SYSTEM_MORE):
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
