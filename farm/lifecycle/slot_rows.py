"""Rows of slots as the life of tasks touches them: locked first, idle again when nothing is left."""

from __future__ import annotations

import sqlalchemy as sa

from farm.db.connect import db_now
from farm.db.rows import lock
from farm.db.tables import slots, tasks


def lock_slots(conn: sa.Connection, slot_ids: set[str]) -> dict[str, str]:
    """Lock these slots, in id order; comes before every other lock. The node of each."""
    if not slot_ids:
        return {}
    query = sa.select(slots.c.id, slots.c.node_id).where(slots.c.id.in_(sorted(slot_ids)))
    return {row.id: row.node_id for row in conn.execute(lock(conn, query.order_by(slots.c.id)))}


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
