"""A running task's checkpoint: stored bytes that the next attempt resumes from, and their buffer."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from farm import ledger
from farm.db.tables import tasks
from farm.lifecycle.publish import record_contents


@dataclass(frozen=True, slots=True)
class Owner:
    """The attempt that saves, and where it runs."""

    task_id: str
    epoch: int
    attempt_id: str
    node_id: str
    slot_id: str


def save_checkpoint(conn: sa.Connection, owner: Owner, sha256: str, nbytes: int) -> bool | None:
    """Make stored bytes the task's checkpoint, in place of an earlier one.

    ``False`` when the attempt's epoch is over; ``None`` while the node's budget of stored bytes has no room
    (nothing is changed then). Raises :class:`farm.errors.OutOfSpace` when it could never fit.
    """
    with conn.begin_nested() as savepoint:
        record_contents(conn, [(sha256, nbytes)])
        kept = conn.execute(
            tasks.update()
            .where(tasks.c.id == owner.task_id, tasks.c.epoch == owner.epoch, tasks.c.state == "running")
            .values(checkpoint=sha256)
        )
        if not kept.rowcount:
            savepoint.rollback()
            return False
        # the old one's bytes make room for the new one's
        ledger.release_checkpoints(conn, [owner.task_id])
        buffer_id = ledger.reserve(
            conn,
            owner.node_id,
            owner.slot_id,
            "store",
            nbytes,
            ledger.CHECKPOINT,
            task_id=owner.task_id,
            attempt_id=owner.attempt_id,
            epoch=owner.epoch,
        )
        if buffer_id is None:
            savepoint.rollback()
            return None
        ledger.fill(conn, buffer_id, sha256=sha256)
        return True
