"""What people ask of a job: cancel, pause, resume, retry, another priority, delete."""

from __future__ import annotations

import sqlalchemy as sa

from farm import events, ledger
from farm.db.connect import db_now
from farm.db.tables import attempts, buffers, job_dependencies, jobs, steps, tasks
from farm.errors import Conflict, InvalidInput
from farm.lifecycle.counters import Change, Moves, apply_to_steps, derive_steps
from farm.lifecycle.job_rows import change_job, read_job, step_ids
from farm.lifecycle.locks import lock_job
from farm.lifecycle.release import promote, settle
from farm.lifecycle.slot_rows import idle_slots, lock_slots
from farm.lifecycle.takes import retake, set_current_take
from farm.states import GroupState, TaskState

__all__ = [
    "cancel_job", "delete_job", "park_task", "pause_job", "resume_job", "retake", "retry_job",
    "set_current_take", "set_priority",
]  # fmt: skip

_ENDED = (GroupState.DONE, GroupState.FAILED, GroupState.CANCELLED)


def cancel_job(conn: sa.Connection, job_id: str, *, version: int | None = None) -> None:
    """Cancel a job: what has not begun is cancelled at once, what runs is asked to stop.

    Again is fine. Raises :class:`farm.errors.Conflict` for a job that has ended otherwise. In every command,
    ``version`` is that of If-Match; another one raises :class:`farm.errors.PreconditionFailed`.
    """
    # slots come before the job in the order of locks, and only the job knows which they are
    waiting_slots = _dispatched_slots(conn, job_id)
    lock_slots(conn, waiting_slots)
    job = read_job(conn, job_id, version)
    if job["cancel_requested"]:
        return
    if job["state"] in _ENDED:
        raise Conflict(f"job {job_id} is {job['state']}; there is nothing left to cancel")
    change_job(conn, job_id, {"cancel_requested": True}, "cancel")
    moves = Moves()
    for step_id in step_ids(conn, job_id):
        for state in (TaskState.BLOCKED, TaskState.READY, TaskState.DISPATCHED):
            # in this order: a task that is dispatched or claimed meanwhile is met again in its new state
            number = conn.execute(
                tasks.update()
                .where(tasks.c.step_id == step_id, tasks.c.state == state)
                .values(
                    state=TaskState.CANCELLED,
                    finished_at=db_now(),
                    checkpoint=None,
                    dispatched_at=None,
                    slot_id=None,
                )
            ).rowcount
            moves.move(step_id, state, TaskState.CANCELLED, number)
        conn.execute(
            tasks.update()
            .where(tasks.c.step_id == step_id, tasks.c.state == TaskState.RUNNING)
            .values(wish="cancel")
        )
    _release_checkpoints(conn, job_id)
    changes = apply_to_steps(conn, moves)
    changes += _derive_deferred(conn, job_id, moves)
    settle(conn, moves, changes=changes)
    idle_slots(conn, waiting_slots)


def pause_job(conn: sa.Connection, job_id: str, *, version: int | None = None) -> None:
    """Give the job no new slots, and ask what runs to park. Again is fine."""
    job = read_job(conn, job_id, version)
    if job["paused"]:
        return
    if job["state"] in _ENDED:
        raise Conflict(f"job {job_id} is {job['state']}; there is nothing left to pause")
    change_job(conn, job_id, {"paused": True}, "pause")
    _wish(conn, job_id, "park", only=tasks.c.wish.is_(None))


def resume_job(conn: sa.Connection, job_id: str, *, version: int | None = None) -> None:
    """Let a paused job go on, and forget the wish to park of what still runs. Again is fine."""
    job = read_job(conn, job_id, version)
    if not job["paused"]:
        return
    change_job(conn, job_id, {"paused": False}, "resume")
    _wish(conn, job_id, None, only=tasks.c.wish == "park")


def set_priority(conn: sa.Connection, job_id: str, priority: int, *, version: int | None = None) -> None:
    """Change the job's priority, 0 to 100; higher goes first within its project."""
    if not 0 <= priority <= 100:
        raise InvalidInput(f"the priority is {priority}, but must be from 0 to 100")
    job = read_job(conn, job_id, version)
    if job["priority"] != priority:
        change_job(conn, job_id, {"priority": priority}, "priority")


