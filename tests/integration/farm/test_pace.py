"""How fast a step goes: what a task costs its slot, and how many slots work on it."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import Database
from farm.lifecycle.finish import finish_many
from farm.repositories.reading.jobs import get_job, get_step
from tests.integration.farm.world import World, step


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
