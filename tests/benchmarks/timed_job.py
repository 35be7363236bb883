"""A render job timed from submit to its last frame, and its pictures compared with others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from farm.client import FarmClient
from farm.client.models import Job
from farm.errors import TaskFailed
from farm.frame_range import FrameRange

DEADLINE_S = 3600.0
ASK_EVERY_S = 2.0


def by_the_farm(farm: FarmClient, spec: dict[str, Any], assets: Mapping[str, str], folder: Path) -> float:
    """Seconds from submit to the last frame published; the frames are downloaded after the clock stops.

    ``assets`` maps job paths to SHA-256. The farm's own time of the end counts: asking for it may
    be seldom, and costs the job nothing. Raises :class:`farm.errors.TaskFailed` where the job fails.
    """
    began = time.time()
    job = farm.submit(name="overhead", kind="render", spec=spec, assets=dict(assets))
    found = wait_for(farm, job.id)
    assert found.finished_at is not None
    took = found.finished_at.timestamp() - began
    for frame in farm.frames(job.id):
        farm.download_frame(frame, "beauty.png", folder / f"{frame.number}.png")
    return took


def wait_for(farm: FarmClient, job_id: str) -> Job:
    """The job once it is done. Raises :class:`farm.errors.TaskFailed` where it comes to another end."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = farm.job(job_id)
        if found.state == "done":
            return found
        if found.state in ("failed", "cancelled") or time.monotonic() > deadline:
            reasons = [task.error for task in farm.tasks(job_id) if task.error]
            raise TaskFailed(f"the job is {found.state}: {found.error or '; '.join(reasons)}")
        time.sleep(ASK_EVERY_S)


def cpu_of_children() -> float:
    """CPU seconds of everything below this process that still lives, and of what that has waited for."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def threads_of(farm: FarmClient, job_id: str) -> set[int]:
    """With how many threads the attempts of a job have rendered."""
    attempts = [attempt.to_json() for attempt in farm.attempts(job_id)]
    return {int(attempt["device"]["threads"]) for attempt in attempts if attempt.get("device")}


def largest_difference(first: Path, second: Path, frames: FrameRange) -> int:
    """Largest difference of one 8-bit value between two folders of frames."""
    worst = 0
    for number in frames:
        a, b = (np.asarray(Image.open(folder / f"{number}.png")).astype(int) for folder in (first, second))
        worst = max(worst, int(np.abs(a - b).max()))
    return worst
