"""Steps, tasks, attempts, frames and artifacts."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.models.common import Out, Time
from api.models.jobs import Counts, Job
from farm.states import AttemptState, GroupState, TaskState


class Step(Out):
    """One stage of a job."""

    id: str
    job_id: str
    position: int
    name: str
    engine: str
    pool: str
    state: GroupState
    deferred: bool
    waiting_on: int
    depends_on: list[str] = Field(default_factory=list, description="Ids of steps that come first")
    outputs: list[dict[str, Any]]
    requires: dict[str, Any]
    max_retries: int
    timeout_s: float | None
    no_progress_s: float
    take: int
    tasks: Counts
    tasks_total: int
    frames_total: int
    frames_done: int
    progress: float = Field(description="0 to 1, by tasks")
    eta_s: float | None = Field(description="Seconds still to go at the pace so far; null: not known")
    mean_task_s: float | None
    started_at: Time | None
    finished_at: Time | None


class JobDetail(Job):
    """A job with its steps and all that was submitted."""

    spec: dict[str, Any]
    assets: dict[str, str] = Field(description="Asset path to SHA-256")
    after: list[str] = Field(description="Jobs that must be done before it")
    steps: list[Step]
    warnings: list[str] = Field(
        default_factory=list, description="Steps that no slot of this farm can run as it stands"
    )


class Task(Out):
    """The unit that a slot runs."""

    id: str
    job_id: str
    step_id: str
    step: str = Field(description="The step's name")
    position: int
    take: int
    state: TaskState
    epoch: int
    frames: str | None
    charged: int = Field(description="Attempts that spent the retry budget")
    node_losses: int
    slot_id: str | None
    wish: str | None
    parked: bool = Field(description="It has a checkpoint to go on from")
    progress: float | None
    result: dict[str, Any] | None
    error: str | None
    ready_at: Time | None
    not_before: Time | None
    dispatched_at: Time | None
    started_at: Time | None
    finished_at: Time | None


class Attempt(Out):
    """One execution of a task: how it ended, where its time went (seconds) and what it used."""

    id: str
    task_id: str
    job_id: str
    epoch: int
    number: int
    slot_id: str
    node_id: str
    state: AttemptState
    charged: bool
    error_type: str | None
    error: str | None
    started_at: Time
    ended_at: Time | None
    queue_s: float | None
    fetch_s: float | None
    load_s: float | None
    work_s: float | None
    write_s: float | None
    held_s: float | None
    slot_s: float | None
    cpu_s: float | None
    gpu_s: float | None
    energy_j: float | None
    peak_rss: int | None
    peak_vram: int | None
    device: dict[str, Any] | None


class FrameFile(Out):
    """One file of a frame."""

    output: str
    sha256: str
    bytes: int
    width: int
    height: int
    channels: list[str]
    dtype: str
    color_space: str
    format: str
    url: str = Field(description="Where its bytes are, on this server")


class Frame(Out):
    """One output image of a step, at one number and take."""

    job_id: str
    step_id: str
    step: str = Field(description="The step's name")
    take: int
    number: int
    task_id: str
    attempt_id: str | None
    state: str = Field(description="pending or published")
    is_current: bool
    started_at: Time | None
    duration_s: float | None
    published_at: Time | None
    peak_vram: int | None
    quality: dict[str, Any] | None
    files: list[FrameFile]
    thumbnail_url: str | None


class Artifact(Out):
    """A file other than a frame that a job made: a film, a report."""

    id: str
    job_id: str
    step_id: str
    step: str = Field(description="The step's name")
    task_id: str
    attempt_id: str
    name: str
    sha256: str
    bytes: int
    media_type: str
    meta: dict[str, Any]
    created_at: Time
    url: str = Field(description="Where its bytes are, on this server")
