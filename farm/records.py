"""Plain records that cross from slots to the database: claims, frames, buffers, attempt reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from farm.states import AttemptState


@dataclass(frozen=True, slots=True)
class TicketEntry:
    """One task of a ticket; counts only while the task still has this epoch."""

    task_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """What Celery carries to a slot: entries of one step, and the slot that they are meant for."""

    slot_id: str
    entries: tuple[TicketEntry, ...]

    def to_json(self) -> dict[str, Any]:
        """The JSON form that travels."""
        return {"slot_id": self.slot_id, "entries": [[e.task_id, e.epoch] for e in self.entries]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ticket:
        """Read the JSON form; raises :class:`ValueError` or :class:`KeyError` for anything else."""
        entries = tuple(TicketEntry(str(task), int(epoch)) for task, epoch in data["entries"])
        return cls(str(data["slot_id"]), entries)


@dataclass(slots=True)
class ClaimedTask:
    """A task that a slot now runs, with all that its engine needs."""

    task_id: str
    epoch: int
    attempt_id: str
    serial: int
    job_id: str
    step_id: str
    step_name: str
    engine: str
    pool: str
    project_id: str
    take: int
    frames: str | None
    """Frame range still to make: frames that an earlier attempt published are left out. None for a task that
    makes no frames; empty when all are published already, so that nothing is left but to finish."""
    job_spec: dict[str, Any]
    step_payload: dict[str, Any]
    task_payload: dict[str, Any]
    outputs: list[dict[str, Any]]
    """Declared outputs, :class:`farm.plan.OutputDecl` as dictionaries."""
    warm_key: str | None
    checkpoint: str | None
    """SHA-256 of the checkpoint to resume from."""
    timeout_s: float | None
    no_progress_s: float
    attempt_number: int
    queued_s: float


@dataclass(slots=True)
class FrameFileRecord:
    """One verified file of a frame, already in the store under its hash."""

    output: str
    sha256: str
    bytes: int
    width: int
    height: int
    channels: list[str]
    dtype: str
    color_space: str
    format: str


@dataclass(slots=True)
class FrameRecord:
    """One verified frame, all outputs present."""

    number: int
    take: int
    files: list[FrameFileRecord]
    started_at: float
    duration_s: float
    peak_vram: int | None = None
    quality: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ArtifactRecord:
    """A file other than a frame that an attempt made (a film, a report, a preview), in the store."""

    name: str
    sha256: str
    bytes: int
    media_type: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TimeSplit:
    """Where an attempt's wall time went, in seconds."""

    queue_s: float = 0.0
    fetch_s: float = 0.0
    load_s: float = 0.0
    work_s: float = 0.0
    write_s: float = 0.0
    held_s: float = 0.0


@dataclass(slots=True)
class Cost:
    """What an attempt used. ``None`` where the machine cannot tell."""

    slot_s: float = 0.0
    cpu_s: float | None = None
    gpu_s: float | None = None
    energy_j: float | None = None
    peak_rss: int | None = None
    peak_vram: int | None = None


@dataclass(slots=True)
class Split:
    """Why an attempt ended before its chunk: seconds that its last frame took, and that a chunk should."""

    frame_s: float
    target_s: float


@dataclass(slots=True)
class AttemptReport:
    """How an attempt ended; durable in the node's spool until the database has answered.

    ``charged`` says whether a failed or lost attempt spends a retry. ``permanent`` fails the task at once.
    ``result`` is what the step found (a preflight), kept on the task and given to deferred expansion.
    ``checkpoint`` is the SHA-256 of what a parked attempt resumes from. ``split``, of an attempt that is
    done, says that the frames that it has not made go on as new tasks, and how they are cut.
    """

    task_id: str
    epoch: int
    attempt_id: str
    state: AttemptState
    ended_at: float
    frames: list[FrameRecord] = field(default_factory=list)
    artifacts: list[ArtifactRecord] = field(default_factory=list)
    result: dict[str, Any] | None = None
    checkpoint: str | None = None
    split: Split | None = None
    charged: bool = True
    permanent: bool = False
    killed_slot: bool = False
    error_type: str | None = None
    error: str | None = None
    times: TimeSplit = field(default_factory=TimeSplit)
    cost: Cost = field(default_factory=Cost)
    device: dict[str, Any] = field(default_factory=dict)


FinishVerdict = Literal["counted", "fenced_off", "repeated"]
