"""Submission: a plan becomes a job with its steps, tasks and frames, in one transaction and in bulk.

The plan's tasks may be generators; they are read once, and at most a batch of rows is held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.connect import db_now
from farm.db.rows import clean_json, id_rows
from farm.db.tables import (
    contents,
    job_assets,
    job_dependencies,
    jobs,
    projects,
    step_dependencies,
    steps,
    users,
)
from farm.errors import FieldFault, InvalidInput
from farm.frame_index import FrameIndex
from farm.ids import new_id
from farm.lifecycle.counters import Moves
from farm.lifecycle.locks import lock_jobs
from farm.lifecycle.release import cut_off_job, link_followers, settle
from farm.plan import JobPlan, StepPlan
from farm.settings import Settings
from farm.states import GroupState, TaskState
from farm.task_loading import Allowance, TaskLoader

_MAX_PATH = 300
_MAX_LABELS = 64


@dataclass(slots=True)
class Submission:
    """A job as a person asks for it. ``assets`` maps job paths to SHA-256; ``after`` lists job ids."""

    name: str
    kind: str
    project_id: str
    user_id: str
    priority: int = 50
    labels: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    assets: dict[str, str] = field(default_factory=dict)
    after: list[str] = field(default_factory=list)
    paused: bool = False


def submit(conn: sa.Connection, submission: Submission, plan: JobPlan, limits: Settings) -> str:
    """Store a job; its id. Nothing stays when it raises, as the caller's transaction rolls back.

    Raises :class:`farm.errors.InvalidInput` for what cannot be stored, with a pointer for each bad field,
    and :class:`farm.errors.LimitExceeded` for a job of too many tasks or frames.
    """
    _check(submission)
    _check_plan(plan)
    states = _check_references(conn, submission)
    pending = {job_id for job_id, state in states.items() if state != GroupState.DONE}
    job_id = new_id("job")
    _insert_job(conn, job_id, submission, waiting_on=len(pending))
    _insert_steps(conn, job_id, plan, job_waits=bool(pending), limits=limits)
    if states:
        conn.execute(
            job_dependencies.insert(),
            [
                {"job_id": job_id, "after_job_id": other, "satisfied": other not in pending}
                for other in states
            ],
        )
    totals = conn.execute(
        sa.select(sa.func.sum(steps.c.n_ready + steps.c.n_blocked), sa.func.sum(steps.c.frames_total)).where(
            steps.c.job_id == job_id
        )
    ).one()
    events.emit(
        conn,
        "job.submitted",
        project_id=submission.project_id,
        job_id=job_id,
        data={
            "name": submission.name,
            "kind": submission.kind,
            "priority": submission.priority,
            "tasks": totals[0],
            "frames": totals[1],
        },
    )
    failed = [other for other in sorted(pending) if states[other] == GroupState.FAILED]
    if failed:
        moves = Moves()
        cut_off_job(conn, job_id, failed[0], moves)
        settle(conn, moves)
    return job_id


def expand_step(conn: sa.Connection, step: Mapping[str, Any], plan: StepPlan, moves: Moves) -> None:
    """Give a deferred step its tasks; ``step`` is its row, ``moves`` gets the counts.

    Comes from the finishing transaction of the step that it waited for. ``plan`` went through
    :func:`settle_plan` before.
    """
    step_id, job_id = step["id"], step["job_id"]
    conn.execute(steps.update().where(steps.c.id == step_id).values(deferred=False, **_plan_values(plan)))
    upstream = conn.scalars(
        sa.select(step_dependencies.c.on_step_id).where(
            step_dependencies.c.step_id == step_id, step_dependencies.c.mode == "frames"
        )
    ).all()
    index = FrameIndex()
    # limits were checked by settle_plan
    loader = TaskLoader(conn, job_id, Allowance(Settings(), 2**31, 2**31))
    waiting_on = conn.scalar(sa.select(steps.c.waiting_on).where(steps.c.id == step_id))
    loaded = loader.load(
        step_id,
        plan.tasks,
        blocked=bool(waiting_on),
        waits_for=[FrameIndex.read(conn, other) for other in sorted(upstream)],
        index=index,
    )
    loader.flush()
    moves.add(step_id, TaskState.BLOCKED, loaded.blocked)
    moves.add(step_id, TaskState.READY, loaded.ready)
    moves.frames_total[step_id] += loaded.frames
    events.emit(
        conn,
        "step.expanded",
        job_id=job_id,
        step_id=step_id,
        data={"tasks": loaded.blocked + loaded.ready, "frames": loaded.frames},
    )
    link_followers(conn, step_id, index, moves)


def settle_plan(conn: sa.Connection, job_id: str, plan: StepPlan, limits: Settings) -> StepPlan:
    """The plan of a deferred step with its tasks read out and checked, before anything is written.

    Raises :class:`farm.errors.InvalidInput` when it has none or too many, and whatever the kind raises.
    """
    counts = conn.execute(
        sa.select(
            sum((steps.c[f"n_{s}"] for s in TaskState), start=sa.literal(0)), steps.c.frames_total
        ).where(steps.c.job_id == job_id)
    ).all()
    allowance = Allowance.of(limits, sum(row[0] for row in counts), sum(row[1] for row in counts))
    made = []
    for task in plan.tasks:
        allowance.take(len(task.frames) if task.frames is not None else 0)
        made.append(task)
    if not made:
        raise InvalidInput(f"step {plan.name!r} has no tasks")
    return replace(plan, tasks=made)


# --- checks ------------------------------------------------------------------------------------------


def check_asset_path(path: str, pointer: str = "/assets") -> None:
    """Refuse a job path that could point outside the job's assets.

    Raises :class:`farm.errors.InvalidInput`. A job path is relative, has ``/`` between its parts, and no
    empty part, ``.``, ``..``, backslash or control character.
    """
    fault = None
    if not path or len(path) > _MAX_PATH:
        fault = f"must have 1 to {_MAX_PATH} characters"
    elif any(ord(c) < 32 or ord(c) == 127 for c in path) or "\\" in path:
        fault = "must not hold backslashes or control characters"
    elif path.startswith("/") or re.match(r"^[A-Za-z]:", path):
        fault = "must be relative"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        fault = "must not hold '.', '..' or empty parts"
    if fault is not None:
        message = f"the asset path {path[:80]!r} {fault}"
        raise InvalidInput(message, [FieldFault(pointer, message)])


def _check(submission: Submission) -> None:
    faults: list[FieldFault] = []
    if not submission.name.strip() or len(submission.name) > 200:
        faults.append(FieldFault("/name", "a job needs a name of 1 to 200 characters"))
    if not 0 <= submission.priority <= 100:
        faults.append(
            FieldFault("/priority", f"the priority is {submission.priority}, but must be from 0 to 100")
        )
    if len(submission.labels) > _MAX_LABELS:
        faults.append(FieldFault("/labels", f"a job has at most {_MAX_LABELS} labels"))
    for key, value in submission.labels.items():
        if not key or len(key) > 64 or len(str(value)) > 500:
            faults.append(
                FieldFault("/labels", f"label {key[:64]!r}: keys have 1 to 64 characters, values at most 500")
            )
    if len(set(submission.after)) != len(submission.after):
        faults.append(FieldFault("/after", "a job is named twice"))
    for path in submission.assets:
        try:
            check_asset_path(path, f"/assets/{_pointer(path)}")
        except InvalidInput as error:
            faults += error.faults
    _raise(faults)


def _check_plan(plan: JobPlan) -> None:
    """Faults of a kind's ``expand``, told before they reach the database."""
    if not plan.steps:
        raise InvalidInput("the job has no steps")
    seen: dict[str, StepPlan] = {}
    for step in plan.steps:
        if step.name in seen:
            raise InvalidInput(f"the job has two steps called {step.name!r}")
        wanted = [d.step for d in step.depends_on] + ([step.deferred_on] if step.deferred_on else [])
        for name in wanted:
            if name not in seen:
                raise InvalidInput(f"step {step.name!r} depends on {name!r}, which is not a step before it")
        if len({d.step for d in step.depends_on}) != len(step.depends_on):
            raise InvalidInput(f"step {step.name!r} depends on one step twice")
        if step.deferred != (step.deferred_on is not None):
            raise InvalidInput(f"step {step.name!r} is deferred, so it must name the step that it waits for")
        if step.max_retries < 0:
            raise InvalidInput(f"step {step.name!r} has {step.max_retries} retries, but must have 0 or more")
        seen[step.name] = step


