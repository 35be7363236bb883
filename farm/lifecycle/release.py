"""What follows when tasks end: others become ready, are made, or can never be reached.

Everything here runs under the job's structure lock (:mod:`farm.lifecycle.locks`). Tasks that follow frame
by frame move first; then steps are counted, in id order, and what waits for whole steps follows; then jobs,
and what waits for them. A dependency counts once: ``satisfied`` keeps a retake from releasing twice.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
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
    cut: Sequence[str] = (),
    changes: list[Change] | None = None,
    expansions: Mapping[str, StepPlan] | None = None,
) -> list[Change]:
    """Follow up moves that a transaction has written, and count them; the changes of step and job states.

    ``done`` are tasks that have just become done; ``cut`` are tasks that have just failed or been cancelled;
    ``changes`` are step changes that were derived already. ``expansions`` holds the plans of deferred steps
    whose cause may be done now.
    """
    release_by_frames(conn, done or [], moves)
    cut_off_by_frames(conn, cut, moves)
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
    query = sa.select(tasks.c.id, tasks.c.step_id, tasks.c.state, tasks.c.waiting_on)
    rows = conn.execute(lock(conn, query.where(tasks.c.id.in_(ids)).order_by(tasks.c.id))).all()
    # read after the tasks are locked: whoever lets a whole step go locks its blocked tasks first
    held_back = dict(
        conn.execute(
            sa.select(steps.c.id, steps.c.waiting_on).where(steps.c.id.in_({row.step_id for row in rows}))
        ).all()
    )
    counted = []
    ready: Counter[str] = Counter()
    for row in rows:
        left = row.waiting_on - waiting[row.id]
        may = row.state == TaskState.BLOCKED and not left and not held_back[row.step_id]
        ready[row.step_id] += may
        counted.append({"id": row.id, "remaining": left, "state": TaskState.READY if may else row.state})
    # joined by id alone: with the step and state in it as well, PostgreSQL may compare each with each
    new = json_rows(conn, "new", {"id": "text", "remaining": "int", "state": "text"}, counted)
    conn.execute(
        tasks.update()
        .values(
            waiting_on=new.c.remaining,
            state=new.c.state,
            ready_at=sa.case(
                (sa.and_(tasks.c.state == TaskState.BLOCKED, new.c.state == TaskState.READY), db_now()),
                else_=tasks.c.ready_at,
            ),
        )
        .where(tasks.c.id == new.c.id)
    )
    for step_id in sorted(ready):
        _moved(conn, step_id, TaskState.BLOCKED, TaskState.READY, ready[step_id], moves)


def cut_off_by_frames(conn: sa.Connection, causes: Sequence[str], moves: Moves) -> None:
    """What waits for one of these failed, cancelled or unreachable tasks becomes unreachable, and so on."""
    while causes:
        edge = task_dependencies.c
        query = sa.select(edge.task_id).where(edge.on_task_id.in_(id_rows(conn, causes))).distinct()
        waiting = conn.scalars(query).all()
        if not waiting:
            return
        name = conn.scalar(
            sa.select(steps.c.name).join(tasks, tasks.c.step_id == steps.c.id).where(tasks.c.id == causes[0])
        )
        # joined by id alone: with steps in it as well, PostgreSQL may compare each with each
        hit = json_rows(conn, "hit", {"id": "text"}, [{"id": task_id} for task_id in waiting])
        rows = conn.execute(
            tasks.update()
            .where(tasks.c.id == hit.c.id, tasks.c.state == TaskState.BLOCKED)
            .values(
                state=TaskState.UNREACHABLE,
                finished_at=db_now(),
                error=f"frames that it needs from step {name!r} failed",
            )
            .returning(tasks.c.id, tasks.c.step_id)
        ).all()
        for step_id, number in sorted(Counter(row.step_id for row in rows).items()):
            _moved(conn, step_id, TaskState.BLOCKED, TaskState.UNREACHABLE, number, moves)
        causes = [row.id for row in rows]


def bad_tasks(conn: sa.Connection, step_id: str) -> list[str]:
    """Failed, cancelled and unreachable tasks of a step, if others follow it frame by frame; else none."""
    edge = step_dependencies.c
    followed = sa.exists().where(edge.on_step_id == step_id, edge.mode == "frames")
    query = sa.select(tasks.c.id).where(tasks.c.step_id == step_id, tasks.c.state.in_(_BAD), followed)
    return list(conn.scalars(query))


# --- whole steps -------------------------------------------------------------------------------------


def promote(conn: sa.Connection, step_id: str, moves: Moves) -> None:
    """Blocked tasks of the step that wait for nothing become ready."""
    if conn.scalar(sa.select(steps.c.waiting_on).where(steps.c.id == step_id)):
        return
    number = conn.execute(
        tasks.update()
        .where(tasks.c.step_id == step_id, tasks.c.state == TaskState.BLOCKED, tasks.c.waiting_on == 0)
        .values(state=TaskState.READY, ready_at=db_now())
    ).rowcount
    _moved(conn, step_id, TaskState.BLOCKED, TaskState.READY, number, moves)


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
            cut_off_by_frames(conn, bad_tasks(conn, follower), moves)


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
                cut_off_by_frames(conn, bad_tasks(conn, cause), moves)
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


def _cut_off(conn: sa.Connection, step_id: str, moves: Moves, error: str) -> int:
    """Every blocked task of the step becomes unreachable; how many."""
    statement = tasks.update().where(tasks.c.step_id == step_id, tasks.c.state == TaskState.BLOCKED)
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
