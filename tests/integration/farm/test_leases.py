"""Leases, and tasks that come back without a report."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from farm.db.connect import Database, db_now
from farm.db.tables import attempts, nodes, slots, tasks
from farm.lifecycle import leases
from farm.lifecycle.commands import cancel_job
from farm.states import AttemptState
from tests.integration.farm.world import World, settings, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def _expire(world: World, task_id: str) -> None:
    with world.db.write() as conn:
        conn.execute(tasks.update().where(tasks.c.id == task_id).values(lease_expires_at=db_now() - 1))


def test_leases_are_extended_on_the_databases_clock(world: World) -> None:
    ids = world.tasks(world.job(step(frames="1-3")))
    bundle = world.begin(*ids)
    for task in bundle:
        _expire(world, task.task_id)
    with world.db.write() as conn:
        held = [(task.task_id, task.epoch) for task in bundle]
        kept = leases.extend(conn, world.node_id, held, 30.0, lock_wait_s=4.0)
    assert kept == set(ids)
    with world.db.read() as conn:
        left = conn.scalars(sa.select(tasks.c.lease_expires_at - db_now())).all()
        assert leases.expired(conn) == []
    assert all(20 < seconds <= 30 for seconds in left)


def test_a_lease_is_not_extended_for_what_has_gone_on(world: World) -> None:
    job_id = world.job(step(frames="1-3"))
    one, two, three = world.begin(*world.tasks(job_id))
    world.end(one)
    with world.db.write() as conn:
        leases.lose(conn, [(two.task_id, two.epoch)], error="gone", settings=world.config)
    (again,) = world.begin(two.task_id, slot=1)
    with world.db.write() as conn:
        held = [(t.task_id, t.epoch) for t in (one, two, three)]
        assert leases.extend(conn, world.node_id, held, 30.0) == {three.task_id}
        assert leases.extend(conn, world.node_id, [(again.task_id, again.epoch)], 30.0) == {again.task_id}
        assert leases.extend(conn, world.node_id, [("task_nope", 1)], 30.0) == set()
        assert leases.extend(conn, world.node_id, [], 30.0) == set()


def test_an_extension_waits_for_a_lock_only_so_long(postgres_db: Database) -> None:
    world = World(postgres_db).build()
    (task,) = world.begin(*world.tasks(world.job(step(frames="1"))))
    with postgres_db.write() as holder:
        holder.execute(sa.select(tasks.c.id).with_for_update())
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"), postgres_db.write() as conn:
            leases.extend(conn, world.node_id, [(task.task_id, task.epoch)], 30.0, lock_wait_s=0.2)
    with postgres_db.write() as conn:
        assert leases.extend(conn, world.node_id, [(task.task_id, task.epoch)], 30.0, lock_wait_s=0.2)


def test_an_expired_lease_is_found_with_the_last_sign_of_its_node(world: World) -> None:
    (task,) = world.begin(*world.tasks(world.job(step(frames="1"))))
    with world.db.read() as conn:
        assert leases.expired(conn) == []
    _expire(world, task.task_id)
    with world.db.read() as conn:
        (found,) = leases.expired(conn)
        seen = conn.scalar(sa.select(nodes.c.seen_at))
    assert (found.task_id, found.epoch, found.slot_id, found.node_id) == (
        task.task_id, task.epoch, world.slot_ids[0], world.node_id,
    )  # fmt: skip
    assert found.node_seen_at == seen
    assert found.expired_s >= 1


@pytest.mark.parametrize(
    ("more", "state", "charged"),
    [
        ({"charged": True}, "failed", 1),
        ({"charged": False}, "ready", 0),
        ({"node_lost": True}, "ready", 0),
    ],
)
def test_a_lost_task_comes_back_by_the_rules(
    world: World, more: dict[str, bool], state: str, charged: int
) -> None:
    job_id = world.job(step(frames="1", max_retries=0))
    (task,) = world.begin(*world.tasks(job_id))
    with world.db.write() as conn:
        lost = leases.lose(
            conn, [(task.task_id, task.epoch)], error="the lease was over", settings=world.config, **more
        )
    assert lost == [task.task_id]
    row = world.task(task.task_id)
    assert (row.state, row.charged) == (state, charged)
    with world.db.read() as conn:
        attempt = conn.execute(sa.select(attempts)).one()
        assert conn.scalar(sa.select(slots.c.state).where(slots.c.id == world.slot_ids[0])) == "idle"
    assert (attempt.state, attempt.error, bool(attempt.charged)) == (
        "lost",
        "the lease was over",
        bool(charged),
    )
    assert attempt.ended_at is not None
    world.check()


def test_only_what_runs_under_that_epoch_can_be_lost(world: World) -> None:
    job_id = world.job(step(frames="1-2"))
    one, two = world.begin(*world.tasks(job_id))
    world.end(one)
    with world.db.write() as conn:
        held = [(one.task_id, one.epoch), (two.task_id, two.epoch + 1), ("task_nope", 1)]
        assert leases.lose(conn, held, error="gone", settings=world.config) == []
    assert world.states(job_id) == ["done", "running"]
    world.check()


def test_a_lost_task_of_a_cancelled_job_is_cancelled(world: World) -> None:
    job_id = world.job(step(frames="1", max_retries=5))
    (task,) = world.begin(*world.tasks(job_id))
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    with world.db.write() as conn:
        leases.lose(conn, [(task.task_id, task.epoch)], error="gone", settings=world.config)
    assert (world.states(job_id), world.state(job_id)) == (["cancelled"], "cancelled")
    world.check()


def test_unbegun_tasks_of_another_slot_or_epoch_stay(world: World) -> None:
    job_id = world.job(step(frames="1-2"))
    one, two = world.begin(*world.tasks(job_id))
    with world.db.write() as conn:
        leases.return_unbegun(conn, world.slot_ids[1], [(one.task_id, one.epoch)])
        leases.return_unbegun(conn, world.slot_ids[0], [(two.task_id, two.epoch - 1)])
        leases.return_unbegun(conn, world.slot_ids[0], [])
    assert world.states(job_id) == ["running", "running"]
    world.check()


def test_unbegun_tasks_of_a_cancelled_job_are_cancelled(world: World) -> None:
    job_id = world.job(step(frames="1-2"))
    one, two = world.begin(*world.tasks(job_id))
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    with world.db.write() as conn:
        leases.return_unbegun(conn, world.slot_ids[0], [(two.task_id, two.epoch)])
    assert world.states(job_id) == ["running", "cancelled"]
    world.end(one, AttemptState.CANCELLED)
    assert world.state(job_id) == "cancelled"
    world.check()


def test_a_lease_and_a_loss_at_once_never_both_win(db: Database) -> None:
    world = World(db, settings()).build()
    for _ in range(5):
        (task,) = world.begin(*world.tasks(world.job(step(frames="1"))))
        held = [(task.task_id, task.epoch)]
        kept: list[set[str]] = []
        lost: list[list[str]] = []

        def extend(held: list[tuple[str, int]] = held, kept: list[set[str]] = kept) -> None:
            with db.write() as conn:
                kept.append(leases.extend(conn, world.node_id, held, 30.0))

        def lose(held: list[tuple[str, int]] = held, lost: list[list[str]] = lost) -> None:
            with db.write() as conn:
                lost.append(leases.lose(conn, held, error="x", charged=False, settings=world.config))

        threads = [threading.Thread(target=extend), threading.Thread(target=lose)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert lost == [[task.task_id]]
        assert world.task(task.task_id).state == "ready"
        with db.write() as conn:
            assert leases.extend(conn, world.node_id, held, 30.0) == set()
    world.check()
