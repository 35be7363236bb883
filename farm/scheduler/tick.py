"""One look at the database: idle slots, ready steps, and tickets for as many slots as there is work for.

What a tick costs depends on the numbers of idle slots, projects and steps with ready tasks, not on how many
tasks are ready: steps are chosen by their counters, and then the first few tasks of the chosen ones are read
along ``ix_tasks_pick``. The conditions of partial indexes stand as literals, since neither database can
prove them from a parameter.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa

from farm.db.connect import db_now
from farm.db.tables import jobs, nodes, pools, projects, slots, steps, tasks
from farm.lifecycle.dispatch import Dispatch, dispatch_many
from farm.scheduler.floor import Floor, read_floor
from farm.scheduler.picking import (
    Candidate,
    IdleSlot,
    Pick,
    PickRules,
    PoolLimits,
    ProjectLimits,
    ReadyStep,
    Situation,
    choose,
    expected_seconds,
    take_bundle,
)
from farm.scheduler.shares import BusySlot, ShareMeter
from farm.settings import Settings
from farm.states import TaskState

MAX_TICKETS: Final = 64
"""Most tickets of one tick; the next tick follows at once when there were that many."""

_STEPS_PER_PROJECT: Final = 64
_ROUNDS: Final = 3
REST_S: Final = 0.2
"""How long a step is left alone whose ready tasks all wait out a back-off."""


@dataclass(slots=True)
class TickState:
    """What a scheduler remembers between ticks; all of it may be lost."""

    meter: ShareMeter = field(default_factory=ShareMeter)
    resting: dict[str, float] = field(default_factory=dict)
    """Steps whose ready tasks all wait out a back-off, and until when they are left alone."""


def rules_of(settings: Settings) -> PickRules:
    """The bounds for picking that the settings give."""
    return PickRules(
        look_ahead=settings.look_ahead,
        age_boost_per_hour=settings.age_boost_per_hour,
        bundle_max=settings.bundle_max,
        bundle_s=settings.bundle_s,
    )


def anything_to_do(conn: sa.Connection) -> bool:
    """Whether a tick could do something: an idle slot and a step with ready tasks. Cheap, only reads."""
    idle = sa.exists().where(slots.c.state == "idle")
    ready = sa.exists(sa.select(steps.c.id).where(_HAS_READY))
    return bool(conn.scalar(sa.select(sa.and_(idle, ready))))


def observe(conn: sa.Connection, settings: Settings, state: TickState) -> None:
    """Measure shares where nothing is given out, so that idle time is charged to nobody. Only reads."""
    state.resting.clear()
    if state.meter.holding:
        now: float = conn.scalars(sa.select(db_now())).one()
        state.meter.measure(now, read_busy_slots(conn, rules_of(settings)), state.meter.active, {})


def tick(conn: sa.Connection, settings: Settings, state: TickState | None = None) -> list[Dispatch]:
    """Give ready tasks to idle slots; the tickets are to be published after the commit."""
    state = state if state is not None else TickState()
    rules = rules_of(settings)
    now: float = conn.scalars(sa.select(db_now())).one()
    idle = read_idle_slots(conn)
    busy = read_busy_slots(conn, rules)
    state.resting = {step: until for step, until in state.resting.items() if until > now}
    if not idle:
        state.meter.measure(now, busy, state.meter.active, {})
        return []
    ready = read_ready_steps(conn, {pool for slot in idle for pool in slot.pools}, rules, state.resting)
    limits = read_projects(conn, {step.project_id for step in ready})
    waiting = {(step.pool, step.project_id) for step in ready}
    shares = {project: limit.share for project, limit in limits.items()}
    state.meter.forget_steps([step.id for step in ready])
    use = state.meter.measure(now, busy, waiting, shares)
    counted: dict[tuple[str, str], int] = defaultdict(int)
    for slot in busy:
        counted[slot.key] += 1
    situation = Situation(
        now,
        idle,
        ready,
        limits,
        read_pools(conn),
        counted,
        use,
        state.meter.passed,
        rules,
        read_floor(conn, settings.reserve_floor),
    )
    return _give_out(conn, situation, state)


def _give_out(conn: sa.Connection, situation: Situation, state: TickState) -> list[Dispatch]:
    """Choose, read the chosen steps' first tasks, and choose again for slots whose step had none to give."""
    given: list[tuple[Pick, list[str]]] = []
    for _ in range(_ROUNDS):
        picks = choose(situation, MAX_TICKETS - len(given))
        slots_given, steps_empty = set(), set()
        busy, use = dict(situation.busy), dict(situation.use)
        taken = _read_tasks(conn, picks, situation, {task for _, ids in given for task in ids})
        for pick, task_ids in zip(picks, taken, strict=True):
            if not task_ids:
                steps_empty.add(pick.step.id)
                state.resting[pick.step.id] = situation.now + REST_S
                continue
            given.append((pick, task_ids))
            slots_given.add(pick.slot_id)
            key = (pick.step.pool, pick.step.project_id)
            busy[key] = busy.get(key, 0) + 1
            use[key] = use.get(key, 0.0) + _expected(pick, len(task_ids), situation.rules)
        if not steps_empty or len(given) >= MAX_TICKETS:
            break
        situation = replace(
            situation,
            floor=_floor_after(situation, given),
            slots=[slot for slot in situation.slots if slot.id not in slots_given],
            steps=[step for step in situation.steps if step.id not in steps_empty],
            busy=busy,
            use=use,
        )
    made = dispatch_many(conn, [(pick.slot_id, task_ids) for pick, task_ids in given])
    sent = {ticket.slot_id: len(ticket.ticket.entries) for ticket in made}
    for pick, _ in given:
        if pick.slot_id in sent:
            expected = _expected(pick, sent[pick.slot_id], situation.rules)
            step = pick.step
            slot = BusySlot(pick.slot_id, step.pool, step.project_id, situation.now, expected)
            state.meter.gave(slot, pick.need)
            state.meter.count_passed(step.id, pick.passed)
    return made


