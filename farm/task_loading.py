"""Tasks of a plan written in bulk, with their frames and what they wait for, while the plan is read once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count

import sqlalchemy as sa

from farm.db.bulk import BATCH, BulkRows
from farm.db.connect import db_now
from farm.db.rows import clean_json, dumps
from farm.db.tables import frames, task_dependencies, tasks
from farm.errors import LimitExceeded
from farm.frame_index import FrameIndex
from farm.ids import new_id
from farm.plan import TaskPlan
from farm.settings import Settings


@dataclass(slots=True)
class Loaded:
    """How many tasks and frames were written."""

    blocked: int = 0
    ready: int = 0
    frames: int = 0


@dataclass(slots=True)
class Allowance:
    """How many tasks and frames a job may still get."""

    settings: Settings
    tasks: int
    frames: int

    @classmethod
    def of(cls, settings: Settings, tasks: int = 0, frames: int = 0) -> Allowance:
        """What is left when the job has so many already."""
        return cls(settings, settings.max_tasks - tasks, settings.max_frames - frames)

    def take(self, frame_count: int) -> None:
        """Count one task; raises :class:`farm.errors.LimitExceeded` when it is one too many."""
        self.tasks -= 1
        self.frames -= frame_count
        if self.tasks < 0:
            raise LimitExceeded(
                f"the job has more than {self.settings.max_tasks:,} tasks, the limit of this farm; "
                "make the chunks larger, or split the job"
            )
        if self.frames < 0:
            raise LimitExceeded(
                f"the job has more than {self.settings.max_frames:,} frames, the limit of this farm; "
                "split the job"
            )


class TaskLoader:
    """Writes tasks of one job. Call :meth:`load` per step, then :meth:`close`."""

    def __init__(self, conn: sa.Connection, job_id: str, allowance: Allowance) -> None:
        self._conn = conn
        self._job_id = job_id
        self._allowance = allowance
        self._now = conn.scalar(sa.select(db_now())) or 0.0
        self._tasks = BulkRows(
            conn,
            tasks,
            (
                "id", "step_id", "position", "take", "state", "rank", "frames", "payload", "seconds",
                "waiting_on", "ready_at",
            ),
        )  # fmt: skip
        self._frames = BulkRows(
            conn, frames, ("step_id", "number", "take", "job_id", "task_id", "state", "is_current")
        )
        self._edges = BulkRows(conn, task_dependencies, ("task_id", "on_task_id"))

    def load(
        self,
        step_id: str,
        plans: Iterable[TaskPlan],
        *,
        blocked: bool,
        waits_for: Iterable[FrameIndex] = (),
        index: FrameIndex | None = None,
        take: int = 1,
        positions: Iterable[int] | None = None,
    ) -> Loaded:
        """Write a step's tasks and frames.

        ``blocked``: the step itself waits for something. ``waits_for`` are the steps that its tasks wait for
        frame by frame. ``index`` collects the tasks for steps that wait for this one. ``positions`` are the
        tasks' places in the step, by default 0, 1, 2…
        """
        loaded = Loaded()
        upstream = list(waits_for)
        for position, plan in zip(positions if positions is not None else count(), plans, strict=False):
            numbers = plan.frames
            makes = len(numbers) if numbers is not None else 0
            self._allowance.take(makes)
            task_id = new_id("task")
            waiting = 0
            if upstream:
                needed = dict.fromkeys(n for one in upstream for n in one.needed(numbers))
                waiting = len(needed)
                for on_task_id in needed:
                    self._edges.add((task_id, on_task_id))
            ready = not blocked and not waiting
            self._tasks.add(
                (
                    task_id,
                    step_id,
                    position,
                    take,
                    "ready" if ready else "blocked",
                    plan.rank,
                    str(numbers) if numbers is not None else None,
                    _json(plan.payload),
                    plan.seconds,
                    waiting,
                    self._now if ready else None,
                )
            )
            if numbers is not None:
                for number in numbers:
                    self._frames.add((step_id, number, take, self._job_id, task_id, "pending", take == 1))
                loaded.frames += makes
            if index is not None:
                index.add(task_id, numbers)
            if ready:
                loaded.ready += 1
            else:
                loaded.blocked += 1
            if len(self._tasks) >= BATCH or len(self._frames) >= BATCH * 2 or len(self._edges) >= BATCH * 2:
                self.flush()
        return loaded

    def flush(self) -> None:
        """Write what was collected, tasks before what refers to them."""
        self._tasks.flush()
        self._frames.flush()
        self._edges.flush()


def _json(payload: Mapping[str, object]) -> str | None:
    if not payload:
        return None
    try:
        text = _ENCODER.encode(payload)
    except ValueError:
        # NaN or an infinity
        return dumps(clean_json(payload))
    # NUL or surrogates, as the encoder writes them
    return dumps(clean_json(payload)) if "\\u0000" in text or "\\ud" in text else text


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
