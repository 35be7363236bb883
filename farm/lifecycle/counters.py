"""Task counts of steps, and the states of steps and jobs that follow from them. Nothing else writes them.

A transaction collects its moves in a :class:`Moves` and applies them once, steps in id order. The count
that a step has afterwards decides its state; the states of a job's steps decide the job's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from farm import events
from farm.db.connect import db_now
from farm.db.rows import lock
from farm.db.tables import STEP_COUNTERS, jobs, steps
from farm.states import GroupState, TaskState, derive_state


@dataclass(frozen=True, slots=True)
class Change:
    """A step or job whose state has changed."""

    id: str
    job_id: str
    old: GroupState
    new: GroupState


@dataclass(slots=True)
class Moves:
    """What a transaction has done to the counts of steps, not yet applied."""

    tasks: dict[str, Counter[str]] = field(default_factory=dict)
    frames_done: Counter[str] = field(default_factory=Counter)
    frames_total: Counter[str] = field(default_factory=Counter)
    task_s: dict[str, float] = field(default_factory=dict)
    """Measured mean seconds per task, which go into the step's running mean."""
    job_ids: set[str] = field(default_factory=set)
    """Jobs whose state must be derived again: a step's state has changed."""

    def move(self, step_id: str, source: str, target: str, number: int = 1) -> None:
        """``number`` tasks of the step went from one state to another."""
        if source != target and number:
            counts = self.tasks.setdefault(step_id, Counter())
            counts[source] -= number
            counts[target] += number

    def add(self, step_id: str, state: str, number: int) -> None:
        """``number`` tasks were added to the step in this state."""
        if number:
            self.tasks.setdefault(step_id, Counter())[state] += number

    def step_ids(self) -> list[str]:
        """Steps with something to apply, in the order in which they are locked."""
        return sorted({*self.tasks, *self.frames_done, *self.frames_total, *self.task_s})


def apply_to_steps(conn: sa.Connection, moves: Moves) -> list[Change]:
    """Apply the collected counts, derive the steps' states, and say which changed. Empties ``moves``.

    The jobs of changed steps are kept in ``moves.job_ids`` for :func:`apply_to_jobs`, which comes last
    because jobs are locked after steps.
    """
    changes = []
    for step_id in moves.step_ids():
        values: dict[str, Any] = {}
        for state, delta in moves.tasks.get(step_id, Counter()).items():
            if delta:
                column = steps.c[f"n_{state}"]
                values[column.name] = column + delta
        for name, deltas in (("frames_done", moves.frames_done), ("frames_total", moves.frames_total)):
            if deltas[step_id]:
                values[name] = steps.c[name] + deltas[step_id]
        if (measured := moves.task_s.get(step_id)) is not None:
            values["mean_task_s"] = sa.func.coalesce(steps.c.mean_task_s * 0.8 + 0.2 * measured, measured)
        if values:
            row = (
                conn.execute(
                    steps.update().where(steps.c.id == step_id).values(values).returning(*_STATE_COLUMNS)
                )
                .mappings()
                .one()
            )
            changes += _derive(conn, row)
    moves.tasks.clear()
    moves.frames_done.clear()
    moves.frames_total.clear()
    moves.task_s.clear()
    moves.job_ids |= {change.job_id for change in changes}
    return changes


def derive_steps(conn: sa.Connection, step_ids: list[str], moves: Moves) -> list[Change]:
    """Derive the states of these steps again, where something other than a count has changed."""
    changes = []
    for step_id in sorted(step_ids):
        query = sa.select(*_STATE_COLUMNS).where(steps.c.id == step_id)
        row = conn.execute(lock(conn, query)).mappings().one()
        changes += _derive(conn, row)
    moves.job_ids |= {change.job_id for change in changes}
    return changes


def apply_to_jobs(conn: sa.Connection, moves: Moves) -> list[Change]:
    """Derive the states of the jobs whose steps have changed, and say which jobs did."""
    changes = []
    for job_id in sorted(moves.job_ids):
        # the job is locked before its steps are read: of two transactions that each end a step, the second
        # sees what the first did
        query = sa.select(jobs.c.state, jobs.c.started_at).where(jobs.c.id == job_id)
        row = conn.execute(lock(conn, query)).one()
        states = Counter(conn.scalars(sa.select(steps.c.state).where(steps.c.job_id == job_id)))
        new = derive_job_state(states)
        if new != row.state:
            values = _times(new, row.started_at)
            conn.execute(jobs.update().where(jobs.c.id == job_id).values(state=new, **values))
            events.emit(conn, "job.state", job_id=job_id, data={"state": new, "was": row.state})
            changes.append(Change(job_id, job_id, GroupState(row.state), new))
    moves.job_ids.clear()
    return changes


def derive_job_state(states: Mapping[str, int]) -> GroupState:
    """State of a job whose steps have these states; the same rule as for tasks in a step."""
    waiting, running = states.get(GroupState.WAITING, 0), states.get(GroupState.RUNNING, 0)
    ended = {s: states.get(s, 0) for s in (GroupState.FAILED, GroupState.CANCELLED, GroupState.DONE)}
    if waiting or running:
        return GroupState.RUNNING if running or any(ended.values()) else GroupState.WAITING
    for state in (GroupState.FAILED, GroupState.CANCELLED):
        if ended[state]:
            return state
    return GroupState.DONE


_STATE_COLUMNS = [
    steps.c.id, steps.c.job_id, steps.c.name, steps.c.state, steps.c.deferred, steps.c.deferred_on,
    steps.c.started_at, *(steps.c[name] for name in STEP_COUNTERS),
]  # fmt: skip


def _derive(conn: sa.Connection, row: RowMapping) -> list[Change]:
    """Set the state of a step, and of the deferred steps that wait for it."""
    if row["deferred"]:
        # it has no tasks: it shares the fate of the step that it waits for, unless the job is cancelled
        cause = conn.scalar(sa.select(steps.c.state).where(steps.c.id == row["deferred_on"]))
        cancelled = conn.scalar(sa.select(jobs.c.cancel_requested).where(jobs.c.id == row["job_id"]))
        if cancelled and cause in (GroupState.DONE, GroupState.CANCELLED):
            new = GroupState.CANCELLED
        else:
            new = GroupState(cause) if cause in (GroupState.FAILED, GroupState.CANCELLED) else _WAITING
    else:
        new = derive_state({state: row[f"n_{state}"] for state in TaskState})
    old = GroupState(row["state"])
    if new == old:
        return []
    conn.execute(
        steps.update().where(steps.c.id == row["id"]).values(state=new, **_times(new, row["started_at"]))
    )
    counts = {name[2:]: row[name] for name in STEP_COUNTERS if row[name]}
    data = {"name": row["name"], "state": new, "was": old, "tasks": counts}
    events.emit(conn, "step.state", job_id=row["job_id"], step_id=row["id"], data=data)
    changes = [Change(row["id"], row["job_id"], old, new)]
    waiting = sa.select(*_STATE_COLUMNS).where(
        steps.c.job_id == row["job_id"], steps.c.deferred_on == row["id"], steps.c.deferred
    )
    for follower in conn.execute(lock(conn, waiting.order_by(steps.c.id))).mappings().all():
        changes += _derive(conn, follower)
    return changes


_WAITING = GroupState.WAITING
_ENDED = (GroupState.DONE, GroupState.FAILED, GroupState.CANCELLED)


def _times(new: GroupState, started_at: float | None) -> dict[str, Any]:
    values: dict[str, Any] = {"finished_at": db_now() if new in _ENDED else None}
    if started_at is None and new != GroupState.WAITING:
        values["started_at"] = db_now()
    return values
