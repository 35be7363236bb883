"""How long a step still takes: by what its tasks cost, and before one is done by frames or progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import db_now
from farm.repositories.reading.keyset import Row
from farm.states import ENDED, TaskState

LEAST_PROGRESS = 0.04
"""Share of a running task before which its progress says nothing of its pace."""
_COUNTERS = {state: f"n_{state.value}" for state in TaskState}
_AT_WORK = sa.text("tasks.state IN ('dispatched', 'running')")


def seconds_left(conn: sa.Connection, steps: Sequence[Row]) -> dict[str, float | None]:
    """Step id to seconds still to go with the slots that work on it now; None: nothing tells its pace yet.

    ``steps`` hold ``id, frames_total, frames_done, mean_task_s`` and the counters of tasks. Frames of
    unfinished tasks count as done, so that a long chunk moves frame by frame.
    """
    ids = [step["id"] for step in steps]
    slots = _busy_slots(conn, ids)
    new = [step["id"] for step in steps if step["mean_task_s"] is None and step["id"] in slots]
    frame_s = _mean_frame_s(conn, new)
    running = _progress(conn, new)
    found: dict[str, float | None] = {}
    for step in steps:
        pace = step["mean_task_s"]
        tasks = sum(step[column] for column in _COUNTERS.values())
        if pace is None and step["id"] in frame_s:
            pace = frame_s[step["id"]] * step["frames_total"] / max(1, tasks)
        if pace is None:
            elapsed, begun = running.get(step["id"], (0.0, 0.0))
            pace = elapsed / begun if begun else None
        else:
            begun = 0.0
        found[step["id"]] = _left(step, tasks, begun, pace, slots.get(step["id"], 0))
    return found


def _left(step: Mapping[str, Any], tasks: int, begun: float, pace: float | None, slots: int) -> float | None:
    """Seconds left of a step of ``tasks``, ``begun`` of which are done inside those at work."""
    unfinished = sum(step[column] for state, column in _COUNTERS.items() if state not in ENDED)
    if not unfinished:
        return 0.0
    if pace is None:
        return None
    left: float = unfinished - begun
    if step["frames_total"]:
        left = min(left, tasks * (1 - step["frames_done"] / step["frames_total"]))
    return left * pace / max(1, slots)


def _busy_slots(conn: sa.Connection, step_ids: Sequence[str]) -> dict[str, int]:
    """How many slots work on each step; a bundle's tasks all run, but one after the other in one slot."""
    query = (
        sa.select(t.tasks.c.step_id, sa.func.count(sa.distinct(t.tasks.c.slot_id)))
        .where(_AT_WORK, t.tasks.c.step_id.in_(step_ids))
        .group_by(t.tasks.c.step_id)
    )
    return dict(conn.execute(query).all())


def _mean_frame_s(conn: sa.Connection, step_ids: Sequence[str]) -> dict[str, float]:
    """Seconds of a published frame. Of steps without a finished task these are few."""
    if not step_ids:
        return {}
    frames = t.frames.c
    query = (
        sa.select(frames.step_id, sa.func.avg(frames.duration_s))
        .where(frames.step_id.in_(step_ids), frames.state == "published", frames.duration_s > 0)
        .group_by(frames.step_id)
    )
    return {step_id: float(mean) for step_id, mean in conn.execute(query) if mean is not None}


def _progress(conn: sa.Connection, step_ids: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Seconds spent in the running tasks of a step, and how much of them is done (1: a whole task)."""
    if not step_ids:
        return {}
    tasks = t.tasks.c
    spent = sa.func.sum(db_now() - tasks.started_at)
    query = (
        sa.select(tasks.step_id, spent, sa.func.sum(tasks.progress))
        .where(_AT_WORK, tasks.step_id.in_(step_ids), tasks.progress >= LEAST_PROGRESS)
        .group_by(tasks.step_id)
    )
    return {row[0]: (float(row[1]), float(row[2])) for row in conn.execute(query) if row[1] is not None}
