"""A job as commands read and change it: locked first, its version checked, every change one version."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.tables import jobs, steps
from farm.errors import NotFound, PreconditionFailed
from farm.lifecycle.locks import lock_job


def read_job(conn: sa.Connection, job_id: str, version: int | None = None) -> dict[str, Any]:
    """Lock the job's structure and read its row.

    Raises :class:`farm.errors.NotFound`, or :class:`farm.errors.PreconditionFailed` when it is not at
    ``version`` (``None``: any).
    """
    lock_job(conn, job_id)
    row = conn.execute(sa.select(jobs).where(jobs.c.id == job_id)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no job {job_id}")
    if version is not None and row["version"] != version:
        raise PreconditionFailed(
            f"job {job_id} has version {row['version']}, If-Match names {version}; read it again"
        )
    return dict(row)


def change_job(conn: sa.Connection, job_id: str, values: dict[str, Any], command: str) -> None:
    """Write columns of a job that :func:`read_job` has locked, as its next version, and say so."""
    conn.execute(jobs.update().where(jobs.c.id == job_id).values(version=jobs.c.version + 1, **values))
    shown = {name: value for name, value in values.items() if value is not None}
    events.emit(conn, "job.changed", job_id=job_id, data={"command": command, **shown})


def step_ids(conn: sa.Connection, job_id: str) -> list[str]:
    """Ids of a job's steps, in the order in which they are locked."""
    return list(conn.scalars(sa.select(steps.c.id).where(steps.c.job_id == job_id).order_by(steps.c.id)))
