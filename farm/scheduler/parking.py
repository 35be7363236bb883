"""A slot that is lent to a later pool of its list goes back when an earlier pool has work for it.

The rules of picking decide that too: lent slots are offered, as if they were idle, to the pools that come
before the one they work for; those that would get a ticket are asked to park. Parking is free for the task
(it goes on from its checkpoint), but not for the farm, so a task runs ``lend_min_run_s`` before it is asked,
and few are asked at a time. Nobody parks for a project that could not have the slot then, since it would be
kept for projects that reserve (:mod:`farm.scheduler.floor`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from farm.db.connect import db_now
from farm.db.tables import slots, steps, tasks
from farm.scheduler.floor import read_floor, with_idle
from farm.scheduler.picking import IdleSlot, Situation, choose
from farm.scheduler.tick import (
    read_busy_slots,
    read_idle_slots,
    read_pools,
    read_projects,
    read_ready_steps,
    rules_of,
)
from farm.settings import Settings
from farm.states import TaskState

MAX_ASKED: Final = 4
"""Most slots that one pass asks to park."""

_BUSY = sa.text("tasks.state IN ('dispatched', 'running')")


@dataclass(slots=True)
class LentSlot:
    """A slot at work for a pool that is not its first."""

    slot: IdleSlot
    node_id: str
    tasks: list[str] = field(default_factory=list)
    asked: bool = False
    may_ask: bool = True


def who_parks(conn: sa.Connection, settings: Settings) -> list[LentSlot]:
    """Lent slots to be asked back: a pool that comes first for them has work that no idle slot can take.

    Only reads. Run after a tick: what is ready then is what idle slots could not take.
    """
    lent = _read_lent(conn, settings)
    if not lent:
        return []
    rules = rules_of(settings)
    ready = read_ready_steps(conn, {pool for each in lent.values() for pool in each.slot.pools}, rules)
    if not ready:
        return []
    busy: dict[tuple[str, str], int] = defaultdict(int)
    for slot in read_busy_slots(conn, rules):
        # a lent slot that parks frees its place under the caps
        if slot.slot_id not in lent:
            busy[slot.key] += 1
    situation = Situation(
        now=conn.scalars(sa.select(db_now())).one(),
        slots=[each.slot for each in lent.values()],
        steps=ready,
        projects=read_projects(conn, {step.project_id for step in ready}),
        pools=read_pools(conn),
        busy=busy,
        rules=rules,
        floor=with_idle(
            read_floor(conn, settings.reserve_floor), [slot.id for slot in read_idle_slots(conn)]
        ),
    )
    picked = [lent[pick.slot_id] for pick in choose(situation)]
    return [each for each in picked if not each.asked][:MAX_ASKED]


def ask_to_park(conn: sa.Connection, lent: list[LentSlot]) -> set[str]:
    """Put the wish to park on the slots' running tasks; gives the nodes to be woken."""
    woken: set[str] = set()
    for each in lent:
        asked = conn.execute(
            tasks.update()
            .where(
                tasks.c.id.in_(each.tasks),
                tasks.c.slot_id == each.slot.id,
                tasks.c.state == TaskState.RUNNING,
                tasks.c.wish.is_(None),
            )
            .values(wish="park")
        )
        if asked.rowcount:
            woken.add(each.node_id)
    return woken


def _read_lent(conn: sa.Connection, settings: Settings) -> dict[str, LentSlot]:
    query: sa.Select[Any] = (
        sa.select(
            slots.c.id, slots.c.node_id, slots.c.pools, slots.c.device, slots.c.warm,
            steps.c.pool, tasks.c.id.label("task_id"), tasks.c.state, tasks.c.wish,
            (tasks.c.started_at < db_now() - settings.lend_min_run_s).label("ran_enough"),
        )
        .select_from(tasks)
        .join(slots, slots.c.id == tasks.c.slot_id)
        .join(steps, steps.c.id == tasks.c.step_id)
        .where(_BUSY, slots.c.state == "busy")
        .order_by(tasks.c.id)
    )  # fmt: skip
    lent: dict[str, LentSlot] = {}
    for row in conn.execute(query):
        pools = list(row.pools)
        if row.pool not in pools or pools.index(row.pool) == 0:
            continue
        each = lent.get(row.id)
        if each is None:
            before = tuple(pools[: pools.index(row.pool)])
            # those that were asked before come first, so that the same need does not ask a second one
            since = -1.0 if row.wish is not None else 0.0
            slot = IdleSlot(row.id, before, row.device or {}, frozenset(row.warm or ()), since)
            each = lent[row.id] = LentSlot(slot, row.node_id)
        each.tasks.append(row.task_id)
        each.asked = each.asked or row.wish is not None
        if row.state != TaskState.RUNNING or not row.ran_enough:
            each.may_ask = False
    return {slot_id: each for slot_id, each in lent.items() if each.asked or each.may_ask}
