"""What follows when tasks end: others become ready, are made, or can never be reached.

Everything here runs under the job's structure lock (:mod:`farm.lifecycle.locks`). Tasks that follow frame
by frame move first; then steps are counted, in id order, and what waits for whole steps follows; then jobs,
and what waits for them. A dependency counts once: ``satisfied`` keeps a retake from releasing twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.bulk import BulkRows
from farm.db.connect import db_now
from farm.db.rows import id_rows, json_rows, lock
from farm.db.tables import job_dependencies, jobs, step_dependencies, steps, task_dependencies, tasks
from farm.frame_index import FrameIndex
from farm.frame_range import FrameRange
from farm.lifecycle.counters import Change, Moves, apply_to_jobs, apply_to_steps
from farm.lifecycle.locks import lock_job
from farm.plan import StepPlan
from farm.states import GroupState, TaskState

_BAD = (TaskState.FAILED, TaskState.UNREACHABLE, TaskState.CANCELLED)


def settle(
    conn: sa.Connection,
    moves: Moves,
    *,
    done: list[str] | None = None,
    cut: set[str] | None = None,
    changes: list[Change] | None = None,
    expansions: Mapping[str, StepPlan] | None = None,
) -> list[Change]:
    """Follow up moves that a transaction has written, and count them; the changes of step and job states.

    ``done`` are tasks that have just become done; ``cut`` are steps in which tasks have just failed, been
    cancelled or become unreachable; ``changes`` are step changes that were derived already. ``expansions``
    holds the plans of deferred steps whose cause may be done now.
    """
    release_by_frames(conn, done or [], moves)
    for step_id in sorted(cut or ()):
        cut_off_by_frames(conn, step_id, moves)
    found: list[Change] = []
    queue = list(changes or [])
    while True:
        queue = _settle_steps(conn, moves, queue, expansions or {}, found)
        jobs_changed = apply_to_jobs(conn, moves)
        found += jobs_changed
        for change in jobs_changed:
            if change.new == GroupState.DONE:
                _release_jobs(conn, change.id, moves)
            elif change.new in (GroupState.FAILED, GroupState.CANCELLED):
                _cut_off_jobs(conn, change.id, moves)
        if not moves.step_ids():
            return found


def _settle_steps(
    conn: sa.Connection,
    moves: Moves,
    queue: list[Change],
    expansions: Mapping[str, StepPlan],
    found: list[Change],
) -> list[Change]:
    """Count, and follow each changed step to those that wait for it, in id order, until nothing changes."""
    heap = [(change.id, index, change) for index, change in enumerate(queue)]
    heapq.heapify(heap)
    serial = len(heap)
    while True:
        for change in apply_to_steps(conn, moves):
            serial += 1
            heapq.heappush(heap, (change.id, serial, change))
        if not heap:
            return []
        change = heapq.heappop(heap)[2]
        found.append(change)
        if change.new == GroupState.DONE:
            _expand(conn, change.id, expansions, moves)
            _release_whole(conn, change.id, moves)
        elif change.new in (GroupState.FAILED, GroupState.CANCELLED):
            cut_off_whole(conn, change.id, moves)


# --- frame by frame ----------------------------------------------------------------------------------


def release_by_frames(conn: sa.Connection, done: list[str], moves: Moves) -> None:
    """Count down what waits for these done tasks; what waits for nothing any more becomes ready."""
    if not done:
        return
    waiting: dict[str, int] = dict(
        conn.execute(
            sa.select(task_dependencies.c.task_id, sa.func.count())
            .where(task_dependencies.c.on_task_id.in_(id_rows(conn, done)))
            .group_by(task_dependencies.c.task_id)
        ).all()
    )
    if not waiting:
        return
    ids = id_rows(conn, waiting)
    rows = conn.execute(
        lock(conn, sa.select(tasks.c.id, tasks.c.step_id).where(tasks.c.id.in_(ids)).order_by(tasks.c.id))
    ).all()
    counted = [{"id": task_id, "number": number} for task_id, number in waiting.items()]
    counts = json_rows(conn, "counts", {"id": "text", "number": "int"}, counted)
    conn.execute(
        tasks.update()
        .values(waiting_on=tasks.c.waiting_on - counts.c.number)
        .where(tasks.c.id == counts.c.id)
    )
    for step_id in sorted({row.step_id for row in rows}):
        promote(conn, step_id, moves, only=[row.id for row in rows if row.step_id == step_id])


def cut_off_by_frames(conn: sa.Connection, step_id: str, moves: Moves) -> None:
    """Tasks that wait for a failed, cancelled or unreachable task of this step become unreachable."""
    followers = conn.execute(
        sa.select(step_dependencies.c.step_id, steps.c.name)
        .join(steps, steps.c.id == step_dependencies.c.on_step_id)
        .where(step_dependencies.c.on_step_id == step_id, step_dependencies.c.mode == "frames")
        .order_by(step_dependencies.c.step_id)
    ).all()
    for follower, name in followers:
        cause = tasks.alias()
        hit = (
            sa.select(task_dependencies.c.task_id)
            .join(cause, cause.c.id == task_dependencies.c.on_task_id)
            .where(cause.c.step_id == step_id, cause.c.state.in_(_BAD))
        )
        if _cut_off(conn, follower, moves, f"frames that it needs from step {name!r} failed", hit):
            cut_off_by_frames(conn, follower, moves)


# --- whole steps -------------------------------------------------------------------------------------


def promote(conn: sa.Connection, step_id: str, moves: Moves, *, only: list[str] | None = None) -> int:
    """Blocked tasks of the step that wait for nothing become ready; how many."""
    waiting_on = conn.scalar(sa.select(steps.c.waiting_on).where(steps.c.id == step_id))
    if waiting_on:
        return 0
    statement = tasks.update().where(
        tasks.c.step_id == step_id, tasks.c.state == TaskState.BLOCKED, tasks.c.waiting_on == 0
    )
    if only is not None:
        statement = statement.where(tasks.c.id.in_(id_rows(conn, only)))
    number = conn.execute(statement.values(state=TaskState.READY, ready_at=db_now())).rowcount
    _moved(conn, step_id, TaskState.BLOCKED, TaskState.READY, number, moves)
    return number


def unblock_step(conn: sa.Connection, step_id: str, moves: Moves) -> None:
    """One thing less that the whole step waits for; its tasks become ready when it was the last."""
    # blocked tasks are locked before the step, like everywhere else
    blocked = (
        sa.select(tasks.c.id)
        .where(tasks.c.step_id == step_id, tasks.c.state == TaskState.BLOCKED)
        .order_by(tasks.c.id)
    )
    if conn.dialect.name == "postgresql":
        conn.execute(sa.select(sa.func.count()).select_from(lock(conn, blocked).subquery()))
    conn.execute(steps.update().where(steps.c.id == step_id).values(waiting_on=steps.c.waiting_on - 1))
    promote(conn, step_id, moves)


def cut_off_whole(conn: sa.Connection, step_id: str, moves: Moves) -> None:
    """The step has failed or was cancelled: whatever waits for all of it becomes unreachable."""
    followers = conn.execute(
        sa.select(step_dependencies.c.step_id, steps.c.name)
        .join(steps, steps.c.id == step_dependencies.c.on_step_id)
        .where(
            step_dependencies.c.on_step_id == step_id,
            ~step_dependencies.c.satisfied,
            # frame by frame, but the step never got any tasks to depend on
            sa.or_(step_dependencies.c.mode == "whole", steps.c.deferred),
        )
        .order_by(step_dependencies.c.step_id)
    ).all()
    for follower, name in followers:
        if _cut_off(conn, follower, moves, f"step {name!r}, which it depends on, did not succeed"):
            cut_off_by_frames(conn, follower, moves)


def _release_whole(conn: sa.Connection, step_id: str, moves: Moves) -> None:
    edge = step_dependencies.c
    followers = conn.scalars(
        step_dependencies.update()
        .where(edge.on_step_id == step_id, edge.mode == "whole", ~edge.satisfied)
        .values(satisfied=True)
        .returning(edge.step_id)
    ).all()
    for follower in sorted(followers):
        unblock_step(conn, follower, moves)


def _expand(conn: sa.Connection, step_id: str, expansions: Mapping[str, StepPlan], moves: Moves) -> None:
    from farm.submission import expand_step

    waiting = (
        conn.execute(
            sa.select(steps).where(steps.c.deferred_on == step_id, steps.c.deferred).order_by(steps.c.id)
        )
        .mappings()
        .all()
    )
    for row in waiting:
        if row["id"] not in expansions:
            continue
        expand_step(conn, dict(row), expansions[row["id"]], moves)
        # what failed before these tasks existed has not told them yet
        for cause, mode, state in conn.execute(
            sa.select(steps.c.id, step_dependencies.c.mode, steps.c.state)
            .join(step_dependencies, step_dependencies.c.on_step_id == steps.c.id)
            .where(step_dependencies.c.step_id == row["id"])
        ).all():
            if mode == "frames":
                cut_off_by_frames(conn, cause, moves)
            if state in (GroupState.FAILED, GroupState.CANCELLED):
                cut_off_whole(conn, cause, moves)


def link_followers(conn: sa.Connection, step_id: str, index: FrameIndex, moves: Moves) -> None:
    """Tasks of other steps that follow this one frame by frame now have something to wait for.

    They waited for the whole step while it was deferred.
    """
    edge = step_dependencies.c
    followers = conn.scalars(
        step_dependencies.update()
        .where(edge.on_step_id == step_id, edge.mode == "frames", ~edge.satisfied)
        .values(satisfied=True)
        .returning(edge.step_id)
    ).all()
    for follower in sorted(followers):
        edges = BulkRows(conn, task_dependencies, ("task_id", "on_task_id"))
        waiting: list[dict[str, Any]] = []
        for task_id, frames in conn.execute(
            sa.select(tasks.c.id, tasks.c.frames).where(tasks.c.step_id == follower)
        ).all():
            needed = list(index.needed(FrameRange.parse(frames) if frames else None))
            waiting.append({"id": task_id, "number": len(needed)})
            for on_task_id in needed:
                edges.add((task_id, on_task_id))
        edges.flush()
        counts = json_rows(conn, "counts", {"id": "text", "number": "int"}, waiting)
        conn.execute(
            tasks.update()
            .values(waiting_on=tasks.c.waiting_on + counts.c.number)
            .where(tasks.c.id == counts.c.id)
        )
        unblock_step(conn, follower, moves)


# --- whole jobs --------------------------------------------------------------------------------------


def _release_jobs(conn: sa.Connection, job_id: str, moves: Moves) -> None:
    edge = job_dependencies.c
    followers = conn.scalars(
        job_dependencies.update()
        .where(edge.after_job_id == job_id, ~edge.satisfied)
        .values(satisfied=True)
        .returning(edge.job_id)
    ).all()
    for follower in sorted(followers):
        lock_job(conn, follower)
        left = conn.scalar(
            jobs.update()
            .where(jobs.c.id == follower)
            .values(waiting_on=jobs.c.waiting_on - 1)
            .returning(jobs.c.waiting_on)
        )
        if left == 0:
            unblock_job(conn, follower, moves)


def unblock_job(conn: sa.Connection, job_id: str, moves: Moves) -> None:
    """The job waits for no other job any more: that was one thing that each of its steps waited for."""
    for step_id in conn.scalars(sa.select(steps.c.id).where(steps.c.job_id == job_id).order_by(steps.c.id)):
        unblock_step(conn, step_id, moves)


def _cut_off_jobs(conn: sa.Connection, job_id: str, moves: Moves) -> None:
    edge = job_dependencies.c
    followers = conn.scalars(
        sa.select(edge.job_id).where(edge.after_job_id == job_id, ~edge.satisfied).order_by(edge.job_id)
    ).all()
    for follower in followers:
        lock_job(conn, follower)
        cut_off_job(conn, follower, job_id, moves)


def cut_off_job(conn: sa.Connection, job_id: str, cause: str, moves: Moves) -> None:
    """Every task of the job becomes unreachable: a job that it comes after did not succeed."""
    for step_id in conn.scalars(sa.select(steps.c.id).where(steps.c.job_id == job_id).order_by(steps.c.id)):
        _cut_off(conn, step_id, moves, f"job {cause}, which this job comes after, did not succeed")


# --- shared ------------------------------------------------------------------------------------------


def _cut_off(
    conn: sa.Connection, step_id: str, moves: Moves, error: str, which: sa.Select[Any] | None = None
) -> int:
    statement = tasks.update().where(tasks.c.step_id == step_id, tasks.c.state == TaskState.BLOCKED)
    if which is not None:
        statement = statement.where(tasks.c.id.in_(which))
    number = conn.execute(
        statement.values(state=TaskState.UNREACHABLE, finished_at=db_now(), error=error)
    ).rowcount
    _moved(conn, step_id, TaskState.BLOCKED, TaskState.UNREACHABLE, number, moves)
    return number


def _moved(
    conn: sa.Connection, step_id: str, source: TaskState, target: TaskState, number: int, moves: Moves
) -> None:
    """Count a move of many tasks, and say so in one event."""
    if not number:
        return
    moves.move(step_id, source, target, number)
    job_id = conn.scalar(sa.select(steps.c.job_id).where(steps.c.id == step_id))
    events.emit(
        conn, "task.state", job_id=job_id, step_id=step_id, data={"moved": [[source, target, number]]}
    )
