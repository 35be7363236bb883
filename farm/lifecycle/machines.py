"""Nodes and slots: how they come, how they stand, how they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from farm import events
from farm.db.connect import db_now
from farm.db.rows import clean_json, insert_missing, json_rows, lock
from farm.db.tables import attempts, nodes, pools, slots, tasks
from farm.errors import Conflict, InvalidInput, NotFound
from farm.ids import new_id
from farm.lifecycle.slot_rows import lock_slots

SLOT_STATES = ("starting", "idle", "busy", "held", "draining", "dead")
NODE_STATES = ("up", "draining", "drained", "down")
# literal, because a partial index serves only a condition that the planner can read
_BUSY = tasks.c.state.in_([sa.literal_column("'dispatched'"), sa.literal_column("'running'")])


def register_node(conn: sa.Connection, name: str, info: Mapping[str, Any], incarnation: str) -> str:
    """A node's agent has started; the node's id, which stays the same for its name.

    ``incarnation`` names this life of the agent. A draining node stays draining.
    """
    known = conn.execute(
        lock(conn, sa.select(nodes.c.id, nodes.c.state).where(nodes.c.name == name))
    ).one_or_none()
    if known is None:
        node_id = new_id("node")
        made = conn.execute(
            insert_missing(conn, nodes)
            .values(
                id=node_id,
                name=name,
                state="up",
                incarnation=incarnation,
                info=clean_json(info),
                started_at=db_now(),
                seen_at=db_now(),
            )
            .returning(nodes.c.id)
        ).first()
        if made is None:
            # another agent of that name registered at the same moment: the later one wins
            return register_node(conn, name, info, incarnation)
        state = "up"
    else:
        node_id = known.id
        state = known.state if known.state in ("draining", "drained") else "up"
        conn.execute(
            nodes.update()
            .where(nodes.c.id == node_id)
            .values(
                state=state,
                incarnation=incarnation,
                info=clean_json(info),
                started_at=db_now(),
                seen_at=db_now(),
            )
        )
    events.emit(conn, "node.state", node_id=node_id, data={"state": state, "name": name})
    return node_id


def register_slot(
    conn: sa.Connection, node_id: str, name: str, wanted_pools: Sequence[str], device: Mapping[str, Any]
) -> str:
    """A slot of a node, whose process is about to start; its id, which stays the same for its name.

    The pools are made known if they are new. A slot that still holds tasks of an earlier life keeps them
    until its agent or the reconciler takes them back.
    """
    if not wanted_pools:
        raise InvalidInput(f"slot {name!r} serves no pool; give it at least one")
    for pool in wanted_pools:
        conn.execute(insert_missing(conn, pools).values(name=pool))
    values = {"pools": list(wanted_pools), "device": clean_json(device), "changed_at": db_now()}
    known = conn.scalar(
        lock(conn, sa.select(slots.c.id).where(slots.c.node_id == node_id, slots.c.name == name))
    )
    if known is not None:
        conn.execute(
            slots.update()
            .where(slots.c.id == known)
            .values(state="starting", incarnation=None, pid=None, warm=[], hold_reason=None, **values)
        )
        slot_id: str = known
    else:
        slot_id = new_id("slot")
        conn.execute(
            slots.insert().values(id=slot_id, node_id=node_id, name=name, state="starting", warm=[], **values)
        )
    _tell(conn, slot_id, node_id, "starting")
    return slot_id


def retire_slots(conn: sa.Connection, node_id: str, keep: Sequence[str]) -> list[str]:
    """Slots of a node that its agent does not have any more become dead; their ids."""
    gone = conn.scalars(
        slots.update()
        .where(slots.c.node_id == node_id, slots.c.id.not_in(list(keep)), slots.c.state != "dead")
        .values(state="dead", incarnation=None, pid=None, warm=[], changed_at=db_now())
        .returning(slots.c.id)
    ).all()
    for slot_id in gone:
        _tell(conn, slot_id, node_id, "dead")
    return list(gone)


def slot_ready(conn: sa.Connection, slot_id: str, incarnation: str, pid: int) -> None:
    """The slot's process takes tickets: it is idle, or busy while it still holds tasks.

    Also for a slot that has dropped a stale ticket. A held or draining slot of the same incarnation stays
    as it is. Raises :class:`farm.errors.NotFound` for an unknown slot.
    """
    row = _slot(conn, slot_id)
    held = conn.scalar(sa.select(sa.exists().where(tasks.c.slot_id == slot_id, _BUSY)))
    if row["state"] in ("held", "draining"):
        state = row["state"]
    else:
        state = "busy" if held else "idle"
    fresh = row["incarnation"] != incarnation
    values: dict[str, Any] = {"incarnation": incarnation, "pid": pid, "beat_at": db_now()}
    if fresh:
        values["warm"] = []
        if state in ("idle", "busy"):
            # what an earlier process was drained or held for is over
            values["hold_reason"] = None
    if state != row["state"] or fresh:
        values |= {"state": state, "changed_at": db_now()}
    conn.execute(slots.update().where(slots.c.id == slot_id).values(**values))
    if fresh:
        _tell(conn, slot_id, row["node_id"], state)


def describe_slot(
    conn: sa.Connection, slot_id: str, wanted_pools: Sequence[str], device: Mapping[str, Any]
) -> None:
    """What a slot serves and how it sits has changed, or is known better; its state stays."""
    for pool in wanted_pools:
        conn.execute(insert_missing(conn, pools).values(name=pool))
    conn.execute(
        slots.update()
        .where(slots.c.id == slot_id)
        .values(pools=list(wanted_pools), device=clean_json(device))
    )


def describe_node(conn: sa.Connection, node_id: str, info: Mapping[str, Any]) -> None:
    """What is told of a node has changed; its state stays."""
    conn.execute(nodes.update().where(nodes.c.id == node_id).values(info=clean_json(info)))


def hold_slot(conn: sa.Connection, slot_id: str, reason: str, *, idle_only: bool = False) -> bool:
    """Hold a slot that is free to take work, for this reason; False where it is not, or is held already.

    What runs in a held slot is paused; with ``idle_only`` a slot that runs something is left alone.
    """
    row = _slot(conn, slot_id)
    if row["state"] not in (("idle",) if idle_only else ("idle", "busy")):
        return False
    set_slot_state(conn, slot_id, "held", reason)
    return True


def reword_hold(conn: sa.Connection, slot_id: str, reason_head: str, reason: str) -> bool:
    """Bring the words of a hold up to date whose reason begins so; False where it is held for another."""
    row = _slot(conn, slot_id)
    if row["state"] != "held" or not (row["hold_reason"] or "").startswith(reason_head):
        return False
    set_slot_state(conn, slot_id, "held", reason)
    return True


def let_go_slot(conn: sa.Connection, slot_id: str, reason_head: str) -> bool:
    """Let a slot go that is held for a reason that begins so; False where it is held for another, or not."""
    row = _slot(conn, slot_id)
    if row["state"] != "held" or not (row["hold_reason"] or "").startswith(reason_head):
        return False
    set_slot_state(conn, slot_id, "idle")
    return True


def set_slot_state(conn: sa.Connection, slot_id: str, state: str, reason: str | None = None) -> None:
    """Hold a slot back, let it go, drain it or mark it dead. ``idle`` becomes ``busy`` while it holds tasks.

    ``reason`` is shown to people while the slot is held.
    """
    if state not in SLOT_STATES:
        raise InvalidInput(f"slot state is {state!r}, but must be one of {', '.join(SLOT_STATES)}")
    row = _slot(conn, slot_id)
    if state == "idle" and conn.scalar(sa.select(sa.exists().where(tasks.c.slot_id == slot_id, _BUSY))):
        state = "busy"
    if row["state"] == state and row["hold_reason"] == reason:
        return
    conn.execute(
        slots.update()
        .where(slots.c.id == slot_id)
        .values(state=state, hold_reason=reason, changed_at=db_now())
    )
    _tell(conn, slot_id, row["node_id"], state, reason)


def slot_died(conn: sa.Connection, slot_id: str, incarnation: str | None) -> list[tuple[str, int, int]]:
    """The slot's process is gone: ``(task_id, epoch, serial)`` of the attempts that it still had.

    Says nothing when another incarnation lives there by now. Reporting the attempts as lost is the
    caller's; tasks that were only dispatched stay for the next process, whose queue has their ticket.
    """
    row = _slot(conn, slot_id)
    if row["incarnation"] not in (None, incarnation):
        return []
    conn.execute(
        slots.update()
        .where(slots.c.id == slot_id)
        .values(
            state="dead",
            incarnation=None,
            pid=None,
            warm=[],
            restarts=slots.c.restarts + 1,
            changed_at=db_now(),
        )
    )
    _tell(conn, slot_id, row["node_id"], "dead")
    query = (
        sa.select(tasks.c.id, tasks.c.epoch, attempts.c.serial)
        .join(attempts, sa.and_(attempts.c.task_id == tasks.c.id, attempts.c.epoch == tasks.c.epoch))
        .where(tasks.c.slot_id == slot_id, _BUSY, tasks.c.state == "running")
        .order_by(attempts.c.serial)
    )
    return [(task_id, epoch, serial) for task_id, epoch, serial in conn.execute(query)]


def node_seen(conn: sa.Connection, node_id: str, beats: Mapping[str, float] | None = None) -> None:
    """The node's agent lives. ``beats`` maps slot ids to the age in seconds of each slot's last beat.

    A node that was thought down is up again.
    """
    back = conn.execute(
        nodes.update().where(nodes.c.id == node_id, nodes.c.state == "down").values(state="up")
    )
    if back.rowcount:
        events.emit(conn, "node.state", node_id=node_id, data={"state": "up"})
    conn.execute(nodes.update().where(nodes.c.id == node_id).values(seen_at=db_now()))
    if beats:
        lock_slots(conn, set(beats))
        rows = json_rows(
            conn, "beats", {"id": "text", "age": "float"}, [{"id": s, "age": a} for s, a in beats.items()]
        )
        conn.execute(slots.update().values(beat_at=db_now() - rows.c.age).where(slots.c.id == rows.c.id))


def node_down(conn: sa.Connection, unseen_s: float) -> list[str]:
    """Nodes that gave no sign of life for ``unseen_s`` seconds are down, and their slots dead; their ids.

    A node that people drain stays so, for its next agent as well; only its slots are dead then.
    """
    unseen = nodes.c.seen_at < db_now() - unseen_s
    gone = conn.execute(
        nodes.update()
        .where(nodes.c.state == "up", unseen)
        .values(state="down")
        .returning(nodes.c.id, nodes.c.name)
    ).all()
    for node_id, name in sorted(gone):
        events.emit(conn, "node.state", node_id=node_id, data={"state": "down", "name": name})
        retire_slots(conn, node_id, keep=[])
    drained = conn.scalars(
        sa.select(nodes.c.id).where(nodes.c.state.in_(["draining", "drained"]), unseen).order_by(nodes.c.id)
    ).all()
    silent = [node_id for node_id in drained if retire_slots(conn, node_id, keep=[])]
    return [*(node_id for node_id, _ in gone), *silent]


def drain_node(conn: sa.Connection, node_id: str) -> None:
    """No new work for this node; what runs there runs on. It is ``drained`` at once when nothing runs."""
    _set_node(conn, node_id, "draining")
    finish_draining(conn, node_id)


def finish_draining(conn: sa.Connection, node_id: str) -> bool:
    """Mark a draining node as drained when its slots hold nothing any more; whether it is."""
    busy = sa.exists().where(slots.c.node_id == node_id, tasks.c.slot_id == slots.c.id, _BUSY)
    changed = conn.execute(
        nodes.update()
        .where(nodes.c.id == node_id, nodes.c.state == "draining", ~busy)
        .values(state="drained")
    )
    if changed.rowcount:
        events.emit(conn, "node.state", node_id=node_id, data={"state": "drained"})
    return bool(changed.rowcount)


def resume_node(conn: sa.Connection, node_id: str) -> None:
    """A draining or drained node takes work again."""
    _set_node(conn, node_id, "up")


def set_warm(conn: sa.Connection, slot_id: str, keys: Sequence[str]) -> None:
    """What the slot has loaded, so that the scheduler prefers it for more of that."""
    conn.execute(slots.update().where(slots.c.id == slot_id).values(warm=list(keys)))


def _set_node(conn: sa.Connection, node_id: str, state: str) -> None:
    row = conn.execute(lock(conn, sa.select(nodes.c.state).where(nodes.c.id == node_id))).one_or_none()
    if row is None:
        raise NotFound(f"there is no node {node_id}")
    if row.state == "down":
        raise Conflict(f"node {node_id} is down; it can be drained or resumed when its agent runs again")
    if row.state != state:
        conn.execute(
            nodes.update().where(nodes.c.id == node_id).values(state=state, version=nodes.c.version + 1)
        )
        events.emit(conn, "node.state", node_id=node_id, data={"state": state})


def _slot(conn: sa.Connection, slot_id: str) -> Mapping[str, Any]:
    query = sa.select(slots.c.node_id, slots.c.state, slots.c.incarnation, slots.c.hold_reason)
    row = conn.execute(lock(conn, query.where(slots.c.id == slot_id))).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no slot {slot_id}")
    return dict(row)


def _tell(conn: sa.Connection, slot_id: str, node_id: str, state: str, reason: str | None = None) -> None:
    data = {"state": state} | ({"reason": reason} if reason else {})
    events.emit(conn, "slot.state", slot_id=slot_id, node_id=node_id, data=data)
