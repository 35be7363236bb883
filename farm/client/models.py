"""What the farm's REST API answers, as typed models.

Fields that a newer farm adds are kept (``extra="allow"``), so that an older client passes them on in
``--json`` output. Times are UTC, durations are seconds, sizes are bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

ENDED_STATES = frozenset({"done", "failed", "cancelled"})
"""Job states after which nothing happens by itself."""


class Answer(BaseModel):
    """One JSON object of the API."""

    model_config = ConfigDict(extra="allow")

    def to_json(self) -> dict[str, Any]:
        """The object as it came, with times as RFC 3339 text."""
        return self.model_dump(mode="json")


class Counts(BaseModel):
    """How many tasks are in each state."""

    model_config = ConfigDict(extra="allow")

    blocked: int = 0
    ready: int = 0
    dispatched: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    unreachable: int = 0

    @property
    def total(self) -> int:
        """All tasks."""
        return self.open + self.done + self.failed + self.cancelled + self.unreachable

    @property
    def open(self) -> int:
        """Tasks that have not ended."""
        return self.blocked + self.ready + self.active

    @property
    def active(self) -> int:
        """Tasks that a slot has."""
        return self.dispatched + self.running


class Named(Answer):
    """A reference to a project or a user."""

    id: str
    name: str


class Work(Answer):
    """What a job and a step have in common: tasks and frames, some of them done."""

    id: str
    name: str
    state: str
    tasks: Counts = Field(default_factory=Counts)
    frames_total: int = 0
    frames_done: int = 0
    eta_s: float | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.state in ENDED_STATES

    @property
    def fraction(self) -> float:
        """How much is done, 0 to 1: frames and tasks counted alike, so that a chunk moves frame by frame."""
        if self.state == "done":
            return 1.0
        total = self.frames_total + self.tasks.total
        return min((self.frames_done + self.tasks.done) / total, 1.0) if total else 0.0


class Step(Work):
    """One stage of a job."""

    engine: str = ""
    pool: str = ""
    position: int = 0
    take: int = 1
    deferred: bool = False
    outputs: list[dict[str, Any]] = Field(default_factory=list)
    mean_task_s: float | None = None


class Job(Work):
    """A job; ``steps`` is filled when one job is read, not in lists."""

    kind: str
    project: Named
    user: Named
    priority: int = 50
    labels: dict[str, Any] = Field(default_factory=dict)
    paused: bool = False
    cancel_requested: bool = False
    error: str | None = None
    version: int = 1
    created_at: datetime
    steps: list[Step] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)


class Task(Answer):
    """The unit that a slot runs. ``frames`` is a frame range such as ``1-4``."""

    id: str
    step_id: str = ""
    position: int = 0
    take: int = 1
    state: str
    frames: str | None = None
    progress: float | None = None
    error: str | None = None


class FrameFile(Answer):
    """One published file of a frame."""

    output: str
    sha256: str
    bytes: int
    width: int = 0
    height: int = 0
    format: str = ""
    url: str | None = None


class Frame(Answer):
    """One output image of a step at one number and take."""

    step_id: str
    take: int = 1
    number: int
    state: str
    is_current: bool = True
    duration_s: float | None = None
    files: list[FrameFile] = Field(default_factory=list)


class Attempt(Answer):
    """One execution of a task, with where its time went (seconds)."""

    id: str
    task_id: str
    state: str
    number: int = 1
    error_type: str | None = None
    error: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    queue_s: float | None = None
    fetch_s: float | None = None
    load_s: float | None = None
    work_s: float | None = None
    write_s: float | None = None
    held_s: float | None = None


class Artifact(Answer):
    """A file that came out of a job other than a frame."""

    id: str
    name: str
    sha256: str
    bytes: int
    media_type: str = "application/octet-stream"
    meta: dict[str, Any] = Field(default_factory=dict)
    step_id: str = ""
    url: str | None = None


class Reason(Answer):
    """One thing that a job or task waits for."""

    text: str


class Event(Answer):
    """One entry of the event log; ``id`` only grows."""

    id: int
    type: str
    at: datetime | None = None
    job_id: str | None = None
    step_id: str | None = None
    task_id: str | None = None
    slot_id: str | None = None
    node_id: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


Item = TypeVar("Item", bound=Answer)


class Page(BaseModel, Generic[Item]):
    """A stretch of a list; ``next`` is the cursor of the stretch after it, ``None`` at the end."""

    items: list[Item]
    next: str | None = None
