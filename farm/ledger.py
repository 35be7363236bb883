"""The ledger of buffers: who holds how many bytes of what, and each node's byte budget per medium.

``byte_budgets.reserved_bytes`` is the sum of the live (not released) buffers of that node and medium, and
moves in the same statement order as they do: the buffer's row first, then the budget's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.connect import db_now
from farm.db.rows import clean_json, id_rows
from farm.db.tables import attempts, buffers, byte_budgets, tasks
from farm.errors import Conflict, InvalidInput, NotFound, OutOfSpace
from farm.ids import new_id
from farm.states import ENDED

MEDIA = ("vram", "pinned", "shm", "spool", "store")
STATES = ("reserved", "filled", "draining", "released", "orphaned")
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class BudgetDifference:
    """A budget whose reserved bytes are not the sum of its live buffers: a fault in the farm."""

    node_id: str
    medium: str
    reserved_bytes: int
    live_bytes: int


def set_budget(conn: sa.Connection, node_id: str, medium: str, budget_bytes: int) -> None:
    """Give a node's medium a budget, or change it; what is reserved stays reserved."""
    if medium not in MEDIA:
        raise InvalidInput(f"medium is {medium!r}, but must be one of {', '.join(MEDIA)}")
    if budget_bytes < 0:
        raise InvalidInput(f"the budget of {medium} is {budget_bytes} bytes, but must be 0 or more")
    changed = conn.execute(
        byte_budgets.update().where(_of(node_id, medium)).values(budget_bytes=budget_bytes)
    )
    if not changed.rowcount:
        conn.execute(byte_budgets.insert().values(node_id=node_id, medium=medium, budget_bytes=budget_bytes))


def reserve(
    conn: sa.Connection,
    node_id: str,
    slot_id: str | None,
    medium: str,
    nbytes: int,
    purpose: str,
    *,
    task_id: str | None = None,
    attempt_id: str | None = None,
    epoch: int | None = None,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
) -> str | None:
    """Reserve ``nbytes`` for an attempt; the buffer's id, or None while the budget has no room.

    Raises :class:`farm.errors.OutOfSpace` when it could never fit, and :class:`farm.errors.NotFound` when
    the node has no budget for that medium.
    """
    if nbytes < 0:
        raise InvalidInput(f"a buffer of {nbytes} bytes cannot be reserved")
    taken = conn.execute(
        byte_budgets.update()
        .where(_of(node_id, medium), byte_budgets.c.reserved_bytes + nbytes <= byte_budgets.c.budget_bytes)
        .values(reserved_bytes=byte_budgets.c.reserved_bytes + nbytes)
    )
    if not taken.rowcount:
        budget = conn.scalar(sa.select(byte_budgets.c.budget_bytes).where(_of(node_id, medium)))
        if budget is None:
            raise NotFound(f"node {node_id} has no budget for {medium}; set one in farm.toml")
        if nbytes > budget:
            raise OutOfSpace(
                f"{nbytes:,} bytes of {medium} were asked for, but the node's whole budget is {budget:,}; "
                "raise the budget in farm.toml, or ask for less"
            )
        return None
    buffer_id = new_id("buf")
    conn.execute(
        buffers.insert().values(
            id=buffer_id,
            node_id=node_id,
            slot_id=slot_id,
            medium=medium,
            purpose=purpose,
            dtype=dtype,
            shape=list(shape) if shape is not None else None,
            bytes=nbytes,
            task_id=task_id,
            attempt_id=attempt_id,
            epoch=epoch,
            state="reserved",
            created_at=db_now(),
            changed_at=db_now(),
        )
    )
    return buffer_id


def waiting(
    conn: sa.Connection,
    node_id: str,
    slot_id: str | None,
    medium: str,
    nbytes: int,
    task_id: str | None = None,
) -> None:
    """Say that somebody waits for room in a budget (once, not at every try)."""
    job_id = None
    if task_id is not None:
        from farm.db.tables import steps

        job_id = conn.scalar(
            sa.select(steps.c.job_id).join(tasks, tasks.c.step_id == steps.c.id).where(tasks.c.id == task_id)
        )
    data = {"medium": medium, "bytes": nbytes}
    events.emit(
        conn, "buffer.waiting", job_id=job_id, task_id=task_id, slot_id=slot_id, node_id=node_id, data=data
    )


