"""How attempts end, and what becomes of their tasks."""

from __future__ import annotations

import pytest

from farm.db.connect import Database
from tests.integration.farm.world import World, frame, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def test_a_task_with_all_its_frames_is_done(world: World) -> None:
    job_id = world.job(step(frames="1-2", chunk=2))
    (task_id,) = world.tasks(job_id)
    assert world.state(job_id) == "waiting"
    (task,) = world.begin(task_id)
    assert (task.frames, task.attempt_number, task.take) == ("1-2", 1, 1)
    assert world.state(job_id) == "running"
    assert world.end(task) == "counted"
    assert world.state(job_id) == "done"
    assert world.step(job_id, "render").frames_done == 2
    world.check()


def test_a_report_without_all_frames_counts_as_a_failure(world: World) -> None:
    job_id = world.job(step(frames="1-2", chunk=2, max_retries=0))
    (task_id,) = world.tasks(job_id)
    (task,) = world.begin(task_id)
    assert world.end(task, frames=[frame(1)]) == "counted"
    row = world.task(task_id)
    assert row.state == "failed"
    assert "1 of its frames were never published" in row.error
    assert world.state(job_id) == "failed"
    world.check()
