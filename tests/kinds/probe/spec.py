"""What a probe job is told to do, per step and per task."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Behaviour(BaseModel):
    """What one task does, in this order: log, grandchild, allocate, count, frames, deaf, end."""

    model_config = ConfigDict(extra="forbid")

    log: Literal["nothing", "broken", "flood"] = "nothing"
    """``broken``: a byte that is no UTF-8, NUL and a line of 1 MB; ``flood``: 40 MB from a child."""
    grandchild: str = ""
    """Seconds, such as ``300.123``: leave a ``sleep`` of that length behind that holds the log open, left the
    session and cleared its environment."""
    child_holds: str = ""
    """Start a ``sleep`` of that length of our own, declared with ``host.frozen`` while frames are made."""
    allocate: int = 0
    """Bytes to hold in memory while frames are made."""
    reserve: tuple[str, int] | None = None
    """Medium and bytes to reserve in the ledger while frames are made."""
    count_to: int = 0
    """Count up, one step per ``count_s``, saving a checkpoint at every step; goes on from a checkpoint."""
    count_s: float = 0.05
    frame_s: float = 0.0
    """Seconds per frame, asleep between checks."""
    slow: dict[int, float] = Field(default_factory=dict)
    """Seconds of the frames that take longer than ``frame_s``, by their numbers."""
    chunk_s: float | None = None
    """Ask after each frame whether the rest is to be handed on, with this many seconds for a task."""
    deaf_s: float = 0.0
    """Seconds of work that never looks at the control word, shows no progress and sleeps in between."""
    deaf_until: str = ""
    """The same until a file of this path is there, a minute at most."""
    width: int = 1
    height: int = 1
    spoil: Literal["nothing", "truncated", "wrong_size", "empty", "missing", "foreign"] = "nothing"
    """What is wrong with the frames that are handed over."""
    fail_times: int = 0
    """Attempts (from the first) that fail; -1: all."""
    permanent: bool = False
    kill_slot_times: int = 0
    """Attempts that SIGKILL their own slot, after the first frame; -1: all."""
    exit_slot_times: int = 0
    """Attempts that end their slot's process by ``os._exit(3)``."""
    read_assets: list[str] = Field(default_factory=list)
    read_frames_of: str | None = None
    result: dict[str, Any] | None = None
    artifact: bool = False
    warm: str | None = None
    place: bool = False
    """Work on all cores of the slot, and on its GPU, and trace where that really was."""
    hold_vram: int = 0
    """Bytes of video memory to hold from then on until the slot ends; needs torch."""


class ProbeStep(BaseModel):
    """A step of ``tasks`` tasks with ``frames`` frames each."""

    model_config = ConfigDict(extra="forbid")

    name: str = "probe"
    tasks: int = 1
    frames: int = 0
    do: Behaviour = Field(default_factory=Behaviour)
    per_task: dict[int, dict[str, Any]] = Field(default_factory=dict)
    """Overrides of ``do`` by task position."""
    pool: str = "render"
    after: list[str] = Field(default_factory=list)
    frame_wise: bool = False
    """``after`` holds task by task, where frames intersect."""
    deferred_on: str | None = None
    """As many tasks as the results of that step say (``{"tasks": n}``), made when it is done."""
    max_retries: int = 2
    timeout_s: float | None = None
    no_progress_s: float = 600.0
    seconds: float | None = None
    """Expected seconds per task; small ones travel in bundles."""
    warm_key: str | None = None


class Spec(BaseModel):
    """A probe job."""

    model_config = ConfigDict(extra="forbid")

    steps: list[ProbeStep] = Field(default_factory=lambda: [ProbeStep()])
    trace: str | None = None
    """Folder into which each attempt writes lines on what it did."""
