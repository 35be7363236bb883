"""Ready tasks given to an idle slot: ready -> dispatched under a new epoch, which makes a ticket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from farm import events
from farm.db.connect import db_now
from farm.db.tables import nodes, slots
from farm.lifecycle.counters import Moves, apply_to_jobs, apply_to_steps
from farm.lifecycle.task_rows import TaskRow, read_tasks, write_tasks
from farm.records import Ticket, TicketEntry
from farm.states import Actor, TaskState


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A ticket to publish after the commit, and the queue that it goes to."""

    slot_id: str
    queue: str
    ticket: Ticket


def dispatch(conn: sa.Connection, slot_id: str, task_ids: list[str]) -> Ticket | None:
    """Give these tasks (of one step, in this order) to a slot; the ticket, or None when nothing was given.

    Tasks that are not ready any more, or that another transaction holds, are left out; so is everything
    when the slot is not idle. One call per transaction, or else :func:`dispatch_many`, which locks the
    steps of all tickets in order.
    """
    made = dispatch_many(conn, [(slot_id, task_ids)])
    return made[0].ticket if made else None


def dispatch_many(conn: sa.Connection, choices: Sequence[tuple[str, Sequence[str]]]) -> list[Dispatch]:
    """Give tasks to several slots in one transaction; ``choices`` are pairs of slot id and task ids.

    Raises :class:`ValueError` when the tasks of one slot belong to several steps.
    """
    moves = Moves()
    made: list[Dispatch] = []
    for slot_id, task_ids in choices:
        now = _take_slot(conn, slot_id)
        if now is None:
            continue
        rows = read_tasks(conn, task_ids, skip_locked=True)
        wanted = [rows[task_id] for task_id in task_ids if task_id in rows and _may_start(rows[task_id])]
        if len({row.step_id for row in wanted}) > 1:
            raise ValueError(f"the tasks for slot {slot_id} belong to several steps")
        for row in wanted:
            row.state = TaskState.DISPATCHED
            row.epoch += 1
            row.slot_id = slot_id
            row.dispatched_at = now
            row.started_at = None
            row.progress = None
        given = write_tasks(conn, Actor.SCHEDULER, wanted, moves)
        if not given:
            continue
        conn.execute(slots.update().where(slots.c.id == slot_id).values(state="busy", changed_at=now))
        entries = tuple(TicketEntry(row.id, row.epoch) for row in given)
        made.append(Dispatch(slot_id, f"slot.{slot_id}", Ticket(slot_id, entries)))
        events.emit(
            conn,
            "task.state",
            job_id=given[0].job_id,
            step_id=given[0].step_id,
            slot_id=slot_id,
            data={"states": {TaskState.DISPATCHED: [row.id for row in given]}},
        )
    apply_to_steps(conn, moves)
    apply_to_jobs(conn, moves)
    return made


def _take_slot(conn: sa.Connection, slot_id: str) -> float | None:
    """Lock an idle slot of a node that is up; the database's time, or None when it cannot be had."""
    query = (
        sa.select(db_now())
        .select_from(slots)
        .where(
            slots.c.id == slot_id,
            slots.c.state == "idle",
            sa.exists().where(nodes.c.id == slots.c.node_id, nodes.c.state == "up"),
        )
    )
    if conn.dialect.name == "postgresql":
        query = query.with_for_update(key_share=True, skip_locked=True, of=slots)
    now: float | None = conn.scalar(query)
    return now


def _may_start(task: TaskRow) -> bool:
    rested = task.not_before is None or task.not_before <= task.now
    return task.state == TaskState.READY and rested and not (task.paused or task.cancel_requested)
