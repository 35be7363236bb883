"""Dispatch and claim: what a ticket entitles to, and to whom."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from farm.db.connect import Database
from farm.db.tables import attempts, nodes, slots
from farm.lifecycle import leases, machines
from farm.lifecycle.claim import claim, wishes
from farm.lifecycle.commands import cancel_job, delete_job, pause_job, resume_job
from farm.lifecycle.dispatch import dispatch_many
from farm.plan import TaskPlan
from farm.records import Ticket
from tests.integration.farm.world import World, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def _slot(world: World, index: int = 0) -> str:
    with world.db.read() as conn:
        return str(conn.scalar(sa.select(slots.c.state).where(slots.c.id == world.slot_ids[index])))


def test_a_ticket_begins_its_tasks_once_however_often_it_comes(world: World) -> None:
    """celery 5935: the broker delivers the same ticket five times."""
    job_id = world.job(step(frames="1-3"))
    ticket = world.dispatch(world.tasks(job_id))
    assert ticket is not None
    assert [len(world.claim(ticket)) for _ in range(5)] == [3, 0, 0, 0, 0]
    with world.db.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(attempts)) == 3
    world.check()


def test_only_the_slot_that_it_was_meant_for_can_claim(world: World) -> None:
    ticket = world.dispatch(world.tasks(world.job(step(frames="1"))))
    assert ticket is not None
    assert world.claim(ticket, slot=1) == []
    with world.db.write() as conn:
        assert claim(conn, ticket, world.slot_ids[0], "an older life", 30.0) == []
    assert len(world.claim(ticket)) == 1


def test_a_stale_ticket_begins_nothing(world: World) -> None:
    job_id = world.job(step(frames="1"))
    stale = world.dispatch(world.tasks(job_id))
    assert stale is not None
    with world.db.write() as conn:
        assert leases.return_unclaimed(conn, -1.0) == [(world.slot_ids[0], world.tasks(job_id)[0])]
    assert world.claim(stale) == []
    fresh = world.dispatch(world.tasks(job_id))
    assert fresh is not None
    assert fresh.entries[0].epoch == stale.entries[0].epoch + 1
    assert world.claim(stale) == []
    assert len(world.claim(fresh)) == 1
    world.check()


def test_what_was_not_claimed_in_time_goes_back_free(world: World) -> None:
    """airflow 21225: a ticket lost on its way does not leave its task queued for ever."""
    job_id = world.job(step(frames="1-2"))
    world.dispatch(world.tasks(job_id))
    with world.db.write() as conn:
        assert leases.return_unclaimed(conn, 60.0) == []
    with world.db.write() as conn:
        returned = leases.return_unclaimed(conn, -1.0)
    assert sorted(task for _, task in returned) == sorted(world.tasks(job_id))
    assert world.states(job_id) == ["ready", "ready"]
    assert {world.task(task_id).charged for task_id in world.tasks(job_id)} == {0}
    assert _slot(world) == "idle"
    assert world.state(job_id) == "waiting"
    world.check()


def test_a_slot_has_at_most_one_ticket(world: World) -> None:
    ids = world.tasks(world.job(step(frames="1-2")))
    assert world.dispatch(ids[:1]) is not None
    assert _slot(world) == "busy"
    assert world.dispatch(ids[1:]) is None
    assert world.task(ids[1]).state == "ready"
    world.check()


@pytest.mark.parametrize("state", ["starting", "held", "draining", "dead"])
def test_a_slot_that_is_not_idle_gets_nothing(world: World, state: str) -> None:
    ids = world.tasks(world.job(step(frames="1")))
    with world.db.write() as conn:
        machines.set_slot_state(conn, world.slot_ids[0], state, "guard")
    assert world.dispatch(ids) is None


def test_a_draining_node_gets_nothing(world: World) -> None:
    ids = world.tasks(world.job(step(frames="1")))
    with world.db.write() as conn:
        machines.drain_node(conn, world.node_id)
        assert conn.scalar(sa.select(nodes.c.state)) == "drained"
    assert world.dispatch(ids) is None
    with world.db.write() as conn:
        machines.resume_node(conn, world.node_id)
    assert world.dispatch(ids) is not None


def test_a_paused_or_cancelled_job_gets_nothing(world: World) -> None:
    paused = world.job(step(frames="1"), paused=True)
    assert world.dispatch(world.tasks(paused)) is None
    with world.db.write() as conn:
        resume_job(conn, paused)
    assert world.dispatch(world.tasks(paused)) is not None


def test_tasks_of_two_steps_never_travel_together(world: World) -> None:
    job_id = world.job(step("a", "1"), step("b", "1"))
    with pytest.raises(ValueError, match="several steps"):
        world.dispatch(world.tasks(job_id))


def test_several_slots_are_served_in_one_transaction(world: World) -> None:
    ids = world.tasks(world.job(step(frames="1-4")))
    with world.db.write() as conn:
        made = dispatch_many(conn, [(world.slot_ids[0], ids[:2]), (world.slot_ids[1], ids[1:])])
    # the second was chosen for both: the first slot has it
    assert [[e.task_id for e in d.ticket.entries] for d in made] == [ids[:2], ids[2:]]
    assert [d.queue for d in made] == [f"slot.{slot_id}" for slot_id in world.slot_ids]
    world.check()


def test_a_claim_brings_all_that_the_engine_needs(world: World) -> None:
    tasks = [TaskPlan(payload={"camera": 7}, rank=1)]
    job_id = world.job(
        step("train", None, tasks=tasks, payload={"size": [64, 64]}, warm_key="scene:1", timeout_s=9.0),
        spec={"scene": "a.xml"},
    )
    (task,) = world.begin(*world.tasks(job_id))
    assert (task.job_id, task.step_name, task.engine, task.pool) == (job_id, "train", "probe", "render")
    assert (task.job_spec, task.step_payload, task.task_payload) == (
        {"scene": "a.xml"}, {"size": [64, 64]}, {"camera": 7},
    )  # fmt: skip
    assert (task.frames, task.warm_key, task.timeout_s, task.outputs) == (None, "scene:1", 9.0, [])
    assert 0 < task.serial < 2**48


def test_a_ticket_survives_its_journey_as_json(world: World) -> None:
    ticket = world.dispatch(world.tasks(world.job(step(frames="1-2"))))
    assert ticket is not None
    assert Ticket.from_json(ticket.to_json()) == ticket


def test_wishes_reach_running_tasks(world: World) -> None:
    job_id = world.job(step(frames="1-2"))
    first, second = world.tasks(job_id)
    world.begin(first)
    with world.db.read() as conn:
        assert wishes(conn, [first, second]) == {first: None}
    with world.db.write() as conn:
        pause_job(conn, job_id)
    with world.db.read() as conn:
        assert wishes(conn, [first]) == {first: "park"}
    with world.db.write() as conn:
        resume_job(conn, job_id)
    with world.db.read() as conn:
        assert wishes(conn, [first]) == {first: None}
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    with world.db.read() as conn:
        assert wishes(conn, [first, second]) == {first: "cancel"}


def test_unbegun_tasks_of_a_bundle_go_back_free(world: World) -> None:
    job_id = world.job(step(frames="1-3", max_retries=0))
    bundle = world.begin(*world.tasks(job_id))
    with world.db.write() as conn:
        held = [(task.task_id, task.epoch) for task in bundle[1:]]
        leases.return_unbegun(conn, world.slot_ids[0], held)
    assert world.states(job_id) == ["running", "ready", "ready"]
    assert world.task(bundle[1].task_id).charged == 0
    assert _slot(world) == "busy"
    assert world.end(bundle[1]) == "repeated"
    assert world.end(bundle[0]) == "counted"
    assert _slot(world) == "idle"
    world.check()


def test_a_deleted_job_does_not_give_its_serials_to_another(world: World) -> None:
    """A control file still holds the last word to an attempt: `cancel` must not hit one that comes later."""
    first = world.job(step(frames="1"))
    [old] = world.begin(*world.tasks(first))
    world.end(old)
    with world.db.write() as conn:
        delete_job(conn, first)
    [new] = world.begin(*world.tasks(world.job(step(frames="1"))))
    assert new.serial > old.serial