def fill(conn: sa.Connection, buffer_id: str, *, sha256: str | None = None) -> None:
    """The buffer now holds its data; ``sha256`` names it when it is a stored object.

    Raises :class:`farm.errors.Conflict` when the buffer is not reserved any more.
    """
    _step(conn, buffer_id, ("reserved",), "filled", sha256=sha256)


def drain(conn: sa.Connection, buffer_id: str) -> None:
    """The buffer's data is on its way out (to disk, to the encoder)."""
    _step(conn, buffer_id, ("reserved", "filled"), "draining")


def orphan(conn: sa.Connection, buffer_id: str, note: str) -> None:
    """The owner is gone, but the bytes are not; they stay reserved. ``note`` says which process has them."""
    row = conn.execute(
        sa.select(buffers.c.node_id, buffers.c.slot_id).where(buffers.c.id == buffer_id)
    ).first()
    _step(conn, buffer_id, ("reserved", "filled", "draining"), "orphaned", note=note)
    if row is not None:
        events.emit(
            conn,
            "buffer.orphaned",
            node_id=row.node_id,
            slot_id=row.slot_id,
            data={"buffer": buffer_id, "note": note},
        )


def note_orphan(conn: sa.Connection, node_id: str, slot_id: str, medium: str, nbytes: int, note: str) -> str:
    """Bytes of a slot's medium are held by somebody who never reserved them; the buffer's id.

    They count against the budget, also above it: they are in use. ``note`` says which process has them.
    """
    changed = conn.execute(
        byte_budgets.update()
        .where(_of(node_id, medium))
        .values(reserved_bytes=byte_budgets.c.reserved_bytes + nbytes)
    )
    if not changed.rowcount:
        conn.execute(
            byte_budgets.insert().values(
                node_id=node_id, medium=medium, budget_bytes=nbytes, reserved_bytes=nbytes
            )
        )
    buffer_id = new_id("buf")
    conn.execute(
        buffers.insert().values(
            id=buffer_id,
            node_id=node_id,
            slot_id=slot_id,
            medium=medium,
            purpose="frame staging",
            bytes=nbytes,
            state="orphaned",
            note=note,
            created_at=db_now(),
            changed_at=db_now(),
        )
    )
    data = {"buffer": buffer_id, "note": note}
    events.emit(conn, "buffer.orphaned", node_id=node_id, slot_id=slot_id, data=data)
    return buffer_id


def clear_orphans(conn: sa.Connection, slot_id: str, medium: str) -> int:
    """A slot's medium was seen free: what was orphaned there is released; how many buffers."""
    return _release(
        conn, buffers.c.slot_id == slot_id, buffers.c.medium == medium, buffers.c.state == "orphaned"
    )


def release(conn: sa.Connection, buffer_id: str) -> bool:
    """Give the bytes back to the budget; False when they were released before."""
    return _release(conn, buffers.c.id == buffer_id) == 1


def release_of_attempt(conn: sa.Connection, attempt_id: str) -> int:
    """Release what an ended attempt still holds, except checkpoints, which its task resumes from."""
    return release_of_attempts(conn, [attempt_id])


def release_of_attempts(conn: sa.Connection, attempt_ids: Sequence[str]) -> int:
    """Release what ended attempts still hold, except checkpoints and orphans; how many buffers."""
    return _release(
        conn,
        buffers.c.attempt_id.in_(id_rows(conn, attempt_ids)),
        buffers.c.purpose != CHECKPOINT,
        buffers.c.state != "orphaned",
    )


def release_ended(conn: sa.Connection, attempt_ids: Sequence[str], task_ids: Sequence[str]) -> int:
    """:func:`release_of_attempts` and :func:`release_checkpoints` in one statement."""
    of_attempts = sa.and_(
        buffers.c.attempt_id.in_(list(attempt_ids)),
        buffers.c.purpose != CHECKPOINT,
        buffers.c.state != "orphaned",
    )
    of_tasks = sa.and_(buffers.c.task_id.in_(list(task_ids)), buffers.c.purpose == CHECKPOINT)
    return _release(conn, sa.or_(of_attempts, of_tasks))


def release_checkpoints(conn: sa.Connection, task_ids: Sequence[str]) -> int:
    """Release the checkpoints of tasks that have ended; how many."""
    if not task_ids:
        return 0
    return _release(conn, buffers.c.task_id.in_(id_rows(conn, task_ids)), buffers.c.purpose == CHECKPOINT)


