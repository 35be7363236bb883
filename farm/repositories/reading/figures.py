"""Counts for metrics; each query is bounded by the number of jobs and steps, never of tasks or frames."""

from __future__ import annotations

import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import db_now
from farm.repositories.reading.keyset import Row, rows
from farm.states import TaskState


def jobs_by_state(conn: sa.Connection) -> list[Row]:
    """``kind, state, number``."""
    jobs = t.jobs.c
    query = sa.select(jobs.kind, jobs.state, sa.func.count().label("number")).group_by(jobs.kind, jobs.state)
    return rows(conn, query)


def tasks_by_state(conn: sa.Connection) -> list[Row]:
    """``pool``, one ``n_<state>`` for each task state, ``frames_total, frames_done``; from step counters."""
    steps = t.steps.c
    names = [*(f"n_{state.value}" for state in TaskState), "frames_total", "frames_done"]
    query = sa.select(steps.pool, *(sa.func.sum(steps[name]).label(name) for name in names))
    return rows(conn, query.group_by(steps.pool))


def slots_by_state(conn: sa.Connection) -> list[Row]:
    """``node, state, number``."""
    query = (
        sa.select(t.nodes.c.name.label("node"), t.slots.c.state, sa.func.count().label("number"))
        .join(t.nodes, t.nodes.c.id == t.slots.c.node_id)
        .group_by(t.nodes.c.name, t.slots.c.state)
    )
    return rows(conn, query)


def nodes_by_state(conn: sa.Connection) -> list[Row]:
    """``state, number``."""
    query = sa.select(t.nodes.c.state, sa.func.count().label("number")).group_by(t.nodes.c.state)
    return rows(conn, query)


def budgets(conn: sa.Connection) -> list[Row]:
    """``node, medium, budget_bytes, reserved_bytes``."""
    query = sa.select(
        t.nodes.c.name.label("node"),
        t.byte_budgets.c.medium,
        t.byte_budgets.c.budget_bytes,
        t.byte_budgets.c.reserved_bytes,
    ).join(t.nodes, t.nodes.c.id == t.byte_budgets.c.node_id)
    return rows(conn, query)


def live_buffers(conn: sa.Connection) -> list[Row]:
    """``medium, state, number, bytes`` of buffers that are not released."""
    buffers = t.buffers.c
    query = (
        sa.select(
            buffers.medium,
            buffers.state,
            sa.func.count().label("number"),
            sa.func.sum(buffers.bytes).label("bytes"),
        )
        .where(buffers.state != "released")
        .group_by(buffers.medium, buffers.state)
    )
    return rows(conn, query)


def oldest_ready_s(conn: sa.Connection) -> list[Row]:
    """``pool, seconds`` since the oldest open step with waiting work was made."""
    steps = t.steps.c
    query = (
        sa.select(steps.pool, (db_now() - sa.func.min(t.jobs.c.created_at)).label("seconds"))
        .join(t.jobs, t.jobs.c.id == steps.job_id)
        .where(steps.n_ready > 0, t.jobs.c.paused.is_(False))
        .group_by(steps.pool)
    )
    return rows(conn, query)


def newest_event(conn: sa.Connection) -> int:
    """Id of the newest event, 0 when there is none."""
    return int(conn.scalar(sa.select(sa.func.max(t.events.c.id))) or 0)


def projects_spent(conn: sa.Connection) -> list[Row]:
    """``name, share, used_slot_s, used_gpu_s``."""
    projects = t.projects.c
    return rows(
        conn, sa.select(projects.name, projects.share, projects.used_slot_s, projects.used_gpu_s).limit(1000)
    )
