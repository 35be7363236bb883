"""Why a job or a task waits, in words and as data: what ``farm why ID`` says.

Looks at everything that can hold work back: dependencies, pause, back-off, pools, caps, quota, slots that
do not fit, are busy, held by the guard or away, and byte budgets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from farm import failures
from farm.db.connect import db_now
from farm.db.tables import (
    attempts,
    events,
    job_dependencies,
    jobs,
    nodes,
    pools,
    projects,
    slots,
    step_dependencies,
    steps,
    task_dependencies,
    tasks,
)
from farm.errors import NotFound
from farm.ids import is_id
from farm.scheduler.fit import fits
from farm.scheduler.floor import read_floor
from farm.settings import Settings
from farm.states import TaskState

_SHOWN = 5
_OF_THE_JOB = frozenset({"cancelled", "paused", "after"})
"""Reasons that hold all of a job's steps alike."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that work waits for. ``kind`` is stable; ``text`` is for people; ``data`` holds the ids."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


def why(conn: sa.Connection, subject_id: str, settings: Settings) -> list[Reason]:
    """What a job or task waits for; an empty list when nothing holds it.

    Raises :class:`farm.errors.NotFound` for an unknown id.
    """
    if is_id(subject_id, "task"):
        return list(_unique(_task(conn, subject_id, settings)))
    job = conn.execute(sa.select(jobs).where(jobs.c.id == subject_id)).mappings().one_or_none()
    if job is None:
        raise NotFound(f"there is no job or task {subject_id!r}")
    return list(_unique(_job(conn, dict(job), settings)))


def _unique(reasons: Iterator[Reason]) -> Iterator[Reason]:
    seen: set[tuple[str, str]] = set()
    for reason in reasons:
        if (reason.kind, reason.text) not in seen:
            seen.add((reason.kind, reason.text))
            yield reason


def _job(conn: sa.Connection, job: dict[str, Any], settings: Settings) -> Iterator[Reason]:
    if job["state"] in ("done", "cancelled"):
        yield Reason("ended", f"the job is {job['state']}", {"state": job["state"]})
        return
    yield from _flags(job)
    yield from _jobs_before(conn, job["id"])
    for step in conn.execute(
        sa.select(steps).where(steps.c.job_id == job["id"]).order_by(steps.c.position)
    ).mappings():
        if step["n_failed"]:
            number = step["n_failed"]
            text = failures.of_step(conn, step["id"], step["name"], number)
            yield Reason("failed", text, {"step_id": step["id"], "tasks": number})
        if step["deferred"]:
            text = f"step {step['name']!r} gets its tasks when the step that it waits for is done"
            yield Reason("deferred", text, {"step_id": step["id"], "on_step_id": step["deferred_on"]})
        for state in (TaskState.BLOCKED, TaskState.READY, TaskState.DISPATCHED):
            first = conn.scalar(
                sa.select(tasks.c.id)
                .where(tasks.c.step_id == step["id"], tasks.c.state == state)
                .order_by(tasks.c.rank, tasks.c.position)
                .limit(1)
            )
            if first is not None:
                for reason in _task(conn, first, settings):
                    of_step = reason.kind not in _OF_THE_JOB
                    yield replace(reason, text=f"step {step['name']!r}: {reason.text}") if of_step else reason


