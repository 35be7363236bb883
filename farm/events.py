"""The event log: what happened, in an order that a reader can resume from by the id it saw last.

On PostgreSQL ids are given before commit, so a reader that asks for ``id > last`` misses rows of
transactions that commit late. Each row therefore carries its transaction's number (``xid``). Readers take
only rows of transactions below the oldest one still running, in the order (xid, id): nothing can appear
before a row that was already read. On SQLite there is one writer at a time; xid is 0 and ids are enough.

Events stay small: a bundle of tasks makes one event per step with lists of ids, a submission makes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

from farm.db.connect import db_now
from farm.db.rows import clean_json
from farm.db.tables import events

TYPES = (
    "job.submitted", "job.state", "job.changed", "job.deleted", "step.state", "step.expanded", "task.state",
    "task.split", "frame.published", "frame.current", "artifact.published", "attempt.started",
    "attempt.ended", "slot.state", "slot.audit", "node.state", "node.plan", "buffer.waiting",
    "buffer.orphaned", "guard.climb", "guard.let_go", "guard.not_us", "guard.telemetry_lost", "audit",
)  # fmt: skip


class db_xid(GenericFunction[int]):
    """Number of the running transaction (PostgreSQL); 0 on SQLite."""

    type = sa.BigInteger()
    inherit_cache = True


@compiles(db_xid, "sqlite")
def _sqlite_xid(element: Any, compiler: Any, **kw: Any) -> str:
    return "0"


@compiles(db_xid, "postgresql")
def _postgresql_xid(element: Any, compiler: Any, **kw: Any) -> str:
    return "CAST(CAST(pg_current_xact_id() AS text) AS bigint)"


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event as readers get it. ``id`` is what a reader resumes from (Last-Event-ID)."""

    id: int
    at: float
    type: str
    project_id: str | None
    job_id: str | None
    step_id: str | None
    task_id: str | None
    slot_id: str | None
    node_id: str | None
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a reader wants; empty fields do not restrict. ``types`` may end in ``.*``."""

    project_id: str | None = None
    job_id: str | None = None
    node_id: str | None = None
    types: Sequence[str] = field(default_factory=tuple)


def emit(
    conn: sa.Connection,
    type: str,
    *,
    project_id: str | None = None,
    job_id: str | None = None,
    step_id: str | None = None,
    task_id: str | None = None,
    slot_id: str | None = None,
    node_id: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Record an event in the transaction that makes it true. ``type`` is one of :data:`TYPES`.

    Without ``project_id``, an event of a job gets the job's project, so that readers that may see one
    project only can filter.
    """
    if type not in TYPES:
        raise ValueError(f"unknown event type {type!r}; add it to farm.events.TYPES")
    project: Any = project_id
    if project_id is None and job_id is not None:
        from farm.db.tables import jobs

        project = sa.select(jobs.c.project_id).where(jobs.c.id == job_id).scalar_subquery()
    conn.execute(
        events.insert().values(
            xid=db_xid(),
            at=db_now(),
            type=type,
            project_id=project,
            job_id=job_id,
            step_id=step_id,
            task_id=task_id,
            slot_id=slot_id,
            node_id=node_id,
            data=clean_json(dict(data or {})),
        )
    )


def read_after(
    conn: sa.Connection, last_id: int, limit: int = 500, where: EventFilter | None = None
) -> list[EventRow]:
    """Events after the one with id ``last_id`` (0: from the beginning), oldest first, at most ``limit``.

    The order is that of commits as far as readers can tell, so on PostgreSQL ids may go down between two
    events; resume from the id of the last one returned, never from the largest.
    """
    query = _safe(conn).where(_after(conn, last_id)).order_by(events.c.xid, events.c.id).limit(limit)
    for condition in _conditions(where or EventFilter()):
        query = query.where(condition)
    return [EventRow(**row) for row in conn.execute(query).mappings()]


def newest_id(conn: sa.Connection) -> int:
    """Id to resume from in order to see only what happens from now on."""
    newest = _safe(conn).order_by(events.c.xid.desc(), events.c.id.desc()).limit(1).subquery()
    return conn.scalar(sa.select(newest.c.id)) or 0


def forgotten_after(conn: sa.Connection, last_id: int) -> bool:
    """Whether events that came after this id may have been forgotten since; never for 0, the beginning."""
    if not last_id or conn.scalar(sa.select(events.c.id).where(events.c.id == last_id)) is not None:
        return False
    oldest = conn.scalar(sa.select(sa.func.min(events.c.id)))
    return oldest is None or oldest > last_id + 1


def forget_before(conn: sa.Connection, at: float) -> int:
    """Delete events older than ``at`` (seconds since the epoch); returns how many."""
    return conn.execute(events.delete().where(events.c.at < at)).rowcount


_COLUMNS = [c for c in events.c if c.name != "xid"]


def _safe(conn: sa.Connection) -> sa.Select[Any]:
    query = sa.select(*_COLUMNS)
    if conn.dialect.name == "postgresql":
        oldest_running = sa.text("CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)")
        query = query.where(events.c.xid < oldest_running)
    return query


def _after(conn: sa.Connection, last_id: int) -> sa.ColumnElement[bool]:
    if conn.dialect.name == "postgresql" and last_id:
        last = conn.scalar(sa.select(events.c.xid).where(events.c.id == last_id))
        if last is not None:
            return sa.tuple_(events.c.xid, events.c.id) > sa.tuple_(sa.literal(last), sa.literal(last_id))
    # SQLite; or the row was forgotten, and with it all that came before it
    return events.c.id > last_id


def _conditions(where: EventFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    for name in ("project_id", "job_id", "node_id"):
        value = getattr(where, name)
        if value is not None:
            found.append(events.c[name] == value)
    if where.types:
        exact = [t for t in where.types if not t.endswith(".*")]
        parts = [events.c.type.like(t[:-1] + "%") for t in where.types if t.endswith(".*")]
        found.append(sa.or_(events.c.type.in_(exact), *parts))
    return found
