"""What failed in a job, in words for the person: which step, why, and whether a retry can mend it."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from farm.db.tables import attempts, steps, tasks
from farm.errors import EscapedPath, FarmError, InvalidInput, PermanentFailure
from farm.states import TaskState


def _slugs(kind: type[FarmError]) -> set[str]:
    return {kind.slug}.union(*(_slugs(each) for each in kind.__subclasses__()))


_OF_THE_INPUT: Final = frozenset(_slugs(InvalidInput) | _slugs(PermanentFailure) | {EscapedPath.slug})
"""Faults of what was submitted: the same input fails in the same way."""


def way_out(conn: sa.Connection, task_id: str) -> str:
    """What the person can do about a failed task."""
    kind = conn.scalar(
        sa.select(attempts.c.error_type)
        .where(attempts.c.task_id == task_id)
        .order_by(attempts.c.epoch.desc())
        .limit(1)
    )
    if kind in _OF_THE_INPUT:
        return "a retry would fail as well: mend that, and submit it anew"
    return "a retry runs it again"


def of_step(conn: sa.Connection, step_id: str, name: str, number: int) -> str:
    """The failure of a step with ``number`` failed tasks, by the first of them."""
    first = conn.execute(
        sa.select(tasks.c.id, tasks.c.error)
        .where(tasks.c.step_id == step_id, tasks.c.state == TaskState.FAILED)
        .order_by(tasks.c.position)
        .limit(1)
    ).one()
    failed = "a task" if number == 1 else f"{number} tasks"
    which = "" if number == 1 else ", the first"
    return f"{failed} of step {name!r} failed{which}: {first.error}; {way_out(conn, first.id)}"


def of_job(conn: sa.Connection, job_id: str) -> str | None:
    """The failure of a job, by its first step with failed tasks; ``None`` where nothing has failed."""
    step = conn.execute(
        sa.select(steps.c.id, steps.c.name, steps.c.n_failed)
        .where(steps.c.job_id == job_id, steps.c.n_failed > 0)
        .order_by(steps.c.position)
        .limit(1)
    ).one_or_none()
    return of_step(conn, step.id, step.name, step.n_failed) if step is not None else None
