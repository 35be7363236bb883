"""What people ask of jobs, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm import ledger
from farm.db.connect import Database
from farm.db.tables import buffers, events, frame_files, frames, jobs, metadata, slots, tasks
from farm.errors import Conflict, InvalidInput, NotFound, PreconditionFailed
from farm.lifecycle.commands import (
    cancel_job,
    delete_job,
    park_task,
    pause_job,
    resume_job,
    retry_job,
    set_priority,
)
from farm.states import AttemptState
from tests.integration.farm.world import World, step

COMMANDS = [cancel_job, pause_job, resume_job, retry_job, delete_job]


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def _do(world: World, command: Any, *args: Any, **more: Any) -> Any:
    with world.db.write() as conn:
        return command(conn, *args, **more)


def _job(world: World, job_id: str) -> Any:
    with world.db.read() as conn:
        return conn.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()


def test_cancelling_a_queued_job_leaves_the_running_one_alone(world: World) -> None:
    """InvokeAI 6089: run A, queue B, cancel B."""
    running, queued = world.job(step(frames="1")), world.job(step(frames="1-2"))
    (task,) = world.begin(*world.tasks(running))
    _do(world, cancel_job, queued)
    assert world.state(queued) == "cancelled"
    assert world.task(task.task_id).wish is None
    assert world.end(task) == "counted"
    assert world.state(running) == "done"
    world.check()


def test_cancel_ends_what_has_not_begun_and_asks_what_runs(world: World) -> None:
    job_id = world.job(step(frames="1-4"), step("encode", None, after=[("render", "whole")]))
    ids = world.tasks(job_id, "render")
    world.run(ids[0])
    (running,) = world.begin(ids[1], slot=0)
    assert world.dispatch([ids[2]], slot=1) is not None
    _do(world, cancel_job, job_id)
    assert world.states(job_id) == ["done", "running", "cancelled", "cancelled", "cancelled"]
    assert world.task(running.task_id).wish == "cancel"
    assert world.state(job_id) == "running"
    world.check()
    world.end(running, AttemptState.CANCELLED)
    assert world.state(job_id) == "cancelled"
    with world.db.read() as conn:
        assert set(conn.scalars(sa.select(slots.c.state))) == {"idle"}
    world.check()


@pytest.mark.parametrize(
    "state", [AttemptState.PARKED, AttemptState.FAILED, AttemptState.LOST, AttemptState.INTERRUPTED]
)
def test_a_cancelled_task_comes_back_on_no_way(world: World, state: AttemptState) -> None:
    job_id = world.job(step(frames="1", max_retries=9))
    (task,) = world.begin(*world.tasks(job_id))
    _do(world, cancel_job, job_id)
    world.end(task, state)
    assert world.states(job_id) == ["cancelled"]
    assert world.state(job_id) == "cancelled"
    world.check()


def test_cancelling_twice_is_fine_and_after_the_end_is_not(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    _do(world, cancel_job, job_id)
    version = _job(world, job_id).version
    _do(world, cancel_job, job_id)
    assert _job(world, job_id).version == version
    world.end(task, AttemptState.CANCELLED)
    done = world.job(step(frames="1"))
    world.run(*world.tasks(done))
    with pytest.raises(Conflict, match="done"):
        _do(world, cancel_job, done)


def test_pause_parks_what_runs_and_resume_goes_on(world: World) -> None:
    job_id = world.job(step(frames="1-2", max_retries=0))
    first, second = world.tasks(job_id)
    (task,) = world.begin(first)
    _do(world, pause_job, job_id)
    assert world.task(first).wish == "park"
    assert world.dispatch([second], slot=1) is None
    world.end(task, AttemptState.PARKED, checkpoint="c" * 64)
    assert world.states(job_id) == ["ready", "ready"]
    assert world.dispatch([first]) is None
    _do(world, resume_job, job_id)
    (again,) = world.begin(first)
    assert (again.checkpoint, world.task(first).wish) == ("c" * 64, None)
    world.end(again)
    world.check()


def test_resume_forgets_the_wish_to_park_of_what_still_runs(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    _do(world, pause_job, job_id)
    _do(world, resume_job, job_id)
    assert world.task(task.task_id).wish is None
    assert world.end(task) == "counted"


def test_a_cancel_is_not_forgotten_by_resume(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    _do(world, pause_job, job_id)
    _do(world, cancel_job, job_id)
    _do(world, resume_job, job_id)
    assert world.task(task.task_id).wish == "cancel"


def test_a_running_task_can_be_asked_to_park_once(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    assert not _do(world, park_task, task.task_id, task.epoch + 1)
    assert _do(world, park_task, task.task_id, task.epoch)
    assert not _do(world, park_task, task.task_id, task.epoch)
    world.end(task, AttemptState.PARKED)
    assert world.task(task.task_id).wish is None


def test_priority_is_changed_within_its_bounds(world: World) -> None:
    job_id = world.job()
    _do(world, set_priority, job_id, 90)
    assert _job(world, job_id).priority == 90
    for bad in (-1, 101):
        with pytest.raises(InvalidInput, match=rf"priority is {bad}, but must be from 0 to 100"):
            _do(world, set_priority, job_id, bad)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_an_unknown_job_say_so(world: World, command: Any) -> None:
    with pytest.raises(NotFound, match="job_nope"):
        _do(world, command, "job_nope")


@pytest.mark.parametrize("command", [cancel_job, pause_job])
def test_a_command_for_another_version_changes_nothing(world: World, command: Any) -> None:
    job_id = world.job()
    version = _job(world, job_id).version
    with pytest.raises(PreconditionFailed, match="read it again"):
        _do(world, command, job_id, version=version + 1)
    assert world.state(job_id) == "waiting"
    _do(world, command, job_id, version=version)
    assert _job(world, job_id).version == version + 1


def test_a_job_is_deleted_with_all_that_hangs_on_it_but_only_when_it_has_ended(world: World) -> None:
    job_id = world.job(step(frames="1-2"), step("comp", "1-2", after=[("render", "frames")]), name="gone")
    other = world.job(step(frames="1"), name="stays")
    with world.db.write() as conn:
        ledger.set_budget(conn, world.node_id, "store", 1000)
    (task,) = world.begin(world.tasks(job_id)[0])
    with world.db.write() as conn:
        buffer_id = ledger.reserve(
            conn, world.node_id, world.slot_ids[0], "store", 10, ledger.CHECKPOINT, task_id=task.task_id
        )
    world.end(task)
    with pytest.raises(Conflict, match="cancel it first"):
        _do(world, delete_job, job_id)
    _do(world, cancel_job, job_id)
    _do(world, delete_job, job_id)
    with world.db.read() as conn:
        for table in metadata.tables.values():
            if "job_id" in table.c and table is not events:
                left = set(conn.scalars(sa.select(table.c.job_id)))
                assert job_id not in left, table.name
        assert conn.scalars(sa.select(jobs.c.id)).all() == [other]
        assert conn.scalar(sa.select(sa.func.count()).select_from(tasks)) == 1
        assert conn.scalar(sa.select(sa.func.count()).select_from(frames)) == 1
        assert conn.scalar(sa.select(sa.func.count()).select_from(frame_files)) == 0
        assert conn.scalar(sa.select(buffers.c.state).where(buffers.c.id == buffer_id)) == "released"
    world.check()
