"""Rows of slots as the life of tasks touches them: locked first, idle again when nothing is left."""

from __future__ import annotations

import sqlalchemy as sa

from farm.db.connect import db_now
from farm.db.rows import lock
from farm.db.tables import slots, tasks


def lock_slots(conn: sa.Connection, slot_ids: set[str]) -> None:
    """Lock these slots, in id order; comes before every other lock."""
    if conn.dialect.name == "postgresql" and slot_ids:
        query = sa.select(slots.c.id).where(slots.c.id.in_(sorted(slot_ids))).order_by(slots.c.id)
        conn.execute(lock(conn, query))


def idle_slots(conn: sa.Connection, slot_ids: set[str]) -> None:
    """Busy slots that hold no task any more are idle."""
    if slot_ids:
        held = sa.exists().where(tasks.c.slot_id == slots.c.id, tasks.c.state.in_(_HELD))
        conn.execute(
            slots.update()
            .where(slots.c.id.in_(sorted(slot_ids)), slots.c.state == "busy", ~held)
            .values(state="idle", changed_at=db_now())
        )


# literal, because a partial index serves only a condition that the planner can read
_HELD: list[sa.ColumnElement[str]] = [sa.literal_column("'dispatched'"), sa.literal_column("'running'")]
