"""A slot takes the tasks of its ticket: dispatched -> running where task, epoch and slot still match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.connect import db_now
from farm.db.tables import attempts, frames, jobs, slots, steps
from farm.db.tables import tasks as tasks_table
from farm.frame_range import FrameRange
from farm.ids import new_id
from farm.lifecycle.counters import Moves, apply_to_jobs, apply_to_steps
from farm.lifecycle.task_rows import TaskRow, read_tasks, write_tasks
from farm.records import ClaimedTask, Ticket
from farm.states import Actor, AttemptState, TaskState


def claim(
    conn: sa.Connection, ticket: Ticket, slot_id: str, incarnation: str, lease_s: float
) -> list[ClaimedTask]:
    """Begin the ticket's tasks: one attempt row each, with a lease of ``lease_s`` seconds from now.

    Entries that do not match (another epoch, another slot, cancelled, claimed before) are left out; so is
    everything when the slot now has another incarnation. The same ticket delivered again begins nothing.
    """
    slot = conn.execute(
        sa.select(slots.c.node_id, slots.c.incarnation, db_now().label("now")).where(slots.c.id == slot_id)
    ).one_or_none()
    if slot is None or slot.incarnation != incarnation or ticket.slot_id != slot_id:
        return []
    epochs = {entry.task_id: entry.epoch for entry in ticket.entries}
    rows = read_tasks(conn, epochs)
    wanted = [
        rows[task_id]
        for task_id, epoch in epochs.items()
        if task_id in rows
        and rows[task_id].state == TaskState.DISPATCHED
        and rows[task_id].epoch == epoch
        and rows[task_id].slot_id == slot_id
    ]
    for row in wanted:
        row.state = TaskState.RUNNING
        row.started_at = slot.now
        row.lease_expires_at = slot.now + lease_s
        row.progress = None
    moves = Moves()
    begun = write_tasks(conn, Actor.ATTEMPT, wanted, moves)
    if not begun:
        return []
    claimed = _begin(conn, begun, slot_id, slot.node_id, slot.now)
    events.emit(
        conn,
        "attempt.started",
        job_id=begun[0].job_id,
        step_id=begun[0].step_id,
        slot_id=slot_id,
        node_id=slot.node_id,
        data={"attempts": [[task.task_id, task.attempt_id, task.epoch] for task in claimed]},
    )
    apply_to_steps(conn, moves)
    apply_to_jobs(conn, moves)
    return claimed


def wishes(conn: sa.Connection, task_ids: Sequence[str]) -> dict[str, str | None]:
    """For each running task: ``cancel``, ``park`` or None. A task that runs no more is left out.

    A paused job reads as ``park``: also for tasks that were claimed after the pause.
    """
    query = (
        sa.select(tasks_table.c.id, tasks_table.c.wish, jobs.c.paused, jobs.c.cancel_requested)
        .join(steps, steps.c.id == tasks_table.c.step_id)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(tasks_table.c.id.in_(list(task_ids)), tasks_table.c.state == TaskState.RUNNING)
    )
    found: dict[str, str | None] = {}
    for task_id, wish, paused, cancel_requested in conn.execute(query):
        if cancel_requested:
            wish = "cancel"
        elif paused and wish is None:
            wish = "park"
        found[task_id] = wish
    return found


def _begin(
    conn: sa.Connection, rows: list[TaskRow], slot_id: str, node_id: str, now: float
) -> list[ClaimedTask]:
    ids = [row.id for row in rows]
    earlier = dict(
        conn.execute(
            sa.select(attempts.c.task_id, sa.func.max(attempts.c.number))
            .where(attempts.c.task_id.in_(ids))
            .group_by(attempts.c.task_id)
        ).all()
    )
    begun = [
        {
            "id": new_id("att"),
            "task_id": row.id,
            "job_id": row.job_id,
            "epoch": row.epoch,
            "number": earlier.get(row.id, 0) + 1,
            "slot_id": slot_id,
            "node_id": node_id,
            "state": AttemptState.RUNNING.value,
            "started_at": now,
            "queue_s": max(0.0, now - (row.ready_at or now)),
        }
        for row in rows
    ]
    serials: dict[str, int] = dict(
        conn.execute(attempts.insert().returning(attempts.c.task_id, attempts.c.serial), begun).all()
    )
    published = _published(conn, [row for row in rows if row.frames and row.id in earlier])
    shared = _shared(conn, rows[0].step_id)
    payloads = dict(
        conn.execute(
            sa.select(tasks_table.c.id, tasks_table.c.payload).where(tasks_table.c.id.in_(ids))
        ).all()
    )
    claimed = []
    for row, attempt in zip(rows, begun, strict=True):
        left = row.frames
        if left is not None and published.get(row.id):
            rest = FrameRange.parse(left).without(published[row.id])
            left = str(rest) if rest else ""
        claimed.append(
            ClaimedTask(
                task_id=row.id,
                epoch=row.epoch,
                attempt_id=str(attempt["id"]),
                serial=serials[row.id],
                step_id=row.step_id,
                take=row.take,
                frames=left,
                task_payload=payloads[row.id] or {},
                checkpoint=row.checkpoint,
                attempt_number=int(str(attempt["number"])),
                queued_s=float(str(attempt["queue_s"])),
                **shared,
            )
        )
    return claimed


def _published(conn: sa.Connection, rows: list[TaskRow]) -> dict[str, list[int]]:
    """Frames that earlier attempts of these tasks have published."""
    found: dict[str, list[int]] = {}
    if rows:
        query = sa.select(frames.c.task_id, frames.c.number).where(
            frames.c.task_id.in_([row.id for row in rows]), frames.c.state == "published"
        )
        for task_id, number in conn.execute(query):
            found.setdefault(task_id, []).append(number)
    return found


def _shared(conn: sa.Connection, step_id: str) -> dict[str, Any]:
    """What all tasks of a ticket have in common."""
    query = (
        sa.select(
            jobs.c.id.label("job_id"),
            jobs.c.project_id,
            jobs.c.spec.label("job_spec"),
            steps.c.name.label("step_name"),
            steps.c.engine,
            steps.c.pool,
            steps.c.payload.label("step_payload"),
            steps.c.outputs,
            steps.c.warm_key,
            steps.c.timeout_s,
            steps.c.no_progress_s,
        )
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(steps.c.id == step_id)
    )
    return dict(conn.execute(query).mappings().one())
