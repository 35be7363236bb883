"""How fast a step goes: what a task costs its slot, and how many slots work on it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import Database, db_now
from farm.lifecycle.finish import finish_many
from farm.lifecycle.publish import publish_frames
from farm.repositories.reading.jobs import get_job, get_step, list_steps
from tests.integration.farm.world import World, frame, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def test_short_tasks_are_measured_with_their_way_to_the_slot_and_back(world: World) -> None:
    job_id = world.job(step(frames="1-8"))
    bundle = world.begin(*world.tasks(job_id)[:4])
    reports = [world.report(task) for task in bundle]
    for report in reports:
        report.cost.slot_s = 0.001
    with world.db.write() as conn:
        conn.execute(
            t.tasks.update()
            .where(t.tasks.c.id.in_([task.task_id for task in bundle]))
            .values(dispatched_at=t.tasks.c.dispatched_at - 8.0)
        )
        finish_many(conn, reports, world.slot_ids[0], None, world.config)
    # eight seconds from dispatch to finish for four tasks
    assert world.step(job_id, "render").mean_task_s == pytest.approx(2.0, abs=0.2)


def test_a_bundle_keeps_one_slot_busy_however_many_tasks_it_holds(world: World) -> None:
    job_id = world.job(step(frames="1-8"))
    world.begin(*world.tasks(job_id)[:4])
    with world.db.write() as conn:
        conn.execute(t.steps.update().where(t.steps.c.job_id == job_id).values(mean_task_s=2.0))
        step_id = conn.scalar(sa.select(t.steps.c.id).where(t.steps.c.job_id == job_id))
    with world.db.read() as conn:
        found, job = get_step(conn, step_id), get_job(conn, job_id)
    assert found is not None
    assert job is not None
    # eight open tasks of two seconds each, one slot on them
    assert (found["eta_s"], job["eta_s"]) == (pytest.approx(16.0), pytest.approx(16.0))


def _left(world: World, job_id: str) -> tuple[float | None, float | None]:
    with world.db.read() as conn:
        [found], job = list_steps(conn, job_id), get_job(conn, job_id)
    assert job is not None
    return found["eta_s"], job["eta_s"]


def test_before_a_task_is_done_its_frames_tell_the_pace(world: World) -> None:
    job_id = world.job(step(frames="1-40", chunk=20))
    assert _left(world, job_id) == (None, None)
    [task] = world.begin(world.tasks(job_id)[0])
    assert _left(world, job_id) == (None, None)
    with world.db.write() as conn:
        publish_frames(conn, task.task_id, task.epoch, task.attempt_id, [frame(1), frame(2)])
        made = t.frames.c.state == "published"
        conn.execute(t.frames.update().where(made).values(duration_s=30.0))
    # 38 frames of 30 s, one slot
    assert _left(world, job_id) == (pytest.approx(1140.0), pytest.approx(1140.0))


def test_frames_of_a_chunk_at_work_count_when_tasks_tell_the_pace(world: World) -> None:
    job_id = world.job(step(frames="1-40", chunk=20))
    [task] = world.begin(world.tasks(job_id)[0])
    with world.db.write() as conn:
        records = [frame(number) for number in range(1, 11)]
        publish_frames(conn, task.task_id, task.epoch, task.attempt_id, records)
        conn.execute(t.steps.update().where(t.steps.c.job_id == job_id).values(mean_task_s=100.0))
    # one and a half chunks of 100 s
    assert _left(world, job_id) == (pytest.approx(150.0), pytest.approx(150.0))


def test_a_task_without_frames_so_far_is_measured_by_its_progress(world: World) -> None:
    job_id = world.job(step(frames=None))
    [task] = world.begin(world.tasks(job_id)[0])
    with world.db.write() as conn:
        mine = t.tasks.update().where(t.tasks.c.id == task.task_id)
        conn.execute(mine.values(progress=0.25, started_at=db_now() - 100.0))
    # a quarter took 100 s
    left, _ = _left(world, job_id)
    assert left == pytest.approx(300.0, abs=5.0)
