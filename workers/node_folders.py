"""The folders of one node on its own disk, and the lock that keeps a second agent out of them."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from farm.errors import Conflict
from farm.settings import Settings
from gpu_pinning import procfs
from gpu_pinning.wishes import Paths

_LOCK = "lock"


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """Folders of one node on its own disk."""

    control: Path
    spool: Path
    scratch: Path
    output: Path
    fence: Path
    lock: Path

    @classmethod
    def of(cls, settings: Settings, node_name: str, paths: Paths) -> NodeFolders:
        """Make them. Nodes that share a data folder do not share these. ``paths`` are those of farm.toml."""
        run = node_folder(settings, node_name)
        spool = Path(paths.spool) if paths.spool else settings.data / "spool"
        scratch = Path(paths.work) / node_name / "scratch" if paths.work else run / "scratch"
        folders = cls(run, spool / node_name, scratch, run / "output", run / "fence", run / _LOCK)
        for folder in (folders.control, folders.spool, folders.scratch, folders.output, folders.fence):
            folder.mkdir(parents=True, exist_ok=True)
        return folders


def node_folder(settings: Settings, node_name: str) -> Path:
    """Where a node keeps what only its present life needs."""
    return settings.run_dir / "nodes" / node_name


def agent_pid(folder: Path) -> int | None:
    """Process id of the agent that runs in a node's folder; None where none does.

    Looks without trying the lock, which would be in a starting agent's way.
    """
    try:
        pid, started = (folder / _LOCK).read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    seen = procfs.process(int(pid)) if pid.isdigit() else None
    return seen.pid if seen is not None and str(seen.started) == started and seen.state not in "ZX" else None


def lock_node(path: Path, name: str) -> int:
    """Lock a node for one agent; the open file that holds the lock.

    Raises :class:`farm.errors.Conflict` where another agent of that name has it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Conflict(
            f"an agent of node {name!r} runs already with this data folder: stop it. A second node of this "
            "machine needs a name of its own and, in both farm.toml, slots on CPUs and GPUs of its own"
        ) from None
    # by whom, for agent_pid: a pid with its start time is never somebody else's
    own = procfs.process(os.getpid())
    os.ftruncate(fd, 0)
    os.write(fd, f"{os.getpid()} {own.started if own is not None else 0}".encode("ascii"))
    return fd
