"""Takes: frames made again beside the old ones, and which of them counts.

A new take is new tasks and new frame rows; nothing of the old take changes. Its frames become current one
by one as they are published, and a person may choose another take at any time. What depended on the old
frames (a film, say) is not made again by itself.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.tables import frames, step_dependencies, steps, tasks
from farm.errors import Conflict, FieldFault, InvalidInput, NotFound
from farm.frame_index import FrameIndex
from farm.frame_range import FrameRange
from farm.lifecycle.counters import Moves
from farm.lifecycle.job_rows import change_job, read_job
from farm.lifecycle.publish import make_current
from farm.lifecycle.release import bad_tasks, settle
from farm.plan import TaskPlan
from farm.settings import Settings
from farm.settings import settings as process_settings
from farm.states import TaskState
from farm.task_loading import Allowance, TaskLoader


def retake(
    conn: sa.Connection,
    step_id: str,
    numbers: FrameRange | None = None,
    *,
    payload: dict[str, Any] | None = None,
    settings: Settings | None = None,
) -> dict[str, Any]:
    """Make these frames of a step (all, by default) again as its next take.

    ``payload`` is laid over that of each task. The tasks are cut as at submission. Returns ``step_id``,
    ``take``, ``tasks`` and ``frames``. Raises :class:`farm.errors.InvalidInput` for frames that the step
    does not have, and :class:`farm.errors.Conflict` when it makes none, or its job was cancelled.
    """
    step = _step(conn, step_id)
    job = read_job(conn, step["job_id"])
    step = _step(conn, step_id)
    if job["cancel_requested"]:
        raise Conflict(f"job {job['id']} was cancelled; submit it again")
    if step["deferred"]:
        raise Conflict(f"step {step['name']!r} has no tasks yet")
    plans, positions = _plans(conn, step, numbers, payload or {})
    take = step["take"] + 1
    totals = conn.execute(
        sa.select(
            sa.func.sum(sum((steps.c[f"n_{state}"] for state in TaskState), start=sa.literal(0))),
            sa.func.sum(steps.c.frames_total),
        ).where(steps.c.job_id == job["id"])
    ).one()
    loader = TaskLoader(
        conn, job["id"], Allowance.of(settings or process_settings(), int(totals[0]), int(totals[1]))
    )
    upstream = conn.scalars(
        sa.select(step_dependencies.c.on_step_id)
        .where(step_dependencies.c.step_id == step_id, step_dependencies.c.mode == "frames")
        .order_by(step_dependencies.c.on_step_id)
    ).all()
    loaded = loader.load(
        step_id,
        plans,
        blocked=step["waiting_on"] > 0,
        waits_for=[FrameIndex.read(conn, other) for other in upstream],
        take=take,
        positions=positions,
    )
    loader.flush()
    conn.execute(steps.update().where(steps.c.id == step_id).values(take=take))
    moves = Moves()
    moves.add(step_id, TaskState.BLOCKED, loaded.blocked)
    moves.add(step_id, TaskState.READY, loaded.ready)
    moves.frames_total[step_id] += loaded.frames
    change_job(conn, job["id"], {}, "retake")
    # frames that it waits for may have failed before
    settle(conn, moves, cut=[task for other in upstream for task in bad_tasks(conn, other)])
    return {"step_id": step_id, "take": take, "tasks": len(plans), "frames": loaded.frames}


def set_current_take(conn: sa.Connection, step_id: str, numbers: FrameRange, take: int) -> int:
    """Make this take the one that films and downloads use, for these frames; how many there are.

    Raises :class:`farm.errors.InvalidInput` when one of them has no published frame of that take.
    """
    step = _step(conn, step_id)
    read_job(conn, step["job_id"])
    there = set(
        conn.scalars(
            sa.select(frames.c.number).where(
                frames.c.step_id == step_id,
                frames.c.number.between(numbers.first, numbers.last),
                frames.c.take == take,
                frames.c.state == "published",
            )
        )
    ) & set(numbers)
    missing = numbers.without(there)
    if missing is not None:
        message = f"step {step['name']!r} has no published frame {str(missing)[:80]} of take {take}"
        raise InvalidInput(message, [FieldFault("/frames", message)])
    make_current(conn, step_id, take, sorted(there))
    events.emit(
        conn,
        "frame.current",
        job_id=step["job_id"],
        step_id=step_id,
        data={"take": take, "frames": str(numbers)},
    )
    return len(there)


def _step(conn: sa.Connection, step_id: str) -> dict[str, Any]:
    row = conn.execute(sa.select(steps).where(steps.c.id == step_id)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no step {step_id}")
    return dict(row)


def _plans(
    conn: sa.Connection, step: dict[str, Any], numbers: FrameRange | None, payload: dict[str, Any]
) -> tuple[list[TaskPlan], list[int]]:
    """Tasks for a new take, cut like those of the first one, and their places in the step."""
    wanted = set(numbers) if numbers is not None else None
    found: set[int] = set()
    plans: list[TaskPlan] = []
    positions: list[int] = []
    query = (
        sa.select(tasks.c.position, tasks.c.frames, tasks.c.payload, tasks.c.rank, tasks.c.seconds)
        .where(tasks.c.step_id == step["id"], tasks.c.take == 1, tasks.c.frames.is_not(None))
        .order_by(tasks.c.position)
    )
    for position, text, old, rank, seconds in conn.execute(query):
        own = [n for n in FrameRange.parse(text) if wanted is None or n in wanted]
        if own:
            found.update(own)
            plans.append(TaskPlan(FrameRange.of(own), {**(old or {}), **payload}, rank, seconds))
            positions.append(position)
    missing = numbers.without(found) if numbers is not None else None
    if missing is not None:
        message = f"step {step['name']!r} does not make frame {str(missing)[:80]}"
        raise InvalidInput(message, [FieldFault("/frames", message)])
    if not plans:
        raise Conflict(f"step {step['name']!r} makes no frames, so it has no takes")
    return plans, positions