def reconcile_orphans(conn: sa.Connection) -> list[str]:
    """Find live buffers whose owner is gone and free them; ids of those that were freed or orphaned.

    Owners are attempts that have ended, and tasks that have ended for checkpoints. VRAM is only marked as
    orphaned: the agent releases it when no process holds it any more.
    """
    ended_attempt = sa.exists().where(attempts.c.id == buffers.c.attempt_id, attempts.c.ended_at.is_not(None))
    unknown_attempt = ~sa.exists().where(attempts.c.id == buffers.c.attempt_id)
    ended_task = sa.exists().where(tasks.c.id == buffers.c.task_id, tasks.c.state.in_(sorted(ENDED)))
    unknown_task = ~sa.exists().where(tasks.c.id == buffers.c.task_id)
    gone = sa.or_(
        sa.and_(buffers.c.purpose == CHECKPOINT, sa.or_(ended_task, unknown_task)),
        sa.and_(
            buffers.c.purpose != CHECKPOINT,
            buffers.c.attempt_id.is_not(None),
            sa.or_(ended_attempt, unknown_attempt),
        ),
    )
    found = conn.execute(
        sa.select(buffers.c.id, buffers.c.medium)
        .where(_LIVE, buffers.c.state != "orphaned", gone)
        .order_by(buffers.c.id)
        .limit(1000)
    ).all()
    for buffer_id, medium in found:
        if medium == "vram":
            orphan(conn, buffer_id, "its attempt has ended")
    _release(conn, buffers.c.id.in_(id_rows(conn, [row.id for row in found if row.medium != "vram"])))
    return [row.id for row in found]


def check_budgets(conn: sa.Connection) -> list[BudgetDifference]:
    """Budgets whose reserved bytes are not the sum of their live buffers; empty when all is well."""
    live = (
        sa.select(buffers.c.node_id, buffers.c.medium, sa.func.sum(buffers.c.bytes).label("live"))
        .where(_LIVE)
        .group_by(buffers.c.node_id, buffers.c.medium)
        .subquery()
    )
    query = sa.select(
        byte_budgets.c.node_id,
        byte_budgets.c.medium,
        byte_budgets.c.reserved_bytes,
        sa.func.coalesce(live.c.live, 0),
    ).outerjoin(
        live, sa.and_(live.c.node_id == byte_budgets.c.node_id, live.c.medium == byte_budgets.c.medium)
    )
    return [
        BudgetDifference(node_id, medium, reserved, int(total))
        for node_id, medium, reserved, total in conn.execute(query)
        if reserved != total
    ]


# literal, because a partial index serves only a condition that the planner can read
_LIVE = buffers.c.state != sa.literal_column("'released'")


def _of(node_id: str, medium: str) -> sa.ColumnElement[bool]:
    return sa.and_(byte_budgets.c.node_id == node_id, byte_budgets.c.medium == medium)


def _step(conn: sa.Connection, buffer_id: str, sources: tuple[str, ...], target: str, **more: Any) -> None:
    changed = conn.execute(
        buffers.update()
        .where(buffers.c.id == buffer_id, buffers.c.state.in_(sources))
        .values(state=target, changed_at=db_now(), **clean_json(more))
    )
    if not changed.rowcount:
        state = conn.scalar(sa.select(buffers.c.state).where(buffers.c.id == buffer_id))
        if state is None:
            raise NotFound(f"there is no buffer {buffer_id}")
        raise Conflict(f"buffer {buffer_id} is {state}; it cannot become {target}")


def _release(conn: sa.Connection, *which: sa.ColumnElement[bool]) -> int:
    freed = conn.execute(
        buffers.update()
        .where(_LIVE, *which)
        .values(state="released", changed_at=db_now())
        .returning(buffers.c.node_id, buffers.c.medium, buffers.c.bytes)
    ).all()
    totals: dict[tuple[str, str], int] = {}
    for node_id, medium, nbytes in freed:
        totals[node_id, medium] = totals.get((node_id, medium), 0) + nbytes
    for (node_id, medium), total in sorted(totals.items()):
        conn.execute(
            byte_budgets.update()
            .where(_of(node_id, medium))
            .values(reserved_bytes=byte_budgets.c.reserved_bytes - total)
        )
    return len(freed)
