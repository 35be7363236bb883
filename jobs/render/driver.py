"""What differs between renderers: how a child is started, and what is asked of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import psutil

from farm.errors import PermanentFailure
from jobs.engine import Host, TaskContext
from jobs.render.held import Held
from jobs.render.spec import Spec

ROOT_FOLDER = "stillframe-render-"


class Driver(Protocol):
    """One renderer. It keeps nothing between tasks: what is loaded lives in :class:`Held`."""

    def start(self, key: str, spec: Spec, task: TaskContext, host: Host, folder: Path) -> Held:
        """Check the scene's paths and start a child with the output folder ``folder``."""

    def load(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        """Have the child load the scene; fill ``held.facts`` and write one line to the log."""

    def work(self, held: Held, spec: Spec, task: TaskContext, host: Host) -> None:
        """Do the task with the loaded scene, and give its result to the host."""


def memory_limit(spec: Spec) -> int:
    """Bytes that a child may use."""
    return int(spec.memory_limit or psutil.virtual_memory().total * 3 // 4)


def process_limit(threads: int) -> int:
    """Processes and threads that a child may have: renderers start pools of threads, and nothing else."""
    return 128 + 8 * threads


def owner(host: Host) -> Any:
    """Gives the file that the farm placed under a job path, or ``None``."""

    def find(job_path: str) -> Path | None:
        try:
            return host.asset(job_path)
        except PermanentFailure:
            return None

    return find


def links(root: Path, used: set[str]) -> dict[str, Path]:
    """Real files behind links, where the farm laid the assets out as links to its store."""
    real = {name: (root / name).resolve() for name in used}
    inside = root.resolve()
    return real if any(not path.is_relative_to(inside) for path in real.values()) else {}