def _floor_after(situation: Situation, given: Sequence[tuple[Pick, list[str]]]) -> Floor:
    """The floor once these tickets are counted."""
    floor = situation.floor
    unmet = Counter(dict(floor.unmet))
    here = {slot.id for slot in situation.slots}
    for pick, _ in given:
        # those of an earlier round were counted then
        if pick.slot_id in here and pick.step.project_id in floor.reserving:
            unmet.subtract(floor.steady.get(pick.slot_id, ()))
    return replace(floor, unmet=unmet)


def _expected(pick: Pick, tasks_taken: int, rules: PickRules) -> float:
    return expected_seconds(pick.step.mean_task_s, tasks_taken, rules)


def _read_tasks(
    conn: sa.Connection, picks: Sequence[Pick], situation: Situation, gone: set[str]
) -> list[list[str]]:
    """For each pick the ids of its tasks, no task twice."""
    wanted: dict[str, int] = defaultdict(int)
    for pick in picks:
        wanted[pick.step.id] += pick.max_tasks
    candidates = {
        step_id: [
            task
            for task in read_candidates(conn, step_id, number + len(gone), situation.now)
            if task.id not in gone
        ]
        for step_id, number in wanted.items()
    }
    taken: list[list[str]] = []
    for pick in picks:
        left = candidates[pick.step.id]
        ids = take_bundle(left, pick.max_tasks, pick.step.mean_task_s, situation.rules)
        chosen = set(ids)
        candidates[pick.step.id] = [task for task in left if task.id not in chosen]
        taken.append(ids)
    return taken


# --- reading -------------------------------------------------------------------------------------------

_HAS_READY = sa.text("steps.n_ready > 0")
_BUSY = sa.text("tasks.state IN ('dispatched', 'running')")


def read_idle_slots(conn: sa.Connection) -> list[IdleSlot]:
    """Slots that wait for a ticket, on nodes that take work."""
    query = (
        sa.select(slots.c.id, slots.c.pools, slots.c.device, slots.c.warm, slots.c.changed_at)
        .join(nodes, nodes.c.id == slots.c.node_id)
        .where(slots.c.state == "idle", nodes.c.state == "up")
        .order_by(slots.c.id)
    )
    return [
        IdleSlot(row.id, tuple(row.pools), row.device or {}, frozenset(row.warm or ()), row.changed_at)
        for row in conn.execute(query)
    ]


