"""What must hold after every transaction, as queries: :func:`check_invariants` names each fault it finds."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa

from farm import ledger
from farm.db.tables import (
    STEP_COUNTERS,
    attempts,
    frame_files,
    frames,
    job_dependencies,
    jobs,
    slots,
    step_dependencies,
    steps,
    task_dependencies,
    tasks,
)
from farm.frame_range import FrameRange
from farm.lifecycle.counters import derive_job_state
from farm.states import GroupState, TaskState, derive_state


def check_invariants(conn: sa.Connection) -> list[str]:
    """Every fault found, in words; an empty list when all is well. Reads whole tables: for tests."""
    return [
        *_counters(conn),
        *_job_states(conn),
        *_waiting(conn),
        *_attempts(conn),
        *_slots(conn),
        *_frames(conn),
        *(
            f"budget of {d.medium} on {d.node_id}: {d.reserved_bytes} reserved, {d.live_bytes} live"
            for d in ledger.check_budgets(conn)
        ),
    ]


def _counters(conn: sa.Connection) -> Iterator[str]:
    counted: dict[str, dict[str, int]] = {}
    for step_id, state, number in conn.execute(
        sa.select(tasks.c.step_id, tasks.c.state, sa.func.count()).group_by(tasks.c.step_id, tasks.c.state)
    ):
        counted.setdefault(step_id, {})[state] = number
    made: dict[str, tuple[int, int]] = {
        step_id: (total, done)
        for step_id, total, done in conn.execute(
            sa.select(
                frames.c.step_id,
                sa.func.count(),
                sa.func.sum(sa.case((frames.c.state == "published", 1), else_=0)),
            ).group_by(frames.c.step_id)
        )
    }
    for step in conn.execute(sa.select(steps)).mappings():
        actual = counted.get(step["id"], {})
        for name in STEP_COUNTERS:
            if step[name] != actual.get(name[2:], 0):
                yield f"step {step['id']}: {name} is {step[name]}, counted {actual.get(name[2:], 0)}"
        if (step["frames_total"], step["frames_done"]) != made.get(step["id"], (0, 0)):
            yield f"step {step['id']}: frames {step['frames_done']}/{step['frames_total']}, counted {made}"
        if not step["deferred"]:
            derived = derive_state({TaskState(state): number for state, number in actual.items()})
            if step["state"] != derived:
                yield f"step {step['id']}: state is {step['state']}, derived {derived}"


def _job_states(conn: sa.Connection) -> Iterator[str]:
    states: dict[str, dict[str, int]] = {}
    for job_id, state, number in conn.execute(
        sa.select(steps.c.job_id, steps.c.state, sa.func.count()).group_by(steps.c.job_id, steps.c.state)
    ):
        states.setdefault(job_id, {})[state] = number
    for job_id, state in conn.execute(sa.select(jobs.c.id, jobs.c.state)):
        derived = derive_job_state(states.get(job_id, {}))
        if state != derived:
            yield f"job {job_id}: state is {state}, derived {derived}"
    unpublished = (
        sa.select(frames.c.job_id)
        .join(jobs, jobs.c.id == frames.c.job_id)
        .where(jobs.c.state == GroupState.DONE, frames.c.state != "published")
        .distinct()
    )
    for job_id in conn.scalars(unpublished):
        yield f"job {job_id} is done, but has frames that are not published"


def _waiting(conn: sa.Connection) -> Iterator[str]:
    cause = tasks.alias()
    undone = (
        sa.select(sa.func.count())
        .select_from(task_dependencies.join(cause, cause.c.id == task_dependencies.c.on_task_id))
        .where(task_dependencies.c.task_id == tasks.c.id, cause.c.state != TaskState.DONE)
        .scalar_subquery()
    )
    for task_id, waiting_on, found in conn.execute(
        sa.select(tasks.c.id, tasks.c.waiting_on, undone).where(tasks.c.waiting_on != undone)
    ):
        yield f"task {task_id} waits for {waiting_on} tasks, counted {found}"
    on = steps.alias()
    counted = (
        sa.select(sa.func.count())
        .select_from(step_dependencies.join(on, on.c.id == step_dependencies.c.on_step_id))
        .where(
            step_dependencies.c.step_id == steps.c.id,
            ~step_dependencies.c.satisfied,
            sa.or_(step_dependencies.c.mode == "whole", on.c.deferred),
        )
        .scalar_subquery()
    )
    job_waits = sa.case((jobs.c.waiting_on > 0, 1), else_=0)
    for step_id, waiting_on, found in conn.execute(
        sa.select(steps.c.id, steps.c.waiting_on, counted + job_waits)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(steps.c.waiting_on != counted + job_waits)
    ):
        yield f"step {step_id} waits for {waiting_on} things, counted {found}"
    unsatisfied = (
        sa.select(sa.func.count())
        .where(job_dependencies.c.job_id == jobs.c.id, ~job_dependencies.c.satisfied)
        .scalar_subquery()
    )
    for job_id, state, waiting_on, found in conn.execute(
        sa.select(jobs.c.id, jobs.c.state, jobs.c.waiting_on, unsatisfied).where(
            jobs.c.waiting_on != unsatisfied
        )
    ):
        # a job that it came after may have been deleted; then it can only stay as it ended
        if waiting_on < found or state not in (GroupState.FAILED, GroupState.CANCELLED):
            yield f"job {job_id} waits for {waiting_on} jobs, counted {found}"
    begun = (TaskState.READY, TaskState.DISPATCHED, TaskState.RUNNING, TaskState.DONE)
    for task_id, state in conn.execute(
        sa.select(tasks.c.id, tasks.c.state)
        .join(steps, steps.c.id == tasks.c.step_id)
        .where(tasks.c.state.in_(begun), sa.or_(tasks.c.waiting_on > 0, steps.c.waiting_on > 0))
    ):
        yield f"task {task_id} is {state}, but still waits for something"
    for task_id in conn.scalars(
        sa.select(tasks.c.id)
        .join(steps, steps.c.id == tasks.c.step_id)
        .where(tasks.c.state == TaskState.BLOCKED, tasks.c.waiting_on == 0, steps.c.waiting_on == 0)
    ):
        yield f"task {task_id} is blocked, but waits for nothing"


def _attempts(conn: sa.Connection) -> Iterator[str]:
    open_attempts = (
        sa.select(sa.func.count())
        .where(
            attempts.c.task_id == tasks.c.id,
            attempts.c.epoch == tasks.c.epoch,
            attempts.c.ended_at.is_(None),
        )
        .scalar_subquery()
    )
    for task_id, state, number in conn.execute(sa.select(tasks.c.id, tasks.c.state, open_attempts)):
        if number != (1 if state == TaskState.RUNNING else 0):
            yield f"task {task_id} is {state} and has {number} open attempts under its epoch"
    for task_id, number in conn.execute(
        sa.select(attempts.c.task_id, sa.func.count())
        .where(attempts.c.state == "done")
        .group_by(attempts.c.task_id)
        .having(sa.func.count() > 1)
    ):
        yield f"task {task_id} has {number} attempts that count as done"
    for task_id in conn.scalars(
        sa.select(tasks.c.id).where(
            tasks.c.state == TaskState.DONE,
            ~sa.exists().where(attempts.c.task_id == tasks.c.id, attempts.c.state == "done"),
        )
    ):
        yield f"task {task_id} is done, but no attempt of it is"


def _slots(conn: sa.Connection) -> Iterator[str]:
    busy = (TaskState.DISPATCHED, TaskState.RUNNING)
    for task_id, state in conn.execute(
        sa.select(tasks.c.id, tasks.c.state).where(tasks.c.state.in_(busy), tasks.c.slot_id.is_(None))
    ):
        yield f"task {task_id} is {state}, but has no slot"
    for task_id, state in conn.execute(
        sa.select(tasks.c.id, tasks.c.state).where(tasks.c.state.not_in(busy), tasks.c.slot_id.is_not(None))
    ):
        yield f"task {task_id} is {state}, but has a slot"
    held = sa.exists().where(tasks.c.slot_id == slots.c.id, tasks.c.state.in_(busy))
    for slot_id in conn.scalars(sa.select(slots.c.id).where(slots.c.state == "idle", held)):
        yield f"slot {slot_id} is idle, but holds a task"
    for slot_id in conn.scalars(sa.select(slots.c.id).where(slots.c.state == "busy", ~held)):
        yield f"slot {slot_id} is busy, but holds no task"
    tickets: dict[str, set[tuple[str, float]]] = {}
    for slot_id, step_id, at in conn.execute(
        sa.select(tasks.c.slot_id, tasks.c.step_id, tasks.c.dispatched_at).where(tasks.c.state.in_(busy))
    ):
        tickets.setdefault(slot_id, set()).add((step_id, at))
    for slot_id, found in tickets.items():
        if len(found) > 1:
            yield f"slot {slot_id} holds tasks of {len(found)} tickets"


def _frames(conn: sa.Connection) -> Iterator[str]:
    owned: dict[str, set[int]] = {}
    for task_id, number in conn.execute(sa.select(frames.c.task_id, frames.c.number)):
        owned.setdefault(task_id, set()).add(number)
    for task_id, text in conn.execute(sa.select(tasks.c.id, tasks.c.frames)):
        own = owned.pop(task_id, set())
        if own != set(FrameRange.parse(text) if text else ()):
            yield f"task {task_id} makes frames {text}, but has rows of {FrameRange.of(own)}"
    for task_id, own in owned.items():
        yield f"frames {FrameRange.of(own)} belong to task {task_id}, which is not there"
    same = sa.and_(
        frame_files.c.step_id == frames.c.step_id,
        frame_files.c.take == frames.c.take,
        frame_files.c.number == frames.c.number,
    )
    for step_id, number in conn.execute(
        sa.select(frames.c.step_id, frames.c.number).where(
            frames.c.state == "published", ~sa.exists().where(same)
        )
    ):
        yield f"frame {number} of step {step_id} is published, but has no file"
    for step_id, number in conn.execute(
        sa.select(frames.c.step_id, frames.c.number).where(
            frames.c.state == "pending", sa.exists().where(same)
        )
    ):
        yield f"frame {number} of step {step_id} is pending, but has a file"
    for step_id, number, current in conn.execute(
        sa.select(
            frames.c.step_id,
            frames.c.number,
            sa.func.sum(sa.case((frames.c.is_current, 1), else_=0)),
        )
        .group_by(frames.c.step_id, frames.c.number)
        .having(sa.func.sum(sa.case((frames.c.is_current, 1), else_=0)) != 1)
    ):
        yield f"frame {number} of step {step_id} has {current} current takes"
    for task_id in conn.scalars(
        sa.select(frames.c.task_id)
        .join(tasks, tasks.c.id == frames.c.task_id)
        .where(tasks.c.state == TaskState.DONE, frames.c.state != "published")
        .distinct()
    ):
        yield f"task {task_id} is done, but has frames that are not published"
