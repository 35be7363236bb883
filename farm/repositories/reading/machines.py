"""Nodes, slots, pools, buffers and byte budgets as they are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from farm.repositories.reading.keyset import Row, page, row, rows


def list_nodes(
    conn: sa.Connection,
    *,
    states: Sequence[str] = (),
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Nodes by name, each with the number of its slots per state; keyset ``(name,)``."""
    query = sa.select(t.nodes)
    if states:
        query = query.where(t.nodes.c.state.in_(list(states)))
    return _with_slots(conn, page(conn, query, (t.nodes.c.name,), position, limit))


def get_node(conn: sa.Connection, name_or_id: str) -> Row | None:
    """One node by id or by name."""
    query = sa.select(t.nodes).where(sa.or_(t.nodes.c.id == name_or_id, t.nodes.c.name == name_or_id))
    found = row(conn, query)
    return _with_slots(conn, [found])[0] if found else None


def _with_slots(conn: sa.Connection, nodes: list[Row]) -> list[Row]:
    slots = t.slots.c
    query = (
        sa.select(slots.node_id, slots.state, sa.func.count())
        .where(slots.node_id.in_([node["id"] for node in nodes]))
        .group_by(slots.node_id, slots.state)
    )
    counts: dict[str, dict[str, int]] = {}
    for node_id, state, number in conn.execute(query):
        counts.setdefault(node_id, {})[state] = number
    for node in nodes:
        node["slots"] = counts.get(node["id"], {})
    return nodes


def _slots() -> sa.Select[Any]:
    return sa.select(t.slots, t.nodes.c.name.label("node")).join(t.nodes, t.nodes.c.id == t.slots.c.node_id)


def list_slots(
    conn: sa.Connection,
    *,
    node_id: str | None = None,
    states: Sequence[str] = (),
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Slots by node and name; keyset ``(node name, slot name)``."""
    query = _slots()
    if node_id is not None:
        query = query.where(t.slots.c.node_id == node_id)
    if states:
        query = query.where(t.slots.c.state.in_(list(states)))
    return page(conn, query, (t.nodes.c.name, t.slots.c.name), position, limit)


def get_slot(conn: sa.Connection, slot_id: str) -> Row | None:
    """One slot."""
    return row(conn, _slots().where(t.slots.c.id == slot_id))


def list_pools(conn: sa.Connection) -> list[Row]:
    """Every pool that has settings, slots or waiting work, by name, with its load. Pools are few."""
    known = {pool["name"]: pool for pool in rows(conn, sa.select(t.pools))}
    serving: Counter[str] = Counter()
    alive = sa.select(t.slots.c.pools).where(t.slots.c.state != "dead")
    for pools in conn.scalars(alive):
        serving.update(set(pools))
    steps = t.steps.c
    load_query = (
        sa.select(
            steps.pool,
            # a paused job waits for nobody's slot
            sa.func.sum(sa.case((t.jobs.c.paused, 0), else_=steps.n_ready)),
            sa.func.sum(steps.n_dispatched + steps.n_running),
        )
        .join(t.jobs, t.jobs.c.id == steps.job_id)
        .where(steps.state.in_(["waiting", "running"]))
        .group_by(steps.pool)
    )
    load = {name: (int(ready), int(busy)) for name, ready, busy in conn.execute(load_query)}
    result = []
    for name in sorted(known.keys() | serving.keys() | load.keys()):
        pool = known.get(name) or {"name": name, "max_slots": None, "paused": False, "version": 1}
        ready, busy = load.get(name, (0, 0))
        result.append({**pool, "slots": serving.get(name, 0), "ready": ready, "busy": busy})
    return result


def list_buffers(
    conn: sa.Connection,
    *,
    node_id: str | None = None,
    medium: str | None = None,
    purpose: str | None = None,
    states: Sequence[str] = (),
    job_id: str | None = None,
    project_id: str | None = None,
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Buffers, newest first; keyset ``(created_at, id)``. ``project_id``: only those its tasks own."""
    query = _buffers(project_id, job_id)
    buffers = t.buffers.c
    if node_id is not None:
        query = query.where(buffers.node_id == node_id)
    if medium is not None:
        query = query.where(buffers.medium == medium)
    if purpose is not None:
        query = query.where(buffers.purpose == purpose)
    if states:
        query = query.where(buffers.state.in_(list(states)))
    return page(conn, query, (buffers.created_at, buffers.id), position, limit, descending=True)


def get_buffer(conn: sa.Connection, buffer_id: str, project_id: str | None = None) -> Row | None:
    """One buffer; with ``project_id`` only if a task of that project owns it."""
    return row(conn, _buffers(project_id, None).where(t.buffers.c.id == buffer_id))


def _buffers(project_id: str | None, job_id: str | None) -> sa.Select[Any]:
    query = sa.select(t.buffers)
    if project_id is None and job_id is None:
        return query
    query = query.join(t.tasks, t.tasks.c.id == t.buffers.c.task_id).join(
        t.steps, t.steps.c.id == t.tasks.c.step_id
    )
    if job_id is not None:
        query = query.where(t.steps.c.job_id == job_id)
    if project_id is not None:
        query = query.join(t.jobs, t.jobs.c.id == t.steps.c.job_id).where(t.jobs.c.project_id == project_id)
    return query


def list_budgets(
    conn: sa.Connection,
    *,
    node_id: str | None = None,
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Byte budgets by node and medium; keyset ``(node_id, medium)``."""
    query = sa.select(t.byte_budgets)
    if node_id is not None:
        query = query.where(t.byte_budgets.c.node_id == node_id)
    return page(conn, query, (t.byte_budgets.c.node_id, t.byte_budgets.c.medium), position, limit)


def nodes_of_job(conn: sa.Connection, job_id: str) -> list[str]:
    """Ids of the nodes on which tasks of a job are dispatched or running, so that they can be woken."""
    query = (
        sa.select(t.slots.c.node_id)
        .distinct()
        .join(t.tasks, t.tasks.c.slot_id == t.slots.c.id)
        .join(t.steps, t.steps.c.id == t.tasks.c.step_id)
        .where(t.steps.c.job_id == job_id, t.tasks.c.state.in_(["dispatched", "running"]))
    )
    return list(conn.scalars(query))
