"""The two sides that meet in a slot: ``Engine``, which a kind implements, and ``Host``, which workers do.

An engine is opened once in a slot, runs task after task while the slot stays on its kind, and may keep
scenes or models loaded between them. All that it asks of the farm goes through its host, so that engines
know nothing of the database, the broker or the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from farm.frame_range import FrameRange

Medium = Literal["vram", "pinned", "shm", "spool", "store"]
Phase = Literal["fetch", "load", "work", "write"]


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The task that an engine is asked to run.

    ``spec`` is the job's spec as stored (parse it with the kind's model), ``step`` and ``payload`` are what
    ``expand`` put on the step and on the task. ``frames`` are the frames still to make, in order; frames
    that an earlier attempt published are not among them. ``outputs`` are the declared outputs per frame
    (dictionaries of :class:`farm.plan.OutputDecl`).
    """

    task_id: str
    job_id: str
    step_name: str
    engine: str
    take: int
    attempt_number: int
    frames: FrameRange | None
    spec: Mapping[str, Any]
    step: Mapping[str, Any]
    payload: Mapping[str, Any]
    outputs: Sequence[Mapping[str, Any]]
    device: Mapping[str, Any] = field(default_factory=dict)
    """What the slot owns: ``{"kind": "cpu", "threads": 2}`` or ``{"kind": "cuda", "uuid": ..., ...}``."""


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A published file of an earlier step: its number and where its bytes can be read."""

    number: int
    output: str
    path: Path
    width: int
    height: int
    format: str


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A published file of an earlier step that is not a frame."""

    name: str
    path: Path
    meta: Mapping[str, Any]


class Log(Protocol):
    """Writes lines to the attempt's log, which people read live."""

    def write(self, text: str) -> None:
        """Append text; a newline is added where it lacks one."""

    def fileno(self) -> int:
        """File descriptor of the log, for a child process's stdout and stderr. Bytes may be anything."""


class Host(Protocol):
    """What a slot gives an engine while it runs one task."""

    scratch: Path
    """An empty folder of this attempt, removed after it."""
    log: Log

    def check(self) -> None:
        """Read the control word; call it between frames, denoise steps and training iterations (60 ns).

        Blocks while the farm holds the task (``pause``), sleeps for its share when throttled, and raises
        :class:`farm.errors.ParkRequested`, :class:`~farm.errors.CancelRequested` or
        :class:`~farm.errors.FencedOff`. Engines let these pass after cleaning up.
        """

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how much of this task is done, 0 to 1. Any call resets the no-progress limit."""

    def phase(self, name: Phase) -> AbstractContextManager[None]:
        """Time spent inside counts as fetch, load, work or write; nested phases pause the outer one."""

    def publish(
        self,
        number: int,
        files: Mapping[str, Path],
        *,
        started_at: float,
        duration_s: float,
        quality: Mapping[str, Any] | None = None,
        peak_vram: int | None = None,
    ) -> None:
        """Publish a frame: ``files`` maps each declared output to a file in :attr:`scratch`.

        Each file is synced, decoded again, checked against its declaration (size, layers, finite pixels),
        hashed and moved into the store; it is gone from scratch afterwards. Raises
        :class:`farm.errors.UnverifiedFrame`, or :class:`~farm.errors.OutOfSpace`.
        """

    def examine(self, number: int, files: Mapping[str, Path]) -> None:
        """Check and hash a frame's files ahead of :meth:`publish`, from any thread: decoding is most of what
        that costs.

        Only a help: publish checks what was not examined, and refuses a file whose bytes are other than those
        that were. Raises :class:`farm.errors.UnverifiedFrame` as publish does.
        """

    def hand_on(self, frame_s: float, left: int, target_s: float) -> bool:
        """Whether to begin no further frame, because the rest of the task is to go on as tasks of its own.

        An engine that can end at a frame's boundary asks after each frame: it says how long the frame took,
        how many it has not begun, and how long a task should last, in seconds. Once the answer is True it
        finishes and publishes what it has begun, and returns; the frames that it leaves are no fault then.
        An engine that never asks is left alone.
        """

    def publish_artifact(
        self, name: str, path: Path, media_type: str, meta: Mapping[str, Any] | None = None
    ) -> str:
        """Publish a file that is not a frame (a film, a report); returns its SHA-256."""

    def result(self, data: Mapping[str, Any]) -> None:
        """What this task found, for the page and for steps that are expanded after it. JSON, under 1 MB."""

    def save(self, path: Path) -> None:
        """Keep this file as the task's checkpoint: a buffer in the store; replaces an earlier one."""

    def restore(self) -> Path | None:
        """The newest checkpoint as a read-only file, or ``None`` when the task starts afresh."""

    def preview(self, png: bytes) -> None:
        """Show a picture of the work in progress; kept for a moment, dropped when there are too many."""

    def reserve(
        self, nbytes: int, medium: Medium, purpose: str = "frame staging"
    ) -> AbstractContextManager[None]:
        """Hold a buffer of that size in the ledger; waits (and says so) while the medium's budget is full.

        Raises :class:`farm.errors.OutOfSpace` at once when ``nbytes`` exceeds the whole budget.
        """

    def asset(self, path: str) -> Path:
        """Read-only file of the job's asset with that job path (``scene/scene.xml``).

        Raises :class:`farm.errors.PermanentFailure` when the job has no such asset.
        """

    def assets(self) -> Path:
        """A read-only folder in which every asset of the job stands under its job path."""

    def frames(
        self, step: str, output: str, numbers: FrameRange | None = None, *, job: str | None = None
    ) -> list[StoredFrame]:
        """Published frames (current takes) of another step, in frame order.

        The step is one of this job, or of ``job``, which this job must have been submitted ``after``. Raises
        :class:`farm.errors.PermanentFailure` when one of ``numbers`` is missing, or for any other job.
        """

    def stored_artifacts(self, step: str) -> list[StoredArtifact]:
        """Artifacts of the done tasks of another step of this job, by name; the newest of each name."""

    def step_results(self, step: str, *, job: str | None = None) -> list[Mapping[str, Any]]:
        """What the tasks of an earlier step found, of this job or of a ``job`` that it comes after."""

    def frozen(self, pids: Sequence[int]) -> AbstractContextManager[None]:
        """Declare child process groups that the agent may freeze, signal or kill with this task."""

    def keep_warm(self, *keys: str | None) -> None:
        """Say all that stays loaded in this slot after the task, so that the scheduler prefers it."""


class Engine(Protocol):
    """What a kind implements. One instance lives in a slot, on one thread."""

    def open(self, host: Host) -> None:
        """Prepare for tasks of this kind: probe the device, start a child. Called before the first task."""

    def run(self, task: TaskContext, host: Host) -> None:
        """Do the task; return when all its frames or artifacts are published, or once they are handed on.

        Raises a :class:`farm.errors.TaskError`; any other exception is reported as a failed attempt.
        """

    def close(self) -> None:
        """End children and free memory; also called when the slot turns to another kind. Never raises."""
