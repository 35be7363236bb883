"""Which Blenders a node has, and how their child is started.

A Blender is either a program that the administrator names (``FARM_BLENDER``, by comma, each with its version:
``4.5=/opt/blender-4.5/blender``; the Python of an environment with another ``bpy`` wheel will do), or the
``bpy`` wheel in an environment of its own made by ``farm blender install``. The wheel wants Python 3.11 and
numpy below 2, and hangs at exit beside torch, which is why it never shares an environment with the farm.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from farm.errors import DeviceUnavailable, InvalidInput, NotInstalled

LTS = "4.5"
BPY_REQUIREMENT = "bpy==4.5.*"
UNPINNED: Mapping[str, tuple[str, ...]] = {"hip": ("/dev/kfd", "/dev/dri"), "oneapi": ("/dev/dri",)}
"""GPU kinds that no slot owns, and the device files that a child must reach for them."""
START = Path(__file__).with_name("start.py")
log = structlog.get_logger(__name__)
_TOLD: set[str] = set()
_VERSION = re.compile(r"^\d+\.\d+$")


@dataclass(frozen=True, slots=True)
class Blender:
    """One Blender of this node: its ``major.minor`` version and the command that starts the child."""

    version: str
    command: tuple[str, ...]
    folders: tuple[Path, ...]
    """Folders that the child must be able to read."""


def blender_home() -> Path:
    """Where ``farm blender install`` puts its environments: ``FARM_BLENDER_HOME``, else beside the data."""
    from farm.settings import settings

    named = os.environ.get("FARM_BLENDER_HOME")
    return Path(named) if named else settings().data / "blender"


def unreadable(home: Path | None = None) -> str:
    """Why the folder of :func:`blender_home` cannot be looked into; empty: it can, or is not there.

    Another user's home folder is the usual case. Such a folder counts as without a Blender.
    """
    mark = (home or blender_home()) / f"bpy-{LTS}" / ".complete"
    try:
        mark.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return (
            f"{mark.parent} cannot be read ({error.strerror}), so no Blender is looked for there; name a "
            "folder that this user may read in FARM_BLENDER_HOME"
        )
    return ""


def installed(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> dict[str, Blender]:
    """Every Blender of this node by version. Programs that the administrator names win over the wheel.

    Raises :class:`farm.errors.InvalidInput` when ``FARM_BLENDER`` cannot be read.
    """
    found: dict[str, Blender] = {}
    folder = (home or blender_home()) / f"bpy-{LTS}"
    if not unreadable(home) and (folder / ".complete").exists():
        found[LTS] = _wheel(LTS, folder / "bin" / "python")
    for item in filter(None, environment.get("FARM_BLENDER", "").split(",")):
        version, _, program = item.strip().partition("=")
        if not _VERSION.match(version) or not program:
            raise InvalidInput(f"FARM_BLENDER: {item!r} should look like 4.5=/opt/blender-4.5/blender")
        path = Path(program)
        if not os.access(path, os.X_OK):
            raise InvalidInput(f"FARM_BLENDER: {program!r} is not a program that can be run")
        if path.name.startswith("python"):
            found[version] = _wheel(version, path)
            continue
        options = (
            "--background",
            "--factory-startup",
            "--disable-autoexec",
            "-noaudio",
            "--python-exit-code",
            "9",
        )
        command = (str(path), *options, "--python", str(START))
        found[version] = Blender(version, command, (path.resolve().parent,))
    return found


def versions() -> list[str]:
    """Versions that this node offers to the scheduler: none where ``FARM_BLENDER`` cannot be read.

    What is wrong with it is said by whatever needs a Blender. A folder that cannot be read is told in the
    log, once.
    """
    try:
        if (why := unreadable()) and why not in _TOLD:
            _TOLD.add(why)
            log.warning("no Blender is looked for", reason=why)
        return sorted(installed())
    except InvalidInput:
        return []


def backends() -> list[str]:
    """GPU kinds that the administrator offers to Blender on this node: ``FARM_BLENDER_DEVICES=hip,oneapi``.

    The farm pins and leases NVIDIA GPUs alone; a slot uses these as the node has them, when it is told to. A
    name that is none is told in the log, once, and offers nothing.
    """
    named = [item.strip() for item in os.environ.get("FARM_BLENDER_DEVICES", "").split(",") if item.strip()]
    for item in named:
        text = f"FARM_BLENDER_DEVICES: {item!r} is none of {', '.join(UNPINNED)}"
        if item not in UNPINNED and text not in _TOLD:
            _TOLD.add(text)
            log.warning("no such GPUs are offered", reason=text)
    return sorted(set(named) & set(UNPINNED))


def _wheel(version: str, python: Path) -> Blender:
    """The ``bpy`` of an environment, by its Python."""
    base = Path(os.path.realpath(python)).parent.parent
    return Blender(version, (str(python), "-I", str(START)), (python.absolute().parent.parent, base))


def choose(version: str | None) -> Blender:
    """The Blender that a job asks for; the newest when it names none.

    Raises :class:`farm.errors.DeviceUnavailable` naming what this node has; never another version.
    """
    found = installed()
    if not found:
        why = unreadable()
        raise DeviceUnavailable(
            "this node has no Blender: run `farm blender install` on it, or name a program in FARM_BLENDER"
            + (f" ({why})" if why else "")
        )
    if version is None:
        return found[max(found, key=lambda text: tuple(map(int, text.split("."))))]
    if version not in found:
        raise DeviceUnavailable(
            f"Blender {version} was asked for, but this node has {', '.join(sorted(found))}; "
            f"name one of these, or add it to FARM_BLENDER"
        )
    return found[version]


def find_python() -> Path:
    """A Python 3.11, which the ``bpy`` wheel needs; raises :class:`farm.errors.NotInstalled` without one."""
    if sys.version_info[:2] == (3, 11):
        return Path(sys.executable)
    program = shutil.which("python3.11")
    if program is None:
        raise NotInstalled(
            "the bpy wheel needs Python 3.11, and python3.11 is not on PATH; install it "
            "(Debian 12: sudo apt-get install python3.11-venv), or name a blender program in FARM_BLENDER"
        )
    return Path(program)


def install(home: Path | None = None, say: Callable[[str], None] = print) -> Blender:
    """Make the environment with the ``bpy`` LTS wheel (about 1 GB on disk) and prove that it starts.

    Does nothing where it is already there. Safe to run twice at once. Raises
    :class:`farm.errors.NotInstalled` when the wheel cannot be installed or does not start.
    """
    home = home or blender_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotInstalled(
            f"{home} cannot be made ({error.strerror}); name a folder that this user may write to in "
            "FARM_BLENDER_HOME"
        ) from None
    if why := unreadable(home):
        raise NotInstalled(why)
    folder = home / f"bpy-{LTS}"
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            python = find_python()
            say(f"installing {BPY_REQUIREMENT} for {python} in {folder}")
            shutil.rmtree(folder, ignore_errors=True)
            _run([str(python), "-m", "venv", str(folder)])
            pip = [
                str(folder / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            _run([*pip, "--only-binary=:all:", BPY_REQUIREMENT])
            check = "import bpy, os; print(bpy.app.version_string, flush=True); os._exit(0)"
            shown = _run([str(folder / "bin" / "python"), "-I", "-c", check]).strip()
            (folder / ".complete").write_text(shown.splitlines()[-1] + "\n")
            say(f"Blender {shown.splitlines()[-1]} is ready")
    return installed(home=home)[LTS]


def _run(command: list[str]) -> str:
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    if outcome.returncode != 0:
        tail = "\n".join((outcome.stdout + outcome.stderr).strip().splitlines()[-8:])
        raise NotInstalled(f"{' '.join(command[:6])} … failed with exit status {outcome.returncode}:\n{tail}")
    return outcome.stdout
