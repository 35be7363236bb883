"""What follows from what the auditor saw of a slot's GPU: holds, buffer rows, events. A real database."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import Database
from farm.lifecycle import machines
from gpu_pinning import Finding
from tests.integration.farm.world import World
from workers.auditing import News
from workers.findings import FindingsDesk
from workers.link import DatabaseLink

GIB = 1 << 30


class Desk:
    """A desk whose link does what it is told at once; ``retired`` are the drains that it asked for."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.world = World(db).build(slots=1)
        self.slot_id = self.world.slot_ids[0]
        self.woken: list[str] = []
        self.retired: list[str] = []
        self.fenced_anew = 0
        link = DatabaseLink.__new__(DatabaseLink)
        link._db = db
        link._add = lambda what, once: once()  # type: ignore[method-assign]
        link._wake = self.woken.append
        link.registration = SimpleNamespace(node_id=self.world.node_id)  # type: ignore[assignment]
        self.desk = FindingsDesk(link, lambda slot, reason: self.retired.append(reason))

    def fence_anew(self) -> None:
        self.fenced_anew += 1

    def hears(self, **news: Any) -> None:
        slot = SimpleNamespace(
            slot_id=self.slot_id,
            name="cpu0",
            device={"kind": "cuda"},
            seat=SimpleNamespace(pools=("render",)),
            fence_anew=self.fence_anew,
        )
        self.desk.act(News(self.slot_id, **news), {self.slot_id: slot})  # type: ignore[dict-item]

    def slot(self) -> tuple[str, str | None]:
        with self.db.read() as conn:
            row = conn.execute(sa.select(t.slots.c.state, t.slots.c.hold_reason)).one()
        return row.state, row.hold_reason

    def orphans(self) -> list[tuple[str, int, str]]:
        query = sa.select(t.buffers.c.medium, t.buffers.c.bytes, t.buffers.c.note).where(
            t.buffers.c.state == "orphaned"
        )
        with self.db.read() as conn:
            return [tuple(row) for row in conn.execute(query)]

    def reserved(self) -> int:
        query = sa.select(t.byte_budgets.c.reserved_bytes).where(t.byte_budgets.c.medium == "vram")
        with self.db.read() as conn:
            return conn.scalar(query) or 0


@pytest.fixture
def desk(sqlite_db: Database) -> Desk:
    return Desk(sqlite_db)


def test_a_gpu_in_use_by_a_stranger_holds_its_slot_until_the_stranger_is_gone(desk: Desk) -> None:
    desk.hears(busy="used by a process (pid 99)")
    assert desk.slot() == ("held", "its GPU is in use: used by a process (pid 99)")
    assert desk.woken == []
    desk.hears(busy="")
    assert desk.slot() == ("idle", None)
    assert desk.woken == ["scheduler"], "it may have work at once"


def test_a_strangers_leaving_does_not_lift_a_hold_for_another_reason(desk: Desk) -> None:
    with desk.db.write() as conn:
        machines.hold_slot(conn, desk.slot_id, "guard: decode-0 is over its budget")
    desk.hears(busy="used by a process (pid 99)")
    desk.hears(busy="")
    assert desk.slot() == ("held", "guard: decode-0 is over its budget")


def test_video_memory_of_a_dead_slot_is_an_orphan_with_its_holder_until_it_is_free(desk: Desk) -> None:
    desk.hears(stuck=("GPU-1 is held by compute process 4711", 3 * GIB))
    assert desk.slot() == ("dead", "its GPU cannot be leased: GPU-1 is held by compute process 4711")
    assert desk.orphans() == [("vram", 3 * GIB, "GPU-1 is held by compute process 4711")]
    assert desk.reserved() == 3 * GIB
    # told anew with another holder: one row, not two
    desk.hears(stuck=("GPU-1 is held by compute process 4712", GIB))
    assert desk.orphans() == [("vram", GIB, "GPU-1 is held by compute process 4712")]
    assert desk.reserved() == GIB
    desk.hears(freed=True)
    assert (desk.orphans(), desk.reserved()) == ([], 0)


def test_memory_that_cannot_be_counted_keeps_the_slot_dead_and_makes_no_row(desk: Desk) -> None:
    desk.hears(stuck=("GPU GPU-1 is gone: GPU is lost", 0))
    assert desk.slot() == ("dead", "its GPU cannot be leased: GPU GPU-1 is gone: GPU is lost")
    assert desk.orphans() == []


@pytest.mark.parametrize("drains", [True, False])
def test_what_is_found_is_told_and_drains_where_it_has_to(desk: Desk, drains: bool) -> None:
    finding = Finding(
        kind="limits", slot="cpu0", subject="pids.max", wanted="50", found="70", drains=drains, detail="why"
    )
    desk.hears(findings=(finding,))
    with desk.db.read() as conn:
        told = conn.scalars(sa.select(t.events.c.data).where(t.events.c.type == "slot.audit")).all()
        device = conn.scalar(sa.select(t.slots.c.device))
    assert [each["findings"][0]["found"] for each in told] == ["70"]
    assert device["audit"][0]["subject"] == "pids.max"
    assert desk.retired == (["audit: limits: pids.max: 70 (why)"] if drains else [])
    assert desk.fenced_anew == drains, "a fence that was tampered with is put up again"
    desk.hears(findings=())
    with desk.db.read() as conn:
        assert "audit" not in conn.scalar(sa.select(t.slots.c.device))
