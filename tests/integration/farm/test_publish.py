"""Frames as they are published: once, whole, unchanging, and by whoever holds the task."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from farm.db.connect import Database, db_now
from farm.db.tables import contents, frame_files, frames
from farm.lifecycle.publish import publish_frames, record_contents
from farm.plan import OutputDecl
from farm.records import ClaimedTask, FrameRecord
from farm.states import AttemptState
from tests.integration.farm.world import OUTPUT, World, frame, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def _publish(world: World, task: ClaimedTask, *records: FrameRecord, epoch: int | None = None) -> bool:
    with world.db.write() as conn:
        return publish_frames(conn, task.task_id, epoch or task.epoch, task.attempt_id, list(records))


def _hash(world: World, number: int) -> str | None:
    with world.db.read() as conn:
        return conn.scalar(sa.select(frame_files.c.sha256).where(frame_files.c.number == number))


def test_a_frame_is_published_once_and_its_bytes_never_change(world: World) -> None:
    job_id = world.job(step(frames="1-2", chunk=2))
    (task,) = world.begin(*world.tasks(job_id))
    first = frame(1, content="first")
    assert _publish(world, task, first)
    assert _publish(world, task, first, frame(1, content="second"))
    assert _hash(world, 1) == first.files[0].sha256
    assert world.step(job_id, "render").frames_done == 1
    with world.db.read() as conn:
        row = conn.execute(sa.select(frames).where(frames.c.number == 1)).one()
    assert (row.state, row.attempt_id, row.duration_s) == ("published", task.attempt_id, 0.01)
    world.end(task)
    assert _hash(world, 1) == first.files[0].sha256
    world.check()


def test_the_same_frame_twice_in_one_call_counts_once(world: World) -> None:
    (task,) = world.begin(*world.tasks(world.job(step(frames="1"))))
    assert _publish(world, task, frame(1, content="a"), frame(1, content="b"))
    assert _hash(world, 1) == frame(1, content="a").files[0].sha256
    world.check()


@pytest.mark.parametrize("state", [AttemptState.PARKED, AttemptState.DONE])
def test_nobody_publishes_for_a_task_that_has_gone_on(world: World, state: AttemptState) -> None:
    job_id = world.job(step(frames="1-2", chunk=2))
    (task,) = world.begin(*world.tasks(job_id))
    assert not _publish(world, task, frame(1), epoch=task.epoch + 1)
    world.end(task, state)
    before = world.step(job_id, "render").frames_done
    assert not _publish(world, task, frame(1), frame(2))
    assert world.step(job_id, "render").frames_done == before
    world.check()


def test_frames_of_other_tasks_are_ignored(world: World) -> None:
    one, two = world.tasks(world.job(step(frames="1-2")))
    (task,) = world.begin(one)
    assert _publish(world, task, frame(2), frame(99))
    assert world.task(two).state == "ready"
    assert (_hash(world, 2), _hash(world, 99)) == (None, None)
    world.check()


def test_a_frame_without_all_declared_outputs_is_not_published(world: World) -> None:
    depth = OutputDecl("depth.exr", "exr", 1, 1, ("Z",), "float32", "raw")
    job_id = world.job(step(frames="1", outputs=(OUTPUT, depth)))
    (task,) = world.begin(*world.tasks(job_id))
    assert _publish(world, task, frame(1))
    assert world.step(job_id, "render").frames_done == 0
    both = frame(1)
    both.files.append(replace(both.files[0], output="depth.exr", format="exr", sha256="d" * 64))
    both.quality = {"psnr": float("inf"), "mean": 0.5}
    assert _publish(world, task, both)
    with world.db.read() as conn:
        outputs = conn.scalars(sa.select(frame_files.c.output).order_by(frame_files.c.output)).all()
        assert conn.scalar(sa.select(frames.c.quality)) == {"psnr": None, "mean": 0.5}
    assert outputs == ["beauty.png", "depth.exr"]
    world.check()


def test_a_frame_publishes_its_contents_and_touches_old_ones(world: World) -> None:
    black = frame(1, content="black")
    with world.db.write() as conn:
        record_contents(conn, [(black.files[0].sha256, 70), ("e" * 64, 5)])
        conn.execute(contents.update().values(created_at=1.0, touched_at=db_now() - 7200))
    (task,) = world.begin(*world.tasks(world.job(step(frames="1-2", chunk=2))))
    assert _publish(world, task, black, frame(2, content="black"))
    with world.db.read() as conn:
        age = dict(conn.execute(sa.select(contents.c.sha256, db_now() - contents.c.touched_at)).all())
        assert conn.scalars(sa.select(contents.c.created_at)).all() == [1.0, 1.0]
    assert age[black.files[0].sha256] < 60
    assert age["e" * 64] > 7000
    world.check()