def retry_job(conn: sa.Connection, job_id: str, *, version: int | None = None) -> int:
    """Try the failed tasks again, with a fresh retry budget, and let what they made unreachable wait again.

    Returns how many tasks are ready again. What is done stays done. Jobs that come after this one, and were
    unreachable because of it, wait again as well. Raises :class:`farm.errors.Conflict` when nothing has
    failed, when the job was cancelled, or when a job that it comes after has not succeeded.
    """
    job = read_job(conn, job_id, version)
    if job["cancel_requested"]:
        raise Conflict(f"job {job_id} was cancelled; submit it again")
    counts = conn.execute(
        sa.select(sa.func.sum(steps.c.n_failed), sa.func.sum(steps.c.n_unreachable)).where(
            steps.c.job_id == job_id
        )
    ).one()
    if not (counts[0] or counts[1]):
        raise Conflict(f"job {job_id} has no failed tasks; there is nothing to retry")
    _refuse_unreached(conn, job_id, job["waiting_on"])
    moves = Moves()
    ready = 0
    for step_id in step_ids(conn, job_id):
        number = conn.execute(
            tasks.update()
            .where(tasks.c.step_id == step_id, tasks.c.state == TaskState.FAILED)
            .values(
                state=TaskState.READY,
                epoch=tasks.c.epoch + 1,
                charged=0,
                node_losses=0,
                ready_at=db_now(),
                not_before=None,
                finished_at=None,
                started_at=None,
                error=None,
            )
        ).rowcount
        moves.move(step_id, TaskState.FAILED, TaskState.READY, number)
        ready += number
    change_job(conn, job_id, {"error": None}, "retry")
    _reach_again(conn, job_id, moves)
    changes = apply_to_steps(conn, moves)
    changes += _derive_deferred(conn, job_id, moves)
    settle(conn, moves, changes=changes)
    return ready


def delete_job(conn: sa.Connection, job_id: str, *, version: int | None = None) -> None:
    """Forget a job that has ended, with its tasks, attempts and frames; ``farm gc`` then frees its bytes.

    Raises :class:`farm.errors.Conflict` while it has not ended, or while another job still waits for it.
    """
    job = read_job(conn, job_id, version)
    if job["state"] not in _ENDED:
        raise Conflict(f"job {job_id} is {job['state']}; cancel it first, and delete it when it has ended")
    waiting = conn.scalars(
        sa.select(jobs.c.id)
        .join(job_dependencies, job_dependencies.c.job_id == jobs.c.id)
        .where(
            job_dependencies.c.after_job_id == job_id,
            ~job_dependencies.c.satisfied,
            jobs.c.state.not_in(_ENDED),
        )
    ).all()
    if waiting:
        raise Conflict(
            f"job {job_id} cannot be deleted: job {waiting[0]} comes after it; cancel that one first"
        )
    held = conn.scalars(sa.select(attempts.c.id).where(attempts.c.job_id == job_id)).all()
    ledger.release_of_attempts(conn, held)
    _release_checkpoints(conn, job_id)
    project_id = job["project_id"]
    conn.execute(jobs.delete().where(jobs.c.id == job_id))
    events.emit(conn, "job.deleted", project_id=project_id, job_id=job_id)


def park_task(conn: sa.Connection, task_id: str, epoch: int) -> bool:
    """Ask a running task to park, for the scheduler or the guard; False when it does not run any more."""
    changed = conn.execute(
        tasks.update()
        .where(
            tasks.c.id == task_id,
            tasks.c.epoch == epoch,
            tasks.c.state == TaskState.RUNNING,
            tasks.c.wish.is_(None),
        )
        .values(wish="park")
    )
    return bool(changed.rowcount)


# --- shared ------------------------------------------------------------------------------------------


