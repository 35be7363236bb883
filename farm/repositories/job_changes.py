"""What people may change on a job that is not a command: priority, labels, name. One change, one version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db import tables as t
from farm.errors import NotFound, PreconditionFailed
from farm.lifecycle.locks import lock_job


def change_job(conn: sa.Connection, job_id: str, values: Mapping[str, Any], version: int | None) -> None:
    """Set ``priority``, ``labels`` or ``name`` of a job that is at ``version`` (``None``: at any).

    Raises :class:`farm.errors.NotFound` and :class:`farm.errors.PreconditionFailed`.
    """
    lock_job(conn, job_id)
    jobs = t.jobs.c
    current = conn.execute(sa.select(t.jobs).where(jobs.id == job_id)).mappings().one_or_none()
    if current is None:
        raise NotFound(f"there is no job {job_id!r}")
    if version is not None and current["version"] != version:
        raise PreconditionFailed(
            f"job {job_id} has version {current['version']}, If-Match names {version}; read it again"
        )
    changed = {name: value for name, value in values.items() if current[name] != value}
    if not changed:
        return
    conn.execute(sa.update(t.jobs).where(jobs.id == job_id).values(version=jobs.version + 1, **changed))
    events.emit(conn, "job.changed", job_id=job_id, data={"command": "change", **changed})
