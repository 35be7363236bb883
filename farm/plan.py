"""What a kind's ``expand`` returns and submission stores: steps, tasks and frames as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from farm.frame_range import FrameRange

DependencyMode = Literal["whole", "frames"]


@dataclass(frozen=True, slots=True)
class OutputDecl:
    """One file that a step makes for every frame, such as ``beauty.png`` or ``layers.exr``."""

    name: str
    format: Literal["png", "jpeg", "exr"]
    width: int
    height: int
    channels: tuple[str, ...]
    dtype: Literal["uint8", "uint16", "float16", "float32"]
    color_space: str


@dataclass(frozen=True, slots=True)
class DependencyPlan:
    """A step of the same job that must come first: whole, or only the tasks whose frames intersect."""

    step: str
    mode: DependencyMode = "whole"


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One unit of work. ``frames`` is ``None`` for work that makes no frames (an encode, a training).

    ``rank`` orders tasks of a step (smaller first); ``payload`` is what the engine needs beyond the step's;
    ``seconds`` is the expected duration, used to bundle short tasks (``None``: unknown, travels alone).
    """

    frames: FrameRange | None = None
    payload: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    seconds: float | None = None


@dataclass(slots=True)
class StepPlan:
    """One stage of a job. ``tasks`` may be a generator: a step of 100,000 tasks is never a list of objects.

    ``engine`` names the kind whose engine runs the tasks. ``deferred`` steps have no tasks at submission;
    they are expanded when ``deferred_on`` (a step of the same job) is done. ``warm_key`` says which loaded
    state helps (a scene, a model): a slot that has it is preferred. ``payload`` is given to every task.
    ``requires`` holds wants such as ``{"device": "cuda"}``. ``max_retries`` counts retries after the first
    attempt; times in seconds.
    """

    name: str
    engine: str
    pool: str
    tasks: Iterable[TaskPlan] = ()
    payload: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[OutputDecl, ...] = ()
    depends_on: tuple[DependencyPlan, ...] = ()
    deferred: bool = False
    deferred_on: str | None = None
    warm_key: str | None = None
    requires: Mapping[str, Any] = field(default_factory=dict)
    max_retries: int = 2
    timeout_s: float | None = None
    no_progress_s: float = 600.0


@dataclass(slots=True)
class JobPlan:
    """Everything that one submission stores, in order: a step may depend only on steps before it."""

    steps: list[StepPlan]
