"""What no process reports by itself: unclaimed tickets, ended leases, nodes and buffers left behind.

Every pass is a transaction of its own, in which the scheduler leads. What to do with each finding stands in
:mod:`farm.lifecycle` and :mod:`farm.ledger`; when to do it stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from farm import events, ledger
from farm.db.connect import db_now
from farm.db.tables import STEP_COUNTERS, nodes, slots, steps, tasks
from farm.lifecycle.leases import ExpiredTask, expired, lose, return_unclaimed
from farm.lifecycle.machines import finish_draining, node_down
from farm.settings import Settings

_BUSY = sa.text("tasks.state IN ('dispatched', 'running')")
_AUDITED_AT_ONCE: Final = 50
_AUDIT_ENDED_S: Final = 3600.0


@dataclass(slots=True)
class Reconciled:
    """What a pass has done. ``purge`` are slots whose queues must be emptied before the next ticket."""

    purge: set[str] = field(default_factory=set)
    unclaimed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    nodes_down: list[str] = field(default_factory=list)
    drained: list[str] = field(default_factory=list)
    freed_slots: list[str] = field(default_factory=list)
    buffers: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, int]:
        """How many of each there were, where there were any."""
        return {name: len(getattr(self, name)) for name in self.__slots__ if getattr(self, name)}

    def __bool__(self) -> bool:
        return bool(self.numbers())


def reconcile(conn: sa.Connection, settings: Settings, *, in_grace: bool = False) -> Reconciled:
    """One pass. ``in_grace``: the database was away, so silence says nothing about nodes and leases yet.

    Agents then have time to extend their leases and to replay what they have to report; a lease that is
    over is extended as long as nobody took the task away.
    """
    done = Reconciled()
    for slot_id, task_id in return_unclaimed(conn, settings.claim_timeout_s):
        done.purge.add(slot_id)
        done.unclaimed.append(task_id)
    if not in_grace:
        done.nodes_down = node_down(conn, settings.node_lost_s)
        done.lost = _lose_expired(conn, settings)
    done.freed_slots = _free_stuck_slots(conn, settings)
    done.purge |= set(done.freed_slots)
    draining = conn.scalars(sa.select(nodes.c.id).where(nodes.c.state == "draining").order_by(nodes.c.id))
    done.drained = [node_id for node_id in draining.all() if finish_draining(conn, node_id)]
    done.buffers = ledger.reconcile_orphans(conn)
    return done


def _lose_expired(conn: sa.Connection, settings: Settings) -> list[str]:
    """Tasks whose lease is over: free (a few times) where the node is silent, else a retry is spent."""
    now: float = conn.scalars(sa.select(db_now())).one()
    silent: list[ExpiredTask] = []
    hung: list[ExpiredTask] = []
    for task in expired(conn):
        alive = task.node_seen_at is not None and now - task.node_seen_at < settings.lease_s / 2
        (hung if alive else silent).append(task)
    lost: list[str] = []
    if silent:
        lost += lose(
            conn,
            [(task.task_id, task.epoch) for task in silent],
            error="the node gave no sign of life until the lease was over",
            error_type="node-lost",
            node_lost=True,
            settings=settings,
        )
    if hung:
        taken = lose(
            conn,
            [(task.task_id, task.epoch) for task in hung],
            error="the slot gave no sign of life until the lease was over",
            error_type="lease-expired",
            settings=settings,
        )
        _keep_busy(conn, {task.slot_id for task in hung if task.task_id in taken})
        lost += taken
    return lost


def _keep_busy(conn: sa.Connection, slot_ids: set[str]) -> None:
    """A slot that hangs in an attempt gets no ticket before it finishes, dies, or shows a beat again."""
    conn.execute(
        slots.update()
        .where(slots.c.id.in_(sorted(slot_ids)), slots.c.state == "idle")
        .values(state="busy", changed_at=db_now())
    )


def _free_stuck_slots(conn: sa.Connection, settings: Settings) -> list[str]:
    """Living slots that count as busy but hold nothing: their ticket was cancelled or lost on the way."""
    held = sa.exists(sa.select(tasks.c.id).where(tasks.c.slot_id == slots.c.id, _BUSY))
    freed = conn.scalars(
        slots.update()
        .where(
            slots.c.state == "busy",
            slots.c.changed_at < db_now() - settings.claim_timeout_s,
            slots.c.beat_at > db_now() - settings.beat_stale_s,
            ~held,
        )
        .values(state="idle", changed_at=db_now())
        .returning(slots.c.id)
    ).all()
    for slot_id in freed:
        node_id = conn.scalar(sa.select(slots.c.node_id).where(slots.c.id == slot_id))
        events.emit(conn, "slot.state", slot_id=slot_id, node_id=node_id, data={"state": "idle"})
    return list(freed)


@dataclass(frozen=True, slots=True)
class CounterDifference:
    """A step whose counters are not what counting its tasks gives: a fault in the farm."""

    job_id: str
    step_id: str
    kept: dict[str, int]
    counted: dict[str, int]


def audit_counters(conn: sa.Connection, after: str = "") -> tuple[list[CounterDifference], str]:
    """Compare the counters of the next few open or lately ended steps after id ``after``.

    Gives the differences and the id to go on from; "" after the last. Each step's counters and its count
    come from one statement, hence one snapshot.
    """
    recent = sa.or_(
        steps.c.state.in_(["waiting", "running"]), steps.c.finished_at > db_now() - _AUDIT_ENDED_S
    )
    ids = conn.scalars(
        sa.select(steps.c.id).where(steps.c.id > after, recent).order_by(steps.c.id).limit(_AUDITED_AT_ONCE)
    ).all()
    counts = (
        sa.select(
            tasks.c.step_id,
            *(
                sa.func.sum(sa.case((tasks.c.state == name[2:], 1), else_=0)).label(name)
                for name in STEP_COUNTERS
            ),
        )
        .where(tasks.c.step_id.in_(ids))
        .group_by(tasks.c.step_id)
        .subquery()
    )
    query = (
        sa.select(
            steps.c.job_id,
            steps.c.id,
            *(steps.c[name] for name in STEP_COUNTERS),
            *(sa.func.coalesce(counts.c[name], 0).label(f"counted_{name}") for name in STEP_COUNTERS),
        )
        .outerjoin(counts, counts.c.step_id == steps.c.id)
        .where(steps.c.id.in_(ids))
    )
    differences = []
    for row in conn.execute(query).mappings():
        kept = {name: row[name] for name in STEP_COUNTERS}
        counted = {name: int(row[f"counted_{name}"]) for name in STEP_COUNTERS}
        if kept != counted:
            differences.append(CounterDifference(row["job_id"], row["id"], kept, counted))
    return differences, (ids[-1] if len(ids) == _AUDITED_AT_ONCE else "")


def report_differences(
    conn: sa.Connection,
    counters: list[CounterDifference],
    budgets: list[ledger.BudgetDifference],
) -> None:
    """Record what an audit found, so that people see it; what is wrong is not hidden by mending it."""
    for counter in counters:
        kept: dict[str, Any] = {n: v for n, v in counter.kept.items() if v != counter.counted[n]}
        counted = {name: counter.counted[name] for name in kept}
        events.emit(
            conn,
            "audit",
            job_id=counter.job_id,
            step_id=counter.step_id,
            data={"what": "counters", "kept": kept, "counted": counted},
        )
    for budget in budgets:
        events.emit(
            conn,
            "audit",
            node_id=budget.node_id,
            data={
                "what": "budget",
                "medium": budget.medium,
                "kept": budget.reserved_bytes,
                "counted": budget.live_bytes,
            },
        )
