"""Tasks and attempts as they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from farm.repositories.reading.keyset import Row, page, row, rows


def _tasks() -> sa.Select[Any]:
    return sa.select(
        t.tasks, t.steps.c.job_id, t.steps.c.name.label("step"), t.steps.c.position.label("step_position")
    ).join(t.steps, t.steps.c.id == t.tasks.c.step_id)


def list_tasks(
    conn: sa.Connection,
    *,
    job_id: str | None = None,
    step_id: str | None = None,
    states: Sequence[str] = (),
    take: int | None = None,
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Tasks of a job or step, in order of step, take and position; keyset of those three."""
    query = _tasks()
    if job_id is not None:
        query = query.where(t.steps.c.job_id == job_id)
    if step_id is not None:
        query = query.where(t.tasks.c.step_id == step_id)
    if states:
        query = query.where(t.tasks.c.state.in_(list(states)))
    if take is not None:
        query = query.where(t.tasks.c.take == take)
    key = (t.steps.c.position, t.tasks.c.take, t.tasks.c.position)
    return [_shown(task) for task in page(conn, query, key, position, limit)]


def get_task(conn: sa.Connection, task_id: str) -> Row | None:
    """One task with its job and step."""
    found = row(conn, _tasks().where(t.tasks.c.id == task_id))
    return _shown(found) if found else None


def _shown(task: Row) -> Row:
    task["parked"] = task["state"] == "ready" and task["checkpoint"] is not None
    return task


def tasks_of_slots(
    conn: sa.Connection, slot_ids: Iterable[str], project_id: str | None
) -> dict[str, list[str]]:
    """Slot id to the tasks that it holds; of one project when it is given."""
    tasks = t.tasks.c
    query = (
        sa.select(tasks.slot_id, tasks.id)
        .where(tasks.slot_id.in_(list(slot_ids)), tasks.state.in_(["dispatched", "running"]))
        .order_by(tasks.id)
    )
    if project_id is not None:
        query = (
            query.join(t.steps, t.steps.c.id == tasks.step_id)
            .join(t.jobs, t.jobs.c.id == t.steps.c.job_id)
            .where(t.jobs.c.project_id == project_id)
        )
    held: dict[str, list[str]] = {}
    for slot_id, task_id in conn.execute(query):
        held.setdefault(slot_id, []).append(task_id)
    return held


def list_attempts(
    conn: sa.Connection,
    *,
    job_id: str | None = None,
    task_id: str | None = None,
    states: Sequence[str] = (),
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Attempts of a job or task, newest first; keyset ``(serial,)``."""
    query = sa.select(t.attempts)
    if job_id is not None:
        query = query.where(t.attempts.c.job_id == job_id)
    if task_id is not None:
        query = query.where(t.attempts.c.task_id == task_id)
    if states:
        query = query.where(t.attempts.c.state.in_(list(states)))
    return page(conn, query, (t.attempts.c.serial,), position, limit, descending=True)


def get_attempt(conn: sa.Connection, attempt_id: str) -> Row | None:
    """One attempt."""
    return row(conn, sa.select(t.attempts).where(t.attempts.c.id == attempt_id))


def recent_times(conn: sa.Connection, limit: int) -> list[Row]:
    """Pool and time split of the attempts that began last; for latency figures at a bounded cost."""
    newest = sa.select(t.attempts).order_by(t.attempts.c.serial.desc()).limit(limit).subquery("newest")
    query = (
        sa.select(
            t.steps.c.pool,
            newest.c.state,
            *(newest.c[name] for name in ("queue_s", "load_s", "work_s", "write_s", "held_s")),
        )
        .join(t.tasks, t.tasks.c.id == newest.c.task_id)
        .join(t.steps, t.steps.c.id == t.tasks.c.step_id)
    )
    return rows(conn, query)
