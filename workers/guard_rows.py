"""What the guard writes into the database: holds of slots with their reason, its events, its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.rows import clean_json, lock
from farm.db.tables import nodes, slots
from farm.lifecycle import machines

PREFIX = "guard: "
"""How the reasons of the guard's holds begin; it releases no others."""


def hold_slots(conn: sa.Connection, slot_ids: Sequence[str], reason: str) -> None:
    """Hold slots that take work or do some; those in any other state stay as they are."""
    for slot_id, state, _ in _rows(conn, slot_ids):
        if state in ("idle", "busy"):
            machines.set_slot_state(conn, slot_id, "held", reason)


def release_slots(conn: sa.Connection, slot_ids: Sequence[str]) -> None:
    """Let go of the slots among these that the guard holds; busy where they still have a task."""
    for slot_id, state, reason in _rows(conn, slot_ids):
        if state == "held" and (reason or "").startswith(PREFIX):
            machines.set_slot_state(conn, slot_id, "idle")


def record(conn: sa.Connection, node_id: str, type_: str, data: Mapping[str, Any]) -> None:
    """One decision of the guard as an event."""
    events.emit(conn, type_, node_id=node_id, data=data)


def show(conn: sa.Connection, node_id: str, status: Mapping[str, Any]) -> None:
    """The guard's status, for ``farm neighbours`` and the dashboard."""
    info = conn.scalar(lock(conn, sa.select(nodes.c.info).where(nodes.c.id == node_id)))
    if info is not None:
        told = {**info, "guard": clean_json(status)}
        conn.execute(nodes.update().where(nodes.c.id == node_id).values(info=told))


def _rows(conn: sa.Connection, slot_ids: Sequence[str]) -> list[tuple[str, str, str | None]]:
    query = sa.select(slots.c.id, slots.c.state, slots.c.hold_reason)
    found = conn.execute(lock(conn, query.where(slots.c.id.in_(sorted(slot_ids))).order_by(slots.c.id)))
    return [(row.id, row.state, row.hold_reason) for row in found]