def _check_references(conn: sa.Connection, submission: Submission) -> dict[str, GroupState]:
    """Look up what the submission names; the states of the jobs that it comes after."""
    faults: list[FieldFault] = []
    if not conn.scalar(sa.select(projects.c.id).where(projects.c.id == submission.project_id)):
        faults.append(FieldFault("/project", f"there is no project {submission.project_id!r}"))
    if not conn.scalar(sa.select(users.c.id).where(users.c.id == submission.user_id)):
        faults.append(FieldFault("/user", f"there is no user {submission.user_id!r}"))
    known = set(
        conn.scalars(
            sa.select(contents.c.sha256).where(
                contents.c.sha256.in_(id_rows(conn, set(submission.assets.values())))
            )
        )
    )
    for path, sha256 in submission.assets.items():
        if sha256 not in known:
            message = f"asset {path!r}: the store has no content {sha256[:80]!r}; upload it first"
            faults.append(FieldFault(f"/assets/{_pointer(path)}", message))
    # a job that ends meanwhile must see this one: it waits until this transaction is over
    lock_jobs(conn, set(submission.after))
    found = {
        job_id: GroupState(state)
        for job_id, state in conn.execute(
            sa.select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(submission.after))
        )
    }
    for index, job_id in enumerate(submission.after):
        if job_id not in found:
            faults.append(FieldFault(f"/after/{index}", f"there is no job {job_id!r}"))
        elif found[job_id] == GroupState.CANCELLED:
            faults.append(
                FieldFault(f"/after/{index}", f"job {job_id} was cancelled, so it will never be done")
            )
    _raise(faults)
    return found


