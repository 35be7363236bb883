"""Takes: frames made again beside the old ones."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm.db.connect import Database
from farm.db.tables import frame_files, frames, tasks
from farm.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from farm.frame_range import FrameRange
from farm.lifecycle.commands import cancel_job, retake, set_current_take
from farm.plan import TaskPlan
from tests.integration.farm.world import World, deferred, frame, settings, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def _retake(world: World, job_id: str, numbers: str | None = None, name: str = "render", **more: Any) -> Any:
    chosen = FrameRange.parse(numbers) if numbers is not None else None
    with world.db.write() as conn:
        return retake(conn, world.step(job_id, name).id, chosen, settings=world.config, **more)


def _takes(world: World, job_id: str) -> list[tuple[int, int, str, bool]]:
    with world.db.read() as conn:
        query = sa.select(frames.c.number, frames.c.take, frames.c.state, frames.c.is_current)
        rows = conn.execute(query.where(frames.c.job_id == job_id).order_by(frames.c.number, frames.c.take))
        return [(n, take, state, bool(current)) for n, take, state, current in rows]


def _hashes(world: World) -> dict[tuple[int, int], str]:
    with world.db.read() as conn:
        rows = conn.execute(sa.select(frame_files.c.number, frame_files.c.take, frame_files.c.sha256))
        return {(number, take): sha256 for number, take, sha256 in rows}


def _done(world: World, frames_text: str = "1-4", chunk: int = 2) -> str:
    plans = [TaskPlan(part, {"seed": 7}) for part in FrameRange.parse(frames_text).chunks(chunk)]
    job_id = world.job(step(frames=frames_text, tasks=plans))
    for task_id in world.tasks(job_id):
        world.run(task_id)
    return job_id


def test_a_new_take_stands_beside_the_old_one_and_becomes_current_when_published(world: World) -> None:
    job_id = _done(world)
    before = _hashes(world)
    made = _retake(world, job_id, "2-3", payload={"seed": 8})
    assert made == {"step_id": world.step(job_id, "render").id, "take": 2, "tasks": 2, "frames": 2}
    assert world.state(job_id) == "running"
    assert _takes(world, job_id) == [
        (1, 1, "published", True),
        (2, 1, "published", True), (2, 2, "pending", False),
        (3, 1, "published", True), (3, 2, "pending", False),
        (4, 1, "published", True),
    ]  # fmt: skip
    world.check()
    new = world.tasks(job_id)[2:]
    (task,) = world.begin(new[0])
    assert (task.frames, task.take, task.task_payload) == ("2", 2, {"seed": 8})
    world.end(task)
    world.run(new[1])
    assert world.state(job_id) == "done"
    assert [row for row in _takes(world, job_id) if row[3]] == [
        (1, 1, "published", True), (2, 2, "published", True),
        (3, 2, "published", True), (4, 1, "published", True),
    ]  # fmt: skip
    after = _hashes(world)
    assert {key: after[key] for key in before} == before
    assert after[2, 2] != before[2, 1]
    world.check()


def test_any_published_take_can_be_made_current(world: World) -> None:
    job_id = _done(world, "1-2", 1)
    _retake(world, job_id)
    for task_id in world.tasks(job_id)[2:]:
        world.run(task_id)
    step_id = world.step(job_id, "render").id
    with world.db.write() as conn:
        assert set_current_take(conn, step_id, FrameRange.parse("2"), 1) == 1
    assert [row[:2] for row in _takes(world, job_id) if row[3]] == [(1, 2), (2, 1)]
    world.check()
    with pytest.raises(InvalidInput, match="no published frame 2-3 of take 3"), world.db.write() as conn:
        set_current_take(conn, step_id, FrameRange.parse("2-3"), 3)
    with pytest.raises(NotFound), world.db.write() as conn:
        set_current_take(conn, "step_nope", FrameRange.parse("1"), 1)


def test_all_frames_are_taken_again_by_default_cut_as_before(world: World) -> None:
    job_id = _done(world, "1-5", 2)
    assert _retake(world, job_id)["tasks"] == 3
    with world.db.read() as conn:
        cut = conn.scalars(
            sa.select(tasks.c.frames).where(tasks.c.take == 2).order_by(tasks.c.position)
        ).all()
    assert cut == ["1-2", "3-4", "5"]
    world.check()


def test_what_cannot_be_taken_again_is_refused(world: World) -> None:
    job_id = world.job(
        step(frames="1-4"), step("encode", None, after=[("render", "whole")]), deferred("late", "encode")
    )
    with pytest.raises(InvalidInput, match="does not make frame 5,9"):
        _retake(world, job_id, "4-5,9")
    with pytest.raises(Conflict, match="makes no frames"):
        _retake(world, job_id, name="encode")
    with pytest.raises(Conflict, match="no tasks yet"):
        _retake(world, job_id, name="late")
    world.config = settings(max_frames=7)
    with pytest.raises(LimitExceeded, match="more than 7 frames"):
        _retake(world, job_id)
    world.config = settings()
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    with pytest.raises(Conflict, match="cancelled"):
        _retake(world, job_id)
    assert world.step(job_id, "render").take == 1
    world.check()


def test_a_late_frame_of_an_old_take_does_not_become_current(world: World) -> None:
    """A task of take 1 that was still open ends after take 2 is there."""
    job_id = world.job(step(frames="1"))
    (old_id,) = world.tasks(job_id)
    (old,) = world.begin(old_id, slot=0)
    _retake(world, job_id)
    (new,) = world.begin(world.tasks(job_id)[1], slot=1)
    world.end(new, slot=1)
    world.end(old, slot=0)
    assert _takes(world, job_id) == [(1, 1, "published", False), (1, 2, "published", True)]
    world.check()


def test_a_frame_of_another_take_than_its_tasks_is_not_taken(world: World) -> None:
    job_id = world.job(step(frames="1", max_retries=0))
    (task,) = world.begin(*world.tasks(job_id))
    world.end(task, frames=[frame(1, take=2)])
    assert world.states(job_id) == ["failed"]
    world.check()