def _task(conn: sa.Connection, task_id: str, settings: Settings) -> Iterator[Reason]:
    row = (
        conn.execute(
            sa.select(
                tasks,
                steps.c.name.label("step_name"),
                steps.c.pool,
                steps.c.requires,
                steps.c.job_id,
                steps.c.waiting_on.label("step_waiting_on"),
                jobs.c.paused,
                jobs.c.cancel_requested,
                jobs.c.priority,
                jobs.c.project_id,
                db_now().label("now"),
            )
            .join(steps, steps.c.id == tasks.c.step_id)
            .join(jobs, jobs.c.id == steps.c.job_id)
            .where(tasks.c.id == task_id)
        )
        .mappings()
        .one_or_none()
    )
    if row is None:
        raise NotFound(f"there is no task {task_id!r}")
    task = dict(row)
    state = task["state"]
    if state in (TaskState.DONE, TaskState.CANCELLED):
        yield Reason("ended", f"the task is {state}", {"state": state})
    elif state == TaskState.FAILED:
        yield Reason(
            "failed", f"it failed: {task['error']}; {failures.way_out(conn, task_id)}", {"task_id": task_id}
        )
    elif state == TaskState.UNREACHABLE:
        yield Reason("unreachable", f"it cannot be reached: {task['error']}", {"task_id": task_id})
    elif state == TaskState.BLOCKED:
        yield from _flags(task)
        yield from _jobs_before(conn, task["job_id"])
        yield from _dependencies(conn, task)
    elif state == TaskState.READY:
        flags = list(_flags(task))
        held = [*flags, *_ready(conn, task)]
        yield from held
        yield from _slots(conn, task, settings, free_to_go=not held, wanted=not flags)
    elif state == TaskState.DISPATCHED:
        since = task["now"] - task["dispatched_at"]
        text = f"it was sent to slot {task['slot_id']} {since:.1f} s ago, which has not begun it"
        more = f"; after {settings.claim_timeout_s:g} s it goes back"
        yield Reason("dispatched", text + more, {"slot_id": task["slot_id"], "since_s": since})
    else:
        yield from _flags(task)
        yield from _running(conn, task)


def _flags(row: dict[str, Any]) -> Iterator[Reason]:
    if row["cancel_requested"]:
        yield Reason("cancelled", "a person has cancelled the job; what runs is being stopped")
    elif row["paused"]:
        yield Reason("paused", "the job is paused; resume it to let it go on")


def _jobs_before(conn: sa.Connection, job_id: str) -> Iterator[Reason]:
    query = (
        sa.select(jobs.c.id, jobs.c.name, jobs.c.state)
        .join(job_dependencies, job_dependencies.c.after_job_id == jobs.c.id)
        .where(job_dependencies.c.job_id == job_id, ~job_dependencies.c.satisfied)
        .order_by(jobs.c.id)
    )
    for other, name, state in conn.execute(query):
        text = f"its job comes after job {other} ({name}), which is {state}"
        yield Reason("after", text, {"job_id": other, "state": state})


def _dependencies(conn: sa.Connection, task: dict[str, Any]) -> Iterator[Reason]:
    open_tasks = sum(
        (steps.c[f"n_{s}"] for s in ("blocked", "ready", "dispatched", "running")), start=sa.literal(0)
    )
    query = (
        sa.select(steps.c.id, steps.c.name, steps.c.state, steps.c.deferred, open_tasks.label("open"))
        .join(step_dependencies, step_dependencies.c.on_step_id == steps.c.id)
        .where(
            step_dependencies.c.step_id == task["step_id"],
            ~step_dependencies.c.satisfied,
            sa.or_(step_dependencies.c.mode == "whole", steps.c.deferred),
        )
        .order_by(steps.c.position)
    )
    for step_id, name, state, deferred, number in conn.execute(query):
        left = (
            "it has no tasks yet"
            if deferred
            else f"{number} of its tasks {'is' if number == 1 else 'are'} left"
        )
        text = f"it waits for step {name!r}, which is {state}: {left}"
        yield Reason("dependency", text, {"step_id": step_id, "state": state, "tasks_left": number})
    if task["waiting_on"]:
        cause = tasks.alias()
        left_tasks = conn.execute(
            sa.select(cause.c.id, cause.c.frames, cause.c.state)
            .join(task_dependencies, task_dependencies.c.on_task_id == cause.c.id)
            .where(task_dependencies.c.task_id == task["id"], cause.c.state != TaskState.DONE)
            .order_by(cause.c.position)
            .limit(_SHOWN)
        ).all()
        ids = [row.id for row in left_tasks]
        frames = ", ".join(f"{row.frames or row.id} ({row.state})" for row in left_tasks)
        text = f"it waits for {task['waiting_on']} tasks that make its frames: {frames}"
        yield Reason("frames", text, {"task_ids": ids, "number": task["waiting_on"]})


