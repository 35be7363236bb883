"""How a node's agent makes itself, its slots and its budgets known to the farm."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
import structlog

from farm import ledger
from farm.db import tables as t
from farm.db.connect import Database
from farm.lifecycle import machines
from farm.settings import Settings
from workers import repository
from workers.node_folders import NodeFolders
from workers.obituary import lose_all, replay
from workers.patience import is_passing
from workers.placement import Seating, device_of, node_info

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """Who we are in the database."""

    node_id: str
    incarnation: str
    slots: dict[str, str]
    """Slot ids by slot name."""


def register(
    db: Database, settings: Settings, seating: Seating, folders: NodeFolders, incarnation: str
) -> Registration:
    """Register this life of the agent; what an agent before it left undone is told or given back first."""
    # an agent before us was killed: its slots are dead, but what they spooled still counts
    for spool in sorted(folders.spool.glob("*.spool")):
        _replay_left(db, settings, spool)
    with db.write() as conn:
        node_id = machines.register_node(conn, seating.config.name, node_info(seating), incarnation)
        # in the same transaction, so that nobody sees this node alive with tasks that nobody runs
        left = repository.slot_states(conn, node_id)
        lose_all(conn, settings, {slot_id: row.incarnation for slot_id, row in left.items()})
        slots = {
            slot.name: machines.register_slot(conn, node_id, slot.name, slot.pools, device_of(seating, slot))
            for slot in seating.plan.slots
        }
        machines.retire_slots(conn, node_id, keep=list(slots.values()))
        for medium, size in budgets(settings, seating).items():
            ledger.set_budget(conn, node_id, medium, size)
    return Registration(node_id, incarnation, slots)


def budgets(settings: Settings, seating: Seating) -> dict[str, int]:
    """Bytes per medium: what farm.toml says, else the slots' video memory and the settings."""
    return (
        {
            "spool": settings.spool_budget,
            "shm": settings.shm_budget,
            "store": settings.store_budget,
            "pinned": settings.pinned_budget,
        }
        | vram_budget(seating)
        | seating.config.budgets
    )


def register_plan(
    conn: sa.Connection, settings: Settings, known: Registration, seating: Seating
) -> dict[str, str]:
    """The node is to be as this plan has it: rows for its new slots; the ids of all slots by name."""
    slots = dict(known.slots)
    machines.describe_node(conn, known.node_id, node_info(seating))
    for slot in seating.plan.slots:
        if slot.name not in slots:
            device = device_of(seating, slot)
            slots[slot.name] = machines.register_slot(conn, known.node_id, slot.name, slot.pools, device)
    wanted = budgets(settings, seating)
    # a node without GPU slots has no video memory to give any more
    given = conn.scalars(sa.select(t.byte_budgets.c.medium).where(t.byte_budgets.c.node_id == known.node_id))
    for medium, size in (dict.fromkeys(given, 0) | wanted).items():
        ledger.set_budget(conn, known.node_id, medium, size)
    return slots


def _replay_left(db: Database, settings: Settings, spool: Path) -> None:
    slot_id = spool.name.split(".")[0]
    try:
        replay(db, settings, spool, slot_id)
    except Exception as error:
        if is_passing(error):
            raise
        log.exception("a spool could not be replayed", spool=spool.name)
        spool.rename(spool.with_suffix(".refused"))


def vram_budget(seating: Seating) -> dict[str, int]:
    """Video memory that the slots may reserve: that of their GPUs and MIG instances, each counted once."""
    sizes: dict[str, int] = {}
    for slot in seating.plan.slots:
        if slot.mig:
            sizes[slot.mig] = seating.memory_bytes(slot)
        else:
            sizes |= {uuid: seating.machine.gpu(uuid).memory_bytes for uuid in slot.gpus}
    return {"vram": sum(sizes.values())} if sizes else {}