def _dispatched_slots(conn: sa.Connection, job_id: str) -> set[str]:
    query = (
        sa.select(tasks.c.slot_id)
        .join(steps, steps.c.id == tasks.c.step_id)
        .where(steps.c.job_id == job_id, tasks.c.state == TaskState.DISPATCHED)
        .distinct()
    )
    return {slot_id for slot_id in conn.scalars(query) if slot_id}


def _wish(conn: sa.Connection, job_id: str, wish: str | None, only: sa.ColumnElement[bool]) -> None:
    running = (
        sa.select(tasks.c.id)
        .join(steps, steps.c.id == tasks.c.step_id)
        .where(steps.c.job_id == job_id, tasks.c.state == TaskState.RUNNING)
        .order_by(tasks.c.id)
    )
    if conn.dialect.name == "postgresql":
        running = running.with_for_update(key_share=True, of=tasks)
    ids = conn.scalars(running).all()
    conn.execute(tasks.update().where(tasks.c.id.in_(ids), only).values(wish=wish))


def _derive_deferred(conn: sa.Connection, job_id: str, moves: Moves) -> list[Change]:
    deferred = conn.scalars(
        sa.select(steps.c.id).where(steps.c.job_id == job_id, steps.c.deferred).order_by(steps.c.id)
    ).all()
    return derive_steps(conn, list(deferred), moves)


def _release_checkpoints(conn: sa.Connection, job_id: str) -> None:
    held = conn.scalars(
        sa.select(buffers.c.task_id)
        .join(tasks, tasks.c.id == buffers.c.task_id)
        .join(steps, steps.c.id == tasks.c.step_id)
        .where(
            steps.c.job_id == job_id,
            tasks.c.state != TaskState.RUNNING,
            buffers.c.purpose == ledger.CHECKPOINT,
            buffers.c.state != "released",
        )
    ).all()
    ledger.release_checkpoints(conn, list(held))


def _refuse_unreached(conn: sa.Connection, job_id: str, waiting_on: int) -> None:
    """A job that comes after another one that did not succeed cannot be retried before that one."""
    left = conn.execute(
        sa.select(jobs.c.id, jobs.c.state)
        .join(job_dependencies, job_dependencies.c.after_job_id == jobs.c.id)
        .where(job_dependencies.c.job_id == job_id, ~job_dependencies.c.satisfied)
    ).all()
    for other, state in left:
        if state in (GroupState.FAILED, GroupState.CANCELLED):
            raise Conflict(f"job {job_id} comes after job {other}, which is {state}; retry that one first")
    if len(left) < waiting_on:
        raise Conflict(f"job {job_id} comes after a job that was deleted before it was done; submit it again")


def _reach_again(conn: sa.Connection, job_id: str, moves: Moves) -> None:
    """Unreachable tasks of the job, and of jobs that come after it, wait again."""
    for step_id in step_ids(conn, job_id):
        number = conn.execute(
            tasks.update()
            .where(tasks.c.step_id == step_id, tasks.c.state == TaskState.UNREACHABLE)
            .values(state=TaskState.BLOCKED, finished_at=None, error=None)
        ).rowcount
        moves.move(step_id, TaskState.UNREACHABLE, TaskState.BLOCKED, number)
        promote(conn, step_id, moves)
    later = conn.scalars(
        sa.select(job_dependencies.c.job_id)
        .where(job_dependencies.c.after_job_id == job_id, ~job_dependencies.c.satisfied)
        .order_by(job_dependencies.c.job_id)
    ).all()
    for follower in later:
        lock_job(conn, follower)
        others = conn.scalar(
            sa.select(sa.func.count())
            .select_from(job_dependencies.join(jobs, jobs.c.id == job_dependencies.c.after_job_id))
            .where(
                job_dependencies.c.job_id == follower,
                ~job_dependencies.c.satisfied,
                jobs.c.id != job_id,
                jobs.c.state.in_((GroupState.FAILED, GroupState.CANCELLED)),
            )
        )
        cancelled = conn.scalar(sa.select(jobs.c.cancel_requested).where(jobs.c.id == follower))
        if not others and not cancelled:
            _reach_again(conn, follower, moves)
