"""Leases on running tasks, and the ways in which a task comes back without a report of its attempt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from farm import events, ledger
from farm.db.connect import db_now
from farm.db.rows import clean_text, id_rows, json_rows
from farm.db.tables import nodes, slots, steps, tasks
from farm.lifecycle.attempt_rows import close_lost
from farm.lifecycle.counters import Moves
from farm.lifecycle.locks import lock_jobs
from farm.lifecycle.outcomes import lose_to_node, spend_retry
from farm.lifecycle.release import settle
from farm.lifecycle.slot_rows import idle_slots, lock_slots
from farm.lifecycle.task_rows import TaskRow, by_step, read_tasks, write_tasks
from farm.settings import Settings
from farm.settings import settings as process_settings
from farm.states import Actor, AttemptState, TaskState

Held = Sequence[tuple[str, int]]
"""Tasks with the epoch under which somebody holds them."""
# literal, because a partial index serves only a condition that the planner can read
_BUSY = tasks.c.state.in_([sa.literal_column("'dispatched'"), sa.literal_column("'running'")])


@dataclass(frozen=True, slots=True)
class ExpiredTask:
    """A running task whose lease is over. ``node_seen_at`` is when its node last gave a sign of life."""

    task_id: str
    epoch: int
    slot_id: str
    node_id: str | None
    node_seen_at: float | None
    expired_s: float


def extend(
    conn: sa.Connection, node_id: str, held: Held, lease_s: float, *, lock_wait_s: float | None = None
) -> set[str]:
    """Lease these tasks for ``lease_s`` seconds from now; ids of those that are still held.

    A task that is missing from the answer has gone on without its attempt. ``lock_wait_s`` bounds the wait
    for locks on PostgreSQL: past it the statement raises, and the caller tries again.
    """
    if not held:
        return set()
    if lock_wait_s is not None and conn.dialect.name == "postgresql":
        conn.execute(sa.select(sa.func.set_config("lock_timeout", f"{int(lock_wait_s * 1000)}ms", True)))
    rows = json_rows(
        conn, "held", {"id": "text", "epoch": "int"}, [{"id": t, "epoch": e} for t, e in sorted(held)]
    )
    mine = sa.and_(tasks.c.id == rows.c.id, tasks.c.epoch == rows.c.epoch, tasks.c.state == TaskState.RUNNING)
    if conn.dialect.name == "postgresql":
        ordered = sa.select(tasks.c.id).join(rows, mine).order_by(tasks.c.id)
        conn.execute(ordered.with_for_update(key_share=True, of=tasks))
    kept = conn.scalars(
        tasks.update().values(lease_expires_at=db_now() + lease_s).where(mine).returning(tasks.c.id)
    )
    return set(kept)


def return_unbegun(conn: sa.Connection, slot_id: str, held: Held) -> None:
    """Tasks that the slot was given or has claimed, but not begun, go back free.

    Their attempts, where there are any, are closed as interrupted.
    """
    _give_back(
        conn,
        held,
        {slot_id},
        lambda row: row.slot_id == slot_id and row.state in (TaskState.DISPATCHED, TaskState.RUNNING),
    )


def return_unclaimed(conn: sa.Connection, older_than_s: float, limit: int = 1000) -> list[tuple[str, str]]:
    """Tasks that were dispatched more than ``older_than_s`` seconds ago and never claimed become ready.

    Returns ``(slot_id, task_id)`` each; the caller empties those slots' queues. No retry is spent.
    """
    found = conn.execute(
        sa.select(tasks.c.id, tasks.c.epoch, tasks.c.slot_id)
        .where(
            _BUSY,
            tasks.c.state == TaskState.DISPATCHED,
            tasks.c.dispatched_at < db_now() - older_than_s,
        )
        .order_by(tasks.c.id)
        .limit(limit)
    ).all()
    returned = _give_back(
        conn,
        [(row.id, row.epoch) for row in found],
        {row.slot_id for row in found},
        lambda row: row.state == TaskState.DISPATCHED,
    )
    slot_of = {row.id: row.slot_id for row in found}
    return [(slot_of[task_id], task_id) for task_id in returned]


def expired(conn: sa.Connection, limit: int = 1000) -> list[ExpiredTask]:
    """Running tasks whose lease is over, oldest first."""
    query = (
        sa.select(
            tasks.c.id,
            tasks.c.epoch,
            tasks.c.slot_id,
            slots.c.node_id,
            nodes.c.seen_at,
            db_now() - tasks.c.lease_expires_at,
        )
        .select_from(
            tasks.outerjoin(slots, slots.c.id == tasks.c.slot_id).outerjoin(
                nodes, nodes.c.id == slots.c.node_id
            )
        )
        .where(_BUSY, tasks.c.state == TaskState.RUNNING, tasks.c.lease_expires_at < db_now())
        .order_by(tasks.c.lease_expires_at)
        .limit(limit)
    )
    return [ExpiredTask(*row) for row in conn.execute(query)]


def lose(
    conn: sa.Connection,
    held: Held,
    *,
    error: str,
    error_type: str = "lost",
    node_lost: bool = False,
    charged: bool = True,
    killed_slot: bool = False,
    settings: Settings | None = None,
) -> list[str]:
    """Take running tasks away from attempts that give no sign of life; ids of those that were taken.

    A wish to cancel is fulfilled; otherwise the task is ready again, or failed when its retries are spent.
    ``node_lost``: the whole node is gone, which is free a few times (``free_node_losses``). Otherwise
    ``charged`` says whether it spends a retry. A late report of such an attempt is fenced off.
    """
    config = settings or process_settings()
    rows, moves, now = _take(conn, held, None)
    epochs = dict(held)
    lost = [r for r in rows.values() if r.state == TaskState.RUNNING and r.epoch == epochs[r.id]]
    spent: list[str] = []
    slot_ids = {row.slot_id for row in lost if row.slot_id}
    for row in lost:
        row.solo = row.solo or killed_slot
        if row.wish == "cancel" or row.cancel_requested:
            row.checkpoint = None
            row.to_end(TaskState.CANCELLED, now)
        elif node_lost:
            if lose_to_node(row, now, config, clean_text(error)):
                spent.append(row.id)
        else:
            spend_retry(row, now, config, clean_text(error), charged=charged)
            if charged:
                spent.append(row.id)
    written = write_tasks(conn, Actor.SCHEDULER, lost, moves)
    closed = close_lost(
        conn, [(r.id, epochs[r.id]) for r in written], AttemptState.LOST, error_type, clean_text(error), spent
    )
    _follow(conn, written, moves, closed, slot_ids)
    return [row.id for row in written]


# --- shared ------------------------------------------------------------------------------------------


def _take(
    conn: sa.Connection, held: Held, slot_ids: set[str] | None
) -> tuple[dict[str, TaskRow], Moves, float]:
    """Lock what these tasks hang on, in order: slots, jobs, tasks."""
    ids = [task_id for task_id, _ in held]
    if slot_ids is None:
        slot_ids = {
            s for s in conn.scalars(sa.select(tasks.c.slot_id).where(tasks.c.id.in_(id_rows(conn, ids)))) if s
        }
    lock_slots(conn, slot_ids)
    owners = conn.scalars(
        sa.select(steps.c.job_id)
        .join(tasks, tasks.c.step_id == steps.c.id)
        .where(tasks.c.id.in_(id_rows(conn, ids)))
        .distinct()
    )
    lock_jobs(conn, set(owners))
    now = conn.scalar(sa.select(db_now())) or 0.0
    return read_tasks(conn, ids), Moves(), now


def _give_back(
    conn: sa.Connection, held: Held, slot_ids: set[str], which: Callable[[TaskRow], bool]
) -> list[str]:
    if not held:
        return []
    rows, moves, now = _take(conn, held, slot_ids)
    epochs = dict(held)
    back = [row for row in rows.values() if row.epoch == epochs[row.id] and which(row)]
    for row in back:
        if row.state == TaskState.RUNNING and row.cancel_requested:
            row.to_end(TaskState.CANCELLED, now)
        else:
            row.to_ready(now)
    begun = [(row.id, row.epoch) for row in back if row.was_state == TaskState.RUNNING]
    written = write_tasks(conn, Actor.SCHEDULER, back, moves)
    closed = close_lost(conn, begun, AttemptState.INTERRUPTED, None, None)
    _follow(conn, written, moves, closed, slot_ids)
    return [row.id for row in written]


def _follow(
    conn: sa.Connection,
    written: Sequence[TaskRow],
    moves: Moves,
    closed: Sequence[str],
    slot_ids: Collection[str],
) -> None:
    """What comes after tasks were taken back: events, dependents, buffers, idle slots."""
    ended = [row for row in written if row.state in (TaskState.FAILED, TaskState.CANCELLED)]
    for step_id, rows in by_step(written).items():
        states: dict[str, list[str]] = {}
        for row in rows:
            states.setdefault(row.state, []).append(row.id)
        events.emit(conn, "task.state", job_id=rows[0].job_id, step_id=step_id, data={"states": states})
    settle(conn, moves, cut=[row.id for row in ended])
    ledger.release_ended(conn, closed, [row.id for row in ended])
    idle_slots(conn, set(slot_ids))
