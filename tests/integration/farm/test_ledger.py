"""The ledger of buffers, and the byte budgets."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm import ledger
from farm.db.connect import Database
from farm.db.tables import buffers, byte_budgets, events
from farm.errors import Conflict, InvalidInput, NotFound, OutOfSpace
from farm.records import ClaimedTask
from farm.states import AttemptState
from tests.integration.farm.world import World, step


@pytest.fixture
def world(db: Database) -> World:
    world = World(db).build()
    with db.write() as conn:
        for medium in ("shm", "vram", "store"):
            ledger.set_budget(conn, world.node_id, medium, 1000)
    return world


def _reserve(
    world: World, nbytes: int, medium: str = "shm", task: ClaimedTask | None = None, **more: Any
) -> str | None:
    if task is not None:
        more |= {"task_id": task.task_id, "attempt_id": task.attempt_id, "epoch": task.epoch}
    purpose = more.pop("purpose", "frame staging")
    with world.db.write() as conn:
        return ledger.reserve(conn, world.node_id, world.slot_ids[0], medium, nbytes, purpose, **more)


def _state(world: World, buffer_id: str | None) -> Any:
    with world.db.read() as conn:
        return conn.scalar(sa.select(buffers.c.state).where(buffers.c.id == buffer_id))


def _reserved(world: World, medium: str = "shm") -> int:
    with world.db.read() as conn:
        return int(
            conn.scalar(sa.select(byte_budgets.c.reserved_bytes).where(byte_budgets.c.medium == medium)) or 0
        )


def test_a_reservation_past_the_budget_waits_until_there_is_room(world: World) -> None:
    first = _reserve(world, 700)
    assert first is not None
    assert _reserve(world, 301) is None
    assert _reserve(world, 300) is not None
    assert _reserved(world) == 1000
    with world.db.write() as conn:
        assert ledger.release(conn, first)
        assert not ledger.release(conn, first)
    assert _reserved(world) == 300
    assert _reserve(world, 700) is not None
    world.check()


def test_what_could_never_fit_is_refused_at_once(world: World) -> None:
    with pytest.raises(OutOfSpace, match=r"1,001 bytes of shm.*whole budget is 1,000"):
        _reserve(world, 1001)
    with pytest.raises(NotFound, match="no budget for pinned"):
        _reserve(world, 1, "pinned")
    with pytest.raises(InvalidInput):
        _reserve(world, -1)
    assert _reserved(world) == 0


def test_a_buffer_goes_through_its_states(world: World) -> None:
    buffer_id = _reserve(world, 10, dtype="float16", shape=[3, 64, 64])
    assert buffer_id is not None
    with world.db.write() as conn:
        ledger.fill(conn, buffer_id, sha256="a" * 64)
        ledger.drain(conn, buffer_id)
    assert _state(world, buffer_id) == "draining"
    with pytest.raises(Conflict, match="is draining; it cannot become filled"), world.db.write() as conn:
        ledger.fill(conn, buffer_id)
    with pytest.raises(NotFound), world.db.write() as conn:
        ledger.fill(conn, "buf_nope")
    with world.db.read() as conn:
        row = conn.execute(sa.select(buffers)).one()
    assert (row.dtype, row.shape, row.sha256, row.bytes) == ("float16", [3, 64, 64], "a" * 64, 10)


def test_a_smaller_budget_leaves_what_is_reserved(world: World) -> None:
    _reserve(world, 600)
    with world.db.write() as conn:
        ledger.set_budget(conn, world.node_id, "shm", 500)
    assert _reserve(world, 1) is None
    with pytest.raises(InvalidInput, match="must be one of vram"), world.db.write() as conn:
        ledger.set_budget(conn, world.node_id, "tape", 1)
    with pytest.raises(InvalidInput, match="0 or more"), world.db.write() as conn:
        ledger.set_budget(conn, world.node_id, "shm", -1)
    world.check()


def test_buffers_of_ended_attempts_are_freed_and_vram_is_shown_as_orphaned(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    world.end(task)
    # reserved by a slot that had not heard that its attempt was over
    shm, vram = _reserve(world, 10, "shm", task), _reserve(world, 20, "vram", task)
    mine = _reserve(world, 30, "shm")
    with world.db.write() as conn:
        assert sorted(ledger.reconcile_orphans(conn)) == sorted(filter(None, [shm, vram]))
    assert [_state(world, b) for b in (shm, vram, mine)] == ["released", "orphaned", "reserved"]
    assert (_reserved(world), _reserved(world, "vram")) == (30, 20)
    with world.db.read() as conn:
        assert conn.scalars(sa.select(events.c.type).where(events.c.type == "buffer.orphaned")).all()
    world.check()
    with world.db.write() as conn:
        assert ledger.reconcile_orphans(conn) == []
        assert vram is not None
        assert ledger.release(conn, vram)
    world.check()


def test_a_checkpoint_lives_as_long_as_its_task_is_open(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    kept = _reserve(world, 50, "store", task, purpose=ledger.CHECKPOINT)
    staging = _reserve(world, 10, "shm", task)
    world.end(task, AttemptState.PARKED, checkpoint="c" * 64)
    assert (_state(world, kept), _state(world, staging)) == ("reserved", "released")
    with world.db.write() as conn:
        assert ledger.reconcile_orphans(conn) == []
    (again,) = world.begin(task.task_id)
    world.end(again)
    assert _state(world, kept) == "released"
    world.check()


def test_waiting_is_said_with_what_is_missing(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    with world.db.write() as conn:
        ledger.waiting(conn, world.node_id, world.slot_ids[0], "shm", 123, task.task_id)
    with world.db.read() as conn:
        row = conn.execute(sa.select(events).where(events.c.type == "buffer.waiting")).one()
    assert (row.data, row.job_id, row.task_id) == ({"medium": "shm", "bytes": 123}, job_id, task.task_id)


def test_a_budget_that_lies_is_found(world: World) -> None:
    _reserve(world, 10)
    with world.db.write() as conn:
        conn.execute(byte_budgets.update().where(byte_budgets.c.medium == "shm").values(reserved_bytes=7))
        (found,) = ledger.check_budgets(conn)
    assert (found.medium, found.reserved_bytes, found.live_bytes) == ("shm", 7, 10)
