"""Jobs and steps as they are shown: with their counts, their progress and an estimate of what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from farm.repositories.reading.keyset import Row, page, row, rows
from farm.repositories.reading.pace import seconds_left
from farm.states import TaskState

_COUNTERS = {state: f"n_{state.value}" for state in TaskState}


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; ``None``, empty: all. ``text`` is part of the name; all ``labels`` must match."""

    project_id: str | None = None
    user_id: str | None = None
    states: Sequence[str] = ()
    kind: str | None = None
    text: str | None = None
    paused: bool | None = None
    labels: Sequence[tuple[str, str]] = ()
    id_part: str | None = None
    """The beginning (with or without ``job_``) or the end of the id."""


def _jobs() -> sa.Select[Any]:
    return (
        sa.select(
            t.jobs,
            t.projects.c.name.label("project_name"),
            t.users.c.name.label("user_name"),
        )
        .join(t.projects, t.projects.c.id == t.jobs.c.project_id)
        .join(t.users, t.users.c.id == t.jobs.c.user_id)
    )


def list_jobs(
    conn: sa.Connection,
    wanted: JobFilter,
    position: Sequence[Any] | None,
    limit: int,
    *,
    ascending: bool = False,
) -> list[Row]:
    """Jobs, newest first (or ``ascending``); keyset ``(created_at, id)``."""
    query = _jobs()
    jobs = t.jobs.c
    if wanted.project_id is not None:
        query = query.where(jobs.project_id == wanted.project_id)
    if wanted.user_id is not None:
        query = query.where(jobs.user_id == wanted.user_id)
    if wanted.states:
        query = query.where(jobs.state.in_(list(wanted.states)))
    if wanted.kind is not None:
        query = query.where(jobs.kind == wanted.kind)
    if wanted.paused is not None:
        query = query.where(jobs.paused == wanted.paused)
    if wanted.id_part:
        part = wanted.id_part.removeprefix("job_")
        begins = jobs.id.startswith(f"job_{part}", autoescape=True)
        ends = jobs.id.endswith(part, autoescape=True)
        query = query.where(begins if part != wanted.id_part else sa.or_(begins, ends))
    if wanted.text:
        query = query.where(jobs.name.icontains(wanted.text, autoescape=True))
    for name, value in wanted.labels:
        query = query.where(jobs.labels[name].as_string() == value)
    found = page(conn, query, (jobs.created_at, jobs.id), position, limit, descending=not ascending)
    return _with_counts(conn, found)


def get_job(conn: sa.Connection, job_id: str) -> Row | None:
    """One job with its counts."""
    found = row(conn, _jobs().where(t.jobs.c.id == job_id))
    return _with_counts(conn, [found])[0] if found else None


def job_assets(conn: sa.Connection, job_id: str) -> dict[str, str]:
    """Asset path to SHA-256."""
    query = sa.select(t.job_assets.c.path, t.job_assets.c.sha256).where(t.job_assets.c.job_id == job_id)
    return {row.path: row.sha256 for row in conn.execute(query.order_by(t.job_assets.c.path))}


def job_after(conn: sa.Connection, job_id: str) -> list[str]:
    """Ids of the jobs that must be done before this one."""
    query = sa.select(t.job_dependencies.c.after_job_id).where(t.job_dependencies.c.job_id == job_id)
    return list(conn.scalars(query.order_by(t.job_dependencies.c.after_job_id)))


def project_of(conn: sa.Connection, job_ids: Iterable[str]) -> dict[str, str]:
    """Job id to project id, for the jobs that exist."""
    query = sa.select(t.jobs.c.id, t.jobs.c.project_id).where(t.jobs.c.id.in_(list(job_ids)))
    return {row.id: row.project_id for row in conn.execute(query)}


def owners_of(conn: sa.Connection, job_id: str) -> Row | None:
    """The ``project_id`` and ``user_id`` of a job."""
    query = sa.select(t.jobs.c.project_id, t.jobs.c.user_id).where(t.jobs.c.id == job_id)
    found = conn.execute(query).mappings().first()
    return dict(found) if found is not None else None


def list_steps(
    conn: sa.Connection, job_id: str, position: Sequence[Any] | None = None, limit: int = 10_000
) -> list[Row]:
    """The steps of a job in order; keyset ``(position,)``."""
    query = sa.select(t.steps).where(t.steps.c.job_id == job_id)
    return _finish_steps(conn, page(conn, query, (t.steps.c.position,), position, limit))


def get_step(conn: sa.Connection, step_id: str) -> Row | None:
    """One step."""
    found = row(conn, sa.select(t.steps).where(t.steps.c.id == step_id))
    return _finish_steps(conn, [found])[0] if found else None


def find_step(conn: sa.Connection, job_id: str, name_or_id: str) -> Row | None:
    """A step of this job by its name or its id."""
    steps = t.steps.c
    query = sa.select(t.steps).where(
        steps.job_id == job_id, sa.or_(steps.name == name_or_id, steps.id == name_or_id)
    )
    found = row(conn, query)
    return _finish_steps(conn, [found])[0] if found else None


def _finish_steps(conn: sa.Connection, steps: list[Row]) -> list[Row]:
    if not steps:
        return steps
    edges = t.step_dependencies.c
    query = sa.select(edges.step_id, edges.on_step_id).where(edges.step_id.in_([s["id"] for s in steps]))
    before: dict[str, list[str]] = {}
    for step_id, on_step_id in conn.execute(query.order_by(edges.on_step_id)):
        before.setdefault(step_id, []).append(on_step_id)
    left = seconds_left(conn, steps)
    for step in steps:
        counts = {state.value: step[column] for state, column in _COUNTERS.items()}
        total = sum(counts.values())
        step["depends_on"] = before.get(step["id"], [])
        step["tasks"] = counts
        step["tasks_total"] = total
        step["progress"] = counts["done"] / total if total else 0.0
        step["eta_s"] = left[step["id"]]
    return steps


def _with_counts(conn: sa.Connection, jobs: list[Row]) -> list[Row]:
    if not jobs:
        return jobs
    steps = t.steps.c
    columns = [steps.id, steps.job_id, steps.frames_total, steps.frames_done, steps.mean_task_s]
    columns += [steps[name] for name in _COUNTERS.values()]
    per_job: dict[str, list[Row]] = {}
    for step in rows(conn, sa.select(*columns).where(steps.job_id.in_([job["id"] for job in jobs]))):
        per_job.setdefault(step["job_id"], []).append(step)
    left = seconds_left(conn, [step for mine in per_job.values() for step in mine])
    for job in jobs:
        mine = per_job.get(job["id"], [])
        counts = {state.value: sum(step[column] for step in mine) for state, column in _COUNTERS.items()}
        etas = (left[step["id"]] for step in mine)
        known = [eta for eta in etas if eta is not None]
        total = sum(counts.values())
        job["project"] = {"id": job["project_id"], "name": job.pop("project_name")}
        job["user"] = {"id": job["user_id"], "name": job.pop("user_name")}
        job["tasks"] = counts
        job["tasks_total"] = total
        job["tasks_done"] = counts["done"]
        job["frames_total"] = sum(step["frames_total"] for step in mine)
        job["frames_done"] = sum(step["frames_done"] for step in mine)
        job["progress"] = counts["done"] / total if total else 0.0
        # steps that have not begun have no pace yet and do not count
        job["eta_s"] = sum(known) if known else None
    return jobs