def _ready(conn: sa.Connection, task: dict[str, Any]) -> Iterator[Reason]:
    if task["not_before"] is not None and task["not_before"] > task["now"]:
        left = task["not_before"] - task["now"]
        text = f"it failed before ({task['error']}) and is tried again in {left:.1f} s"
        yield Reason("backoff", text, {"seconds": left})
    yield from _limits(conn, task)


def _limits(conn: sa.Connection, task: dict[str, Any]) -> Iterator[Reason]:
    pool = conn.execute(sa.select(pools).where(pools.c.name == task["pool"])).mappings().one_or_none()
    busy = _busy_slots(conn)
    if pool is not None and pool["paused"]:
        yield Reason("pool_paused", f"pool {task['pool']!r} is paused", {"pool": task["pool"]})
    in_pool = len({slot for slot, name, _ in busy if name == task["pool"]})
    if pool is not None and pool["max_slots"] is not None and in_pool >= pool["max_slots"]:
        text = f"pool {task['pool']!r} uses {in_pool} of the {pool['max_slots']} slots that it may"
        yield Reason("pool_cap", text, {"pool": task["pool"], "used": in_pool, "cap": pool["max_slots"]})
    project = conn.execute(sa.select(projects).where(projects.c.id == task["project_id"])).mappings().one()
    name = project["name"]
    used = len({slot for slot, _, owner in busy if owner == project["id"]})
    if project["max_slots"] is not None and used >= project["max_slots"]:
        text = f"project {name!r} uses {used} of the {project['max_slots']} slots that it may"
        yield Reason("cap", text, {"project_id": project["id"], "used": used, "cap": project["max_slots"]})
    quota, spent = project["quota_slot_s"], project["used_slot_s"]
    if quota is not None and spent >= quota:
        text = f"project {name!r} has spent {spent:.0f} of its {quota:.0f} slot-seconds; raise its quota"
        yield Reason(
            "quota", text, {"project_id": project["id"], "used_slot_s": spent, "quota_slot_s": quota}
        )


def _busy_slots(conn: sa.Connection) -> list[tuple[str, str, str]]:
    """``(slot, pool, project)`` of every slot that holds a task."""
    query = (
        sa.select(tasks.c.slot_id, steps.c.pool, jobs.c.project_id)
        .join(steps, steps.c.id == tasks.c.step_id)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(tasks.c.state.in_([sa.literal_column("'dispatched'"), sa.literal_column("'running'")]))
        .distinct()
    )
    return [(slot, pool, project) for slot, pool, project in conn.execute(query)]


def _slots(
    conn: sa.Connection, task: dict[str, Any], settings: Settings, *, free_to_go: bool, wanted: bool
) -> Iterator[Reason]:
    pool = task["pool"]
    rows = conn.execute(
        sa.select(
            slots.c.id,
            slots.c.pools,
            slots.c.device,
            slots.c.state,
            slots.c.hold_reason,
            nodes.c.state.label("node"),
        ).join(nodes, nodes.c.id == slots.c.node_id)
    ).all()
    nobody = _nobody(pool, task["requires"], [(row.pools, row.device) for row in rows])
    if nobody is not None:
        yield nobody
        return
    fitting = [row for row in rows if pool in row.pools and fits(task["requires"], row.device)]
    up = [row for row in fitting if row.node == "up"]
    if not up:
        states = ", ".join(f"{n} {state}" for state, n in sorted(Counter(r.node for r in fitting).items()))
        text = f"no node with a slot for it takes work: {states}"
        yield Reason("nodes_away", text, {"pool": pool})
        return
    held = [row for row in up if row.state == "held"]
    if held:
        words = sorted({row.hold_reason or "no reason given" for row in held})
        text = f"{len(held)} of {len(up)} slots for it are held: {'; '.join(words)}"
        yield Reason("held", text, {"slot_ids": [row.id for row in held]})
    counts = Counter(row.state for row in up)
    floor = read_floor(conn, settings.reserve_floor)
    if floor and task["project_id"] not in floor.reserving and counts["idle"]:
        idle = [row for row in up if row.state == "idle"]
        steady = sum(row.id in floor.steady for row in idle)
        kept = max(0, floor.unmet.get(pool, 0))
        if steady == len(idle) <= kept:
            text = f"the {len(idle)} idle slots of pool {pool!r} are kept for projects that reserve"
            yield Reason("reserved", text, {"pool": pool, "kept": kept})
            return
    if not counts["idle"] and len(held) < len(up) and wanted:
        states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        yield Reason("busy", f"no slot for it is idle: {states}", {"slots": dict(counts)})
    elif counts["idle"] and free_to_go:
        idle_now = "a slot is idle" if counts["idle"] == 1 else f"{counts['idle']} slots are idle"
        text = f"{idle_now}; the scheduler gives it to one at its next look"
        yield Reason("next", text, {"idle": counts["idle"]})


