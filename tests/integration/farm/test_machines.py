"""Nodes and slots come, stand and go."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm.db.connect import Database, db_now
from farm.db.tables import nodes, pools, slots
from farm.errors import Conflict, InvalidInput, NotFound
from farm.lifecycle import machines
from tests.integration.farm.world import World, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def _slot(world: World, index: int = 0) -> Any:
    with world.db.read() as conn:
        return conn.execute(sa.select(slots).where(slots.c.id == world.slot_ids[index])).one()


def _node(world: World) -> Any:
    with world.db.read() as conn:
        return conn.execute(sa.select(nodes)).one()


def test_a_node_and_its_slots_keep_their_ids_over_a_restart(world: World) -> None:
    with world.db.write() as conn:
        assert machines.register_node(conn, "node-1", {"cores": 8}, "agent-2") == world.node_id
        slot_id = machines.register_slot(conn, world.node_id, "cpu0", ["encode", "render"], {"kind": "cpu"})
    assert slot_id == world.slot_ids[0]
    row = _slot(world)
    assert (row.state, row.pools, row.incarnation, row.pid) == ("starting", ["encode", "render"], None, None)
    assert (_node(world).incarnation, _node(world).info) == ("agent-2", {"cores": 8})
    with world.db.read() as conn:
        assert set(conn.scalars(sa.select(pools.c.name))) == {"encode", "render"}


def test_a_slot_that_serves_no_pool_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="serves no pool"), world.db.write() as conn:
        machines.register_slot(conn, world.node_id, "x", [], {})


def test_a_slot_that_still_holds_a_task_is_busy_when_it_is_ready_again(world: World) -> None:
    (task,) = world.begin(*world.tasks(world.job(step(frames="1"))))
    with world.db.write() as conn:
        machines.slot_ready(conn, world.slot_ids[0], "inc-2", 5)
    row = _slot(world)
    assert (row.state, row.incarnation, row.pid, row.warm) == ("busy", "inc-2", 5, [])
    world.end(task)
    assert _slot(world).state == "idle"
    world.check()


def test_a_dead_slot_says_what_it_had_and_counts_its_restarts(world: World) -> None:
    bundle = world.begin(*world.tasks(world.job(step(frames="1-2"))))
    with world.db.write() as conn:
        held = machines.slot_died(conn, world.slot_ids[0], world.incarnation)
    assert held == [(task.task_id, task.epoch, task.serial) for task in bundle]
    row = _slot(world)
    assert (row.state, row.restarts, row.incarnation) == ("dead", 1, None)


def test_the_death_of_an_older_life_says_nothing(world: World) -> None:
    world.begin(*world.tasks(world.job(step(frames="1"))))
    with world.db.write() as conn:
        machines.slot_ready(conn, world.slot_ids[0], "inc-2", 5)
        assert machines.slot_died(conn, world.slot_ids[0], "inc") == []
    assert _slot(world).state == "busy"


def test_a_held_slot_stays_held_when_it_says_that_it_is_ready(world: World) -> None:
    with world.db.write() as conn:
        machines.set_slot_state(conn, world.slot_ids[0], "held", "the guard holds the farm back")
        machines.slot_ready(conn, world.slot_ids[0], world.incarnation, 5)
    row = _slot(world)
    assert (row.state, row.hold_reason) == ("held", "the guard holds the farm back")
    with world.db.write() as conn:
        machines.set_slot_state(conn, world.slot_ids[0], "idle")
    assert (_slot(world).state, _slot(world).hold_reason) == ("idle", None)


def test_a_slot_let_go_while_it_works_is_busy(world: World) -> None:
    world.begin(*world.tasks(world.job(step(frames="1"))))
    with world.db.write() as conn:
        machines.set_slot_state(conn, world.slot_ids[0], "held", "guard")
        machines.set_slot_state(conn, world.slot_ids[0], "idle")
    assert _slot(world).state == "busy"
    world.check()


def test_states_and_slots_that_do_not_exist_are_refused(world: World) -> None:
    with world.db.write() as conn:
        with pytest.raises(InvalidInput, match="must be one of starting, idle"):
            machines.set_slot_state(conn, world.slot_ids[0], "sleepy")
        for call in (
            lambda: machines.set_slot_state(conn, "slot_nope", "idle"),
            lambda: machines.slot_ready(conn, "slot_nope", "i", 1),
            lambda: machines.drain_node(conn, "node_nope"),
        ):
            with pytest.raises(NotFound):
                call()


def test_draining_waits_for_what_runs(world: World) -> None:
    (task,) = world.begin(*world.tasks(world.job(step(frames="1"))))
    with world.db.write() as conn:
        machines.drain_node(conn, world.node_id)
        assert not machines.finish_draining(conn, world.node_id)
    assert _node(world).state == "draining"
    world.end(task)
    with world.db.write() as conn:
        assert machines.finish_draining(conn, world.node_id)
    assert _node(world).state == "drained"
    with world.db.write() as conn:
        machines.register_node(conn, "node-1", {}, "agent-2")
    assert _node(world).state == "drained", "a restart of its agent does not undo a person's wish"
    with world.db.write() as conn:
        machines.resume_node(conn, world.node_id)
    assert _node(world).state == "up"


def test_a_silent_node_is_down_and_up_again_when_it_speaks(world: World) -> None:
    with world.db.write() as conn:
        assert machines.node_down(conn, 30.0) == []
        conn.execute(nodes.update().values(seen_at=db_now() - 60))
        assert machines.node_down(conn, 30.0) == [world.node_id]
        assert machines.node_down(conn, 30.0) == []
    assert (_node(world).state, _slot(world).state) == ("down", "dead")
    with pytest.raises(Conflict, match="is down"), world.db.write() as conn:
        machines.drain_node(conn, world.node_id)
    with world.db.write() as conn:
        machines.node_seen(conn, world.node_id)
    assert _node(world).state == "up"


def test_a_drained_node_that_goes_silent_and_comes_back_is_still_drained(world: World) -> None:
    with world.db.write() as conn:
        machines.drain_node(conn, world.node_id)
        conn.execute(nodes.update().values(seen_at=db_now() - 60))
        assert machines.node_down(conn, 30.0) == [world.node_id]
        assert machines.node_down(conn, 30.0) == [], "once"
    assert (_node(world).state, _slot(world).state) == ("drained", "dead")
    with world.db.write() as conn:
        machines.node_seen(conn, world.node_id)
        machines.register_node(conn, "node-1", {"cores": 8}, "agent-2")
        machines.slot_ready(conn, world.slot_ids[0], "another", 1)
    assert (_node(world).state, _slot(world).state) == ("drained", "idle")
    with world.db.write() as conn:
        machines.resume_node(conn, world.node_id)
    assert _node(world).state == "up"


def test_beats_are_written_as_ages(world: World) -> None:
    with world.db.write() as conn:
        machines.node_seen(conn, world.node_id, {world.slot_ids[0]: 5.0, world.slot_ids[1]: 0.0})
    with world.db.read() as conn:
        ages = conn.scalars(sa.select(db_now() - slots.c.beat_at).order_by(slots.c.name)).all()
    assert 5 <= ages[0] < 60
    assert -1 < ages[1] < 55


def test_slots_that_an_agent_no_longer_has_are_retired(world: World) -> None:
    with world.db.write() as conn:
        assert machines.retire_slots(conn, world.node_id, keep=world.slot_ids[:1]) == world.slot_ids[1:]
    assert (_slot(world, 0).state, _slot(world, 1).state) == ("idle", "dead")


def test_what_a_slot_has_loaded_is_known(world: World) -> None:
    with world.db.write() as conn:
        machines.set_warm(conn, world.slot_ids[0], ["scene:a"])
    assert _slot(world).warm == ["scene:a"]
