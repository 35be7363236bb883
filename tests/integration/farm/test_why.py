"""``why``: every thing that can hold work back is named, with its way out."""

from __future__ import annotations

import pytest

from farm import failures
from farm.db.connect import Database, db_now
from farm.db.tables import nodes, pools, projects, tasks
from farm.errors import NotFound
from farm.lifecycle import machines
from farm.lifecycle.commands import cancel_job, pause_job
from farm.states import AttemptState
from farm.why import Reason, why
from tests.integration.farm.world import World, deferred, settings, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build(slots=1)


def _why(world: World, subject: str) -> dict[str, Reason]:
    with world.db.read() as conn:
        return {reason.kind: reason for reason in why(conn, subject, world.config)}


def test_a_ready_task_with_an_idle_slot_waits_for_the_next_look(world: World) -> None:
    job_id = world.job(step(frames="1"))
    assert list(_why(world, job_id)) == ["next"]
    assert list(_why(world, world.tasks(job_id)[0])) == ["next"]


def test_dependencies_are_named(world: World) -> None:
    first = world.job(step(frames="1"), name="lookdev")
    job_id = world.job(
        step(frames="1-2"),
        step("comp", "1-2", after=[("render", "frames")]),
        step("encode", None, after=[("comp", "whole")]),
        deferred("late", "encode"),
        after=[first],
    )
    found = _why(world, job_id)
    assert set(found) == {"after", "frames", "dependency", "deferred"}
    assert found["after"].data == {"job_id": first, "state": "waiting"}
    assert "lookdev" in found["after"].text
    encode = _why(world, world.tasks(job_id, "encode")[0])
    assert "'comp', which is waiting: 2 of its tasks are left" in encode["dependency"].text
    comp = _why(world, world.tasks(job_id, "comp")[0])
    assert comp["frames"].data == {"task_ids": world.tasks(job_id, "render")[:1], "number": 1}


def test_a_paused_job_waits_for_no_slot(world: World) -> None:
    job_id = world.job(step(frames="1-2"))
    busy, waiting = world.tasks(job_id)
    world.begin(busy)
    assert "busy" in _why(world, waiting)
    with world.db.write() as conn:
        pause_job(conn, job_id)
    assert set(_why(world, waiting)) == {"paused"}


def test_a_pause_and_a_cancel_are_named(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    with world.db.write() as conn:
        pause_job(conn, job_id)
    assert set(_why(world, task.task_id)) == {"paused", "wish"}
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    assert _why(world, task.task_id)["wish"].text == "it is asked to cancel"
    world.end(task, AttemptState.CANCELLED)
    assert list(_why(world, job_id)) == ["ended"]


def test_a_paused_job_does_not_say_that_a_slot_is_about_to_take_it(world: World) -> None:
    job_id = world.job(step(frames="1"))
    with world.db.write() as conn:
        pause_job(conn, job_id)
    assert list(_why(world, job_id)) == ["paused"]


def test_a_job_names_the_step_that_waits(world: World) -> None:
    job_id = world.job(step(frames="1"), step("encode", None, after=[("render", "whole")]))
    found = _why(world, job_id)
    assert found["next"].text.startswith("step 'render': a slot is idle;")
    assert found["dependency"].text.startswith("step 'encode': it waits for step 'render'")


def test_failures_and_back_off_are_named(world: World) -> None:
    world.config = settings(retry_backoff_s=100.0, retry_backoff_max_s=100.0)
    job_id = world.job(step(frames="1", max_retries=1), step("encode", None, after=[("render", "whole")]))
    (task_id,) = world.tasks(job_id, "render")
    world.run(task_id, AttemptState.FAILED, error="no light")
    backoff = _why(world, task_id)["backoff"]
    assert "no light" in backoff.text
    assert 50 < backoff.data["seconds"] <= 100
    with world.db.write() as conn:
        conn.execute(tasks.update().values(not_before=None))
    world.run(task_id, AttemptState.FAILED, error="no light")
    assert "it failed: no light; a retry runs it again" in _why(world, task_id)["failed"].text
    assert "no light" in _why(world, job_id)["failed"].text
    assert "'render', which it depends on, did not succeed" in (
        _why(world, world.tasks(job_id, "encode")[0])["unreachable"].text
    )


@pytest.mark.parametrize("kind", ["permanent-failure", "invalid-spec", "escaped-path"])
def test_a_fault_of_what_was_submitted_is_no_matter_for_a_retry(world: World, kind: str) -> None:
    job_id = world.job(step(frames="1"))
    (task_id,) = world.tasks(job_id)
    world.run(task_id, AttemptState.FAILED, error="no .blend file", error_type=kind, permanent=True)
    words = "no .blend file; a retry would fail as well: mend that, and submit it anew"
    assert _why(world, task_id)["failed"].text == f"it failed: {words}"
    assert _why(world, job_id)["failed"].text == f"a task of step 'render' failed: {words}"
    with world.db.read() as conn:
        assert failures.of_job(conn, job_id) == f"a task of step 'render' failed: {words}"


def test_caps_quotas_and_paused_pools_are_named(world: World) -> None:
    job_id = world.job(step(frames="1-2"))
    world.begin(world.tasks(job_id)[0])
    waiting = world.tasks(job_id)[1]
    with world.db.write() as conn:
        conn.execute(pools.update().values(paused=True, max_slots=1))
        conn.execute(projects.update().values(max_slots=1, quota_slot_s=10.0, used_slot_s=11.0))
    found = _why(world, waiting)
    assert set(found) == {"pool_paused", "pool_cap", "cap", "quota", "busy"}
    assert found["cap"].data["used"] == 1
    assert "11 of its 10 slot-seconds" in found["quota"].text


def test_slots_that_do_not_serve_or_fit_are_named(world: World) -> None:
    assert "pool 'video'" in _why(world, world.job(step(frames="1", pool="video")))["no_slot"].text
    cuda = world.job(step(frames="1", requires={"device": "cuda"}))
    assert "device = 'cuda'" in _why(world, cuda)["no_slot_fits"].text


def test_held_slots_and_nodes_that_are_away_are_named(world: World) -> None:
    job_id = world.job(step(frames="1"))
    with world.db.write() as conn:
        machines.set_slot_state(conn, world.slot_ids[0], "held", "decode latency over budget")
    assert "decode latency over budget" in _why(world, job_id)["held"].text
    with world.db.write() as conn:
        conn.execute(nodes.update().values(seen_at=db_now() - 100))
        machines.node_down(conn, 30.0)
    assert "1 down" in _why(world, job_id)["nodes_away"].text


def test_a_dispatched_task_names_its_slot(world: World) -> None:
    job_id = world.job(step(frames="1"))
    world.dispatch(world.tasks(job_id))
    assert _why(world, job_id)["dispatched"].data["slot_id"] == world.slot_ids[0]


def test_a_task_that_waits_for_room_says_so(world: World) -> None:
    from farm import ledger

    (task,) = world.begin(*world.tasks(world.job(step(frames="1"))))
    assert _why(world, task.task_id) == {}
    with world.db.write() as conn:
        ledger.waiting(conn, world.node_id, world.slot_ids[0], "shm", 2048, task.task_id)
    assert "2,048 bytes of shm" in _why(world, task.task_id)["budget"].text


@pytest.mark.parametrize("subject", ["job_nope", "task_" + "0" * 32, "", "x" * 500])
def test_an_unknown_id_is_not_found(world: World, subject: str) -> None:
    with pytest.raises(NotFound):
        _why(world, subject)