def _nobody(
    pool: str, requires: Mapping[str, Any], offers: Sequence[tuple[Sequence[str], Mapping[str, Any]]]
) -> Reason | None:
    """Why no slot of the farm, busy, held and away ones among them, can run such work; None: one can."""
    serving = [device for pools, device in offers if pool in pools]
    if not serving:
        text = f"no slot of this farm serves pool {pool!r}; it waits until a node with one joins"
        return Reason("no_slot", text, {"pool": pool})
    if any(fits(requires, device) for device in serving):
        return None
    wants = ", ".join(f"{name} = {value!r}" for name, value in requires.items())
    devices = sorted({str(device.get("device", device.get("kind", "cpu"))) for device in serving})
    text = (
        f"none of the {len(serving)} slots of pool {pool!r} fulfils what it requires ({wants}); "
        f"their devices are {', '.join(devices)}; it waits until a node with such a slot joins"
    )
    return Reason("no_slot_fits", text, {"pool": pool, "requires": dict(requires)})


def unserved(conn: sa.Connection, wanted: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[Reason]:
    """Steps that no slot of this farm can run as it stands; ``wanted``: name, pool and requirements of each.

    A job with such steps is taken all the same: a node may join.
    """
    offers = [(row.pools, row.device) for row in conn.execute(sa.select(slots.c.pools, slots.c.device))]
    found: dict[str, tuple[Reason, list[str]]] = {}
    for name, pool, requires in wanted:
        reason = _nobody(pool, requires, offers)
        if reason is not None:
            found.setdefault(reason.text, (reason, []))[1].append(repr(name))
    # the steps of a job mostly want the same: said once
    return [
        replace(reason, text=f"{'step' if len(names) == 1 else 'steps'} {', '.join(names)}: {text}")
        for text, (reason, names) in found.items()
    ]


def _running(conn: sa.Connection, task: dict[str, Any]) -> Iterator[Reason]:
    if task["wish"] is not None:
        yield Reason("wish", f"it is asked to {task['wish']}", {"wish": task["wish"]})
    state = conn.execute(
        sa.select(slots.c.state, slots.c.hold_reason).where(slots.c.id == task["slot_id"])
    ).one_or_none()
    if state is not None and state.state == "held":
        yield Reason("held", f"its slot is held: {state.hold_reason or 'no reason given'}")
    began = conn.scalar(
        sa.select(attempts.c.started_at).where(
            attempts.c.task_id == task["id"], attempts.c.epoch == task["epoch"]
        )
    )
    waiting = conn.execute(
        sa.select(events.c.at, events.c.data)
        .where(
            events.c.job_id == task["job_id"],
            events.c.task_id == task["id"],
            events.c.type == "buffer.waiting",
            events.c.at >= (began or 0.0),
        )
        .order_by(events.c.id.desc())
        .limit(1)
    ).one_or_none()
    if waiting is not None:
        data = waiting.data
        text = f"it asked for {data['bytes']:,} bytes of {data['medium']} while the budget was full"
        yield Reason("budget", text, dict(data))