def read_busy_slots(conn: sa.Connection, rules: PickRules) -> list[BusySlot]:
    """Slots that hold dispatched or running tasks, found along ``ix_tasks_busy``."""
    query = (
        sa.select(
            tasks.c.slot_id,
            steps.c.pool,
            jobs.c.project_id,
            sa.func.min(tasks.c.dispatched_at).label("since"),
            sa.func.count().label("number"),
            sa.func.max(steps.c.mean_task_s).label("mean"),
        )
        .join(steps, steps.c.id == tasks.c.step_id)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(_BUSY, tasks.c.slot_id.is_not(None))
        .group_by(tasks.c.slot_id, steps.c.pool, jobs.c.project_id)
    )
    return [
        BusySlot(
            row.slot_id, row.pool, row.project_id, row.since or 0.0,
            expected_seconds(row.mean, row.number, rules),
        )
        for row in conn.execute(query)
    ]  # fmt: skip


def read_ready_steps(
    conn: sa.Connection, pool_names: Iterable[str], rules: PickRules, resting: Iterable[str] = ()
) -> list[ReadyStep]:
    """The steps with ready tasks that come first for each pool, project and set of requirements."""
    # priority plus age, less what is the same for all
    rank = jobs.c.priority - jobs.c.created_at * (rules.age_boost_per_hour / 3600)
    order = [rank.desc(), jobs.c.created_at, jobs.c.id, steps.c.position]
    columns: list[sa.ColumnElement[Any]] = [
        steps.c.id, steps.c.job_id, jobs.c.project_id, steps.c.pool, jobs.c.priority, jobs.c.created_at,
        steps.c.position, steps.c.n_ready, steps.c.requires, steps.c.warm_key, steps.c.mean_task_s,
    ]  # fmt: skip
    group = [steps.c.pool, jobs.c.project_id, steps.c.requires]
    place = sa.func.row_number().over(partition_by=group, order_by=order).label("place")
    query = (
        sa.select(*columns, place)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(_HAS_READY, steps.c.pool.in_(sorted(pool_names)))
        .where(sa.not_(jobs.c.paused), sa.not_(jobs.c.cancel_requested))
    )
    if resting:
        query = query.where(steps.c.id.not_in(sorted(resting)[:1000]))
    ranked = query.subquery()
    first = sa.select(*(ranked.c[column.name] for column in columns)).where(
        ranked.c.place <= _STEPS_PER_PROJECT
    )
    return [ReadyStep(**row) for row in conn.execute(first).mappings()]


def read_candidates(conn: sa.Connection, step_id: str, number: int, now: float) -> list[Candidate]:
    """The first ready tasks of a step that do not wait out a back-off, in their order."""
    query = (
        sa.select(tasks.c.id, tasks.c.solo, tasks.c.seconds)
        .where(tasks.c.step_id == step_id, tasks.c.state == TaskState.READY.value)
        .where(sa.or_(tasks.c.not_before.is_(None), tasks.c.not_before <= now))
        .order_by(tasks.c.rank, tasks.c.position)
        .limit(number)
    )
    return [Candidate(row.id, row.solo, row.seconds) for row in conn.execute(query)]


def read_projects(conn: sa.Connection, ids: set[str]) -> dict[str, ProjectLimits]:
    """Shares, caps and quotas of these projects."""
    query = sa.select(
        projects.c.id, projects.c.share, projects.c.max_slots, projects.c.quota_slot_s, projects.c.used_slot_s
    ).where(projects.c.id.in_(sorted(ids)))
    return {row.id: ProjectLimits(*row[1:]) for row in conn.execute(query)}


def read_pools(conn: sa.Connection) -> dict[str, PoolLimits]:
    """Caps of all pools, and which are paused."""
    query = sa.select(pools.c.name, pools.c.max_slots, pools.c.paused)
    return {row.name: PoolLimits(row.max_slots, row.paused) for row in conn.execute(query)}
