"""Jobs: what is submitted, what is changed, what is read back."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from api.models.common import Count, In, Label, Labels, Out, Priority, Sha256, Time, example
from farm.states import GroupState

JobId = Annotated[str, Field(max_length=48, examples=["job_0192f3b0c5d47e2f9a3c1b2d4e5f6a7b"])]

SUBMIT_EXAMPLE: dict[str, Any] = {
    "kind": "render",
    "name": "turntable v3",
    "project": "default",
    "priority": 50,
    "labels": {"shot": "s010", "version": "v3"},
    "spec": {"scene": "scene/scene.xml", "frames": "1-48", "resolution": "320x180", "samples": 32},
    "assets": {"scene/scene.xml": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
    "after": [],
    "paused": False,
}


class JobSubmit(In):
    """One job to make."""

    kind: Annotated[str, Field(max_length=40, examples=["render"])]
    name: Label
    project: Annotated[
        str | None,
        Field(max_length=200, description="Name or id; may be left out with a key of one project"),
    ] = None
    priority: Priority = 50
    labels: Labels = Field(default_factory=dict)
    spec: dict[str, Any] = Field(description="The kind's own spec; `GET /v1/kinds` has its schema")
    assets: dict[str, Sha256] = Field(
        default_factory=dict,
        max_length=100_000,
        description="Where each asset stands inside the job (relative, `/` between folders), and its SHA-256",
    )
    after: list[JobId] = Field(
        default_factory=list, max_length=1000, description="Jobs that must be done before this one begins"
    )
    paused: bool = False


class JobChange(In):
    """What may be changed on a job; fields left out stay as they are."""

    model_config = example(priority=70, labels={"shot": "s010"})

    priority: Priority | None = None
    labels: Labels | None = None
    name: Label | None = None


class Counts(Out):
    """How many tasks are in each state."""

    blocked: Count = 0
    ready: Count = 0
    dispatched: Count = 0
    running: Count = 0
    done: Count = 0
    failed: Count = 0
    cancelled: Count = 0
    unreachable: Count = 0


class Named(Out):
    """A reference to a project or a user."""

    id: str
    name: str


class Job(Out):
    """A job as it stands. ``tasks_done`` counts tasks that are done, not those that ended otherwise."""

    id: str
    name: str
    kind: str
    project: Named
    user: Named = Field(description="Who submitted it")
    priority: int
    labels: dict[str, str]
    state: GroupState
    paused: bool
    cancel_requested: bool
    waiting_on: int = Field(description="Jobs in `after` that are not done yet")
    error: str | None
    tasks: Counts
    tasks_total: int
    tasks_done: int
    frames_total: int
    frames_done: int
    progress: float = Field(description="0 to 1, by tasks")
    eta_s: float | None = Field(description="Seconds still to go at the pace so far; null: not known")
    version: int = Field(description="What ETag and If-Match compare")
    created_at: Time
    started_at: Time | None
    finished_at: Time | None


class PlannedStep(Out):
    """A step that the spec would make."""

    name: str
    engine: str
    pool: str
    tasks: int | None = Field(description="null: known only when the step that it waits for is done")
    frames: int | None
    deferred: bool
    outputs: list[dict[str, Any]]
    requires: dict[str, Any]


class Validation(Out):
    """What submitting would make; nothing was stored."""

    valid: bool = True
    tasks: int
    frames: int
    steps: list[PlannedStep]
    missing: list[str] = Field(description="SHA-256 of assets that must be uploaded first")
    warnings: list[str] = Field(
        default_factory=list, description="Steps that no slot of this farm can run as it stands"
    )


class Reason(Out):
    """One thing that a job or task waits for."""

    kind: str = Field(examples=["no_slot"])
    text: str
    data: dict[str, Any] = Field(default_factory=dict)


class Retake(In):
    """Frames to make again as a new take; the old takes stay."""

    model_config = example(step="render", frames="1-10")

    step: Annotated[str, Field(max_length=200, description="Name or id of the step", examples=["render"])]
    frames: Annotated[
        str | None, Field(max_length=20_000, examples=["1-10"], description="null: all frames of the step")
    ] = None


class RetakeStep(In):
    """Frames of one step to make again as a new take."""

    model_config = example(frames="1-10")

    frames: Annotated[
        str | None, Field(max_length=20_000, examples=["1-10"], description="null: all frames of the step")
    ] = None


class RetakeMade(Out):
    """The take that was begun."""

    step_id: str
    take: int
    tasks: int
    frames: int


class CurrentTake(In):
    """Which take films and downloads use."""

    model_config = example(frames="1-10", take=1)

    frames: Annotated[str, Field(max_length=20_000, examples=["1-10"])]
    take: Annotated[int, Field(ge=1, le=2**31 - 1)]


class CurrentTakeSet(Out):
    """How many frames now have that take as the current one."""

    step_id: str
    take: int
    frames: int