def _raise(faults: Sequence[FieldFault]) -> None:
    if faults:
        text = "; ".join(f"{fault.pointer}: {fault.message}" for fault in faults[:5])
        raise InvalidInput(text, list(faults))


def _pointer(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


# --- rows --------------------------------------------------------------------------------------------


def _insert_job(conn: sa.Connection, job_id: str, submission: Submission, *, waiting_on: int) -> None:
    conn.execute(
        jobs.insert().values(
            id=job_id,
            name=clean_json(submission.name),
            kind=submission.kind,
            project_id=submission.project_id,
            user_id=submission.user_id,
            priority=submission.priority,
            labels=clean_json(submission.labels),
            spec=clean_json(submission.spec),
            state=GroupState.WAITING,
            paused=submission.paused,
            waiting_on=waiting_on,
            created_at=db_now(),
        )
    )
    if submission.assets:
        conn.execute(
            job_assets.insert(),
            [
                {"job_id": job_id, "path": path, "sha256": sha256}
                for path, sha256 in sorted(submission.assets.items())
            ],
        )


def _insert_steps(
    conn: sa.Connection, job_id: str, plan: JobPlan, *, job_waits: bool, limits: Settings
) -> None:
    # ids sort like positions: steps are locked in id order, and a step follows those that it depends on
    ids = dict(zip((s.name for s in plan.steps), sorted(new_id("step") for _ in plan.steps), strict=True))
    by_name = {step.name: step for step in plan.steps}
    needed = {d.step for step in plan.steps for d in step.depends_on if d.mode == "frames"}
    indexes: dict[str, FrameIndex] = {}
    loader = TaskLoader(conn, job_id, Allowance.of(limits))
    for position, step in enumerate(plan.steps):
        counted = [d for d in step.depends_on if d.mode == "whole" or by_name[d.step].deferred]
        waiting_on = len(counted) + job_waits
        conn.execute(
            steps.insert().values(
                id=ids[step.name],
                job_id=job_id,
                position=position,
                name=step.name,
                state=GroupState.WAITING,
                deferred=step.deferred,
                deferred_on=ids[step.deferred_on] if step.deferred_on else None,
                waiting_on=waiting_on,
                **_plan_values(step),
            )
        )
        if step.depends_on:
            conn.execute(
                step_dependencies.insert(),
                [
                    {"step_id": ids[step.name], "on_step_id": ids[d.step], "mode": d.mode}
                    for d in step.depends_on
                ],
            )
        if step.deferred:
            continue
        index = FrameIndex() if step.name in needed else None
        loaded = loader.load(
            ids[step.name],
            step.tasks,
            blocked=waiting_on > 0,
            waits_for=[indexes[d.step] for d in step.depends_on if d.mode == "frames" and d.step in indexes],
            index=index,
        )
        loader.flush()
        if index is not None:
            indexes[step.name] = index
        if not loaded.blocked + loaded.ready:
            raise InvalidInput(f"step {step.name!r} has no tasks")
        conn.execute(
            steps.update()
            .where(steps.c.id == ids[step.name])
            .values(n_blocked=loaded.blocked, n_ready=loaded.ready, frames_total=loaded.frames)
        )


def _plan_values(plan: StepPlan) -> dict[str, Any]:
    return {
        "engine": plan.engine,
        "pool": plan.pool,
        "payload": clean_json(dict(plan.payload)),
        "outputs": clean_json([asdict(output) for output in plan.outputs]),
        "requires": clean_json(dict(plan.requires)),
        "warm_key": plan.warm_key,
        "max_retries": plan.max_retries,
        "timeout_s": plan.timeout_s,
        "no_progress_s": plan.no_progress_s,
    }
