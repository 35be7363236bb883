"""Tasks read under a lock, changed in Python, and written back in one statement that checks them again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from farm.db.connect import db_now
from farm.db.rows import dumps, json_table
from farm.db.tables import jobs, steps, tasks
from farm.lifecycle.counters import Moves
from farm.states import Actor, TaskState, may_move


@dataclass(slots=True)
class TaskRow:
    """The parts of a task that its life changes, with those of its step and job that decide how.

    ``now`` is the database's time when it was read; ``cancel_requested`` holds still only under the lock on
    the job.
    """

    id: str
    step_id: str
    job_id: str
    project_id: str
    take: int
    frames: str | None
    max_retries: int
    paused: bool
    cancel_requested: bool
    now: float
    waiting_on: int
    state: str
    epoch: int
    charged: int
    node_losses: int
    solo: bool
    slot_id: str | None
    ready_at: float | None
    not_before: float | None
    dispatched_at: float | None
    started_at: float | None
    lease_expires_at: float | None
    finished_at: float | None
    wish: str | None
    checkpoint: str | None
    result: Any
    progress: float | None
    error: str | None
    was_state: str = ""
    was_epoch: int = 0

    def to_ready(self, now: float, *, not_before: float | None = None) -> None:
        """Back to the queue; the epoch stays until the next dispatch gives a new one."""
        self.state = TaskState.READY
        self.ready_at = now
        self.not_before = not_before
        self._leave_slot()

    def to_end(self, state: TaskState, now: float, error: str | None = None) -> None:
        """Into a state that no attempt or timer leaves."""
        self.state = state
        self.finished_at = now
        self.error = error
        self._leave_slot()

    def _leave_slot(self) -> None:
        self.slot_id = None
        self.dispatched_at = None
        self.lease_expires_at = None
        self.wish = None
        if self.state != TaskState.DONE:
            self.progress = None


_WRITTEN = {
    "state": "text", "epoch": "int", "charged": "int", "node_losses": "int", "solo": "bool",
    "slot_id": "text", "ready_at": "float", "not_before": "float", "dispatched_at": "float",
    "started_at": "float", "lease_expires_at": "float", "finished_at": "float", "wish": "text",
    "checkpoint": "text", "result": "json", "progress": "float", "error": "text",
}  # fmt: skip
_OTHERS = {
    "job_id": steps.c.job_id, "max_retries": steps.c.max_retries, "project_id": jobs.c.project_id,
    "paused": jobs.c.paused, "cancel_requested": jobs.c.cancel_requested, "now": db_now(),
}  # fmt: skip
_READ = [
    _OTHERS[f.name].label(f.name) if f.name in _OTHERS else tasks.c[f.name]
    for f in fields(TaskRow)
    if f.name not in ("was_state", "was_epoch")
]


def read_tasks(
    conn: sa.Connection, task_ids: Iterable[str], *, skip_locked: bool = False
) -> dict[str, TaskRow]:
    """Lock these tasks in id order and read them; those that do not exist (or are skipped) are left out."""
    ids = sorted(set(task_ids))
    if not ids:
        return {}
    found = {}
    statement = _read_statement(conn.dialect.name, skip_locked)
    for values in conn.execute(statement, {"ids": ids}).mappings():
        task = TaskRow(**values)
        task.was_state, task.was_epoch = task.state, task.epoch
        found[task.id] = task
    return found


def write_tasks(conn: sa.Connection, actor: Actor, rows: Sequence[TaskRow], moves: Moves) -> list[TaskRow]:
    """Write back tasks that :func:`read_tasks` read, and count the moves of those that were written.

    A row is written only if its state and epoch still are what was read. Raises :class:`ValueError` for a
    move that the state table does not allow this actor.
    """
    if not rows:
        return []
    for row in rows:
        if row.state != row.was_state and not may_move(TaskState(row.was_state), TaskState(row.state), actor):
            raise ValueError(f"{actor} may not move a task from {row.was_state} to {row.state}")
    written = [
        {"id": row.id, "was_state": row.was_state, "was_epoch": row.was_epoch}
        | {name: getattr(row, name) for name in _WRITTEN}
        for row in rows
    ]
    changed = set(conn.scalars(_write_statement(conn.dialect.name), {"new_rows": dumps(written)}))
    done = [row for row in rows if row.id in changed]
    for row in done:
        moves.move(row.step_id, row.was_state, row.state)
        row.was_state, row.was_epoch = row.state, row.epoch
    return done


@lru_cache
def _read_statement(dialect: str, skip_locked: bool) -> sa.Select[Any]:
    query = (
        sa.select(*_READ)
        .join(steps, steps.c.id == tasks.c.step_id)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(tasks.c.id.in_(sa.bindparam("ids", expanding=True)))
        .order_by(tasks.c.id)
    )
    if dialect == "postgresql":
        return query.with_for_update(key_share=True, skip_locked=skip_locked, of=tasks)
    return query


@lru_cache
def _write_statement(dialect: str) -> Any:
    columns = {"id": "text", "was_state": "text", "was_epoch": "int", **_WRITTEN}
    new = json_table(dialect, "new", columns)
    return (
        tasks.update()
        .values({name: new.c[name] for name in _WRITTEN})
        .where(tasks.c.id == new.c.id, tasks.c.state == new.c.was_state, tasks.c.epoch == new.c.was_epoch)
        .returning(tasks.c.id)
    )


def by_step(rows: Iterable[TaskRow]) -> dict[str, list[TaskRow]]:
    """The tasks of each step."""
    grouped: dict[str, list[TaskRow]] = defaultdict(list)
    for row in rows:
        grouped[row.step_id].append(row)
    return dict(grouped)
