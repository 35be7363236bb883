"""The lock on a job's structure, which lets whoever ends tasks look at other steps of the job in any order.

Ending a task may release, expand or cut off tasks of other steps, and people's commands touch all tasks of
a job. On PostgreSQL each of these transactions first takes one advisory lock per job, so that two of them
never hold what the other waits for. Claims, frames, leases and dispatch do not take it. A job that comes
after another is locked after it.
"""

from __future__ import annotations

import sqlalchemy as sa


def lock_job(conn: sa.Connection, job_id: str) -> None:
    """Hold the job's structure until the transaction ends. Taking it again is free."""
    if conn.dialect.name == "postgresql":
        conn.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(job_id, 57))))


def lock_jobs(conn: sa.Connection, job_ids: set[str]) -> None:
    """Hold several jobs, oldest first (ids sort by time of making, and a job comes after older ones)."""
    for job_id in sorted(job_ids):
        lock_job(conn, job_id)
