"""Finding things that the caller may see: what is missing and what is out of sight get the same 404."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from api.auth import Principal, not_found
from farm.repositories.reading import frames, jobs, machines, work

Row = dict[str, Any]


def job(conn: sa.Connection, principal: Principal, job_id: str) -> Row:
    """A job; raises :class:`farm.errors.NotFound`."""
    found = jobs.get_job(conn, job_id)
    if found is None or not principal.sees_job(found):
        not_found("job", job_id)
    return found


def _in_sight(conn: sa.Connection, principal: Principal, job_id: str) -> bool:
    if principal.project_id is None and not principal.own_alone:
        return True
    owners = jobs.owners_of(conn, job_id)
    return owners is not None and principal.sees_job(owners)


def step(conn: sa.Connection, principal: Principal, step_id: str) -> Row:
    """A step; raises :class:`farm.errors.NotFound`."""
    found = jobs.get_step(conn, step_id)
    if found is None or not _in_sight(conn, principal, found["job_id"]):
        not_found("step", step_id)
    return found


def step_of_job(conn: sa.Connection, job_id: str, name_or_id: str) -> Row:
    """A step of a job by name or id; raises :class:`farm.errors.NotFound`."""
    found = jobs.find_step(conn, job_id, name_or_id)
    if found is None:
        not_found("step", name_or_id)
    return found


def task(conn: sa.Connection, principal: Principal, task_id: str) -> Row:
    """A task; raises :class:`farm.errors.NotFound`."""
    found = work.get_task(conn, task_id)
    if found is None or not _in_sight(conn, principal, found["job_id"]):
        not_found("task", task_id)
    return found


def attempt(conn: sa.Connection, principal: Principal, attempt_id: str) -> Row:
    """An attempt; raises :class:`farm.errors.NotFound`."""
    found = work.get_attempt(conn, attempt_id)
    if found is None or not _in_sight(conn, principal, found["job_id"]):
        not_found("attempt", attempt_id)
    return found


def frame(conn: sa.Connection, principal: Principal, step_id: str, take: int, number: int) -> Row:
    """A frame with its files; raises :class:`farm.errors.NotFound`."""
    found = frames.get_frame(conn, step_id, take, number)
    if found is None or not _in_sight(conn, principal, found["job_id"]):
        not_found("frame", f"{number} (take {take}) of step {step_id}")
    return found


def artifact(conn: sa.Connection, principal: Principal, artifact_id: str) -> Row:
    """An artifact; raises :class:`farm.errors.NotFound`."""
    found = frames.get_artifact(conn, artifact_id)
    if found is None or not _in_sight(conn, principal, found["job_id"]):
        not_found("artifact", artifact_id)
    return found


def node(conn: sa.Connection, name_or_id: str) -> Row:
    """A node by name or id; raises :class:`farm.errors.NotFound`."""
    found = machines.get_node(conn, name_or_id)
    if found is None:
        not_found("node", name_or_id)
    return found
