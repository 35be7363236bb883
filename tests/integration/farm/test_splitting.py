"""The rest of a chunk goes on as new tasks: who waits, what is counted, and what changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm.db.connect import Database
from farm.db.tables import attempts, task_dependencies
from farm.events import EventFilter, EventRow, read_after
from farm.frame_range import FrameRange
from farm.lifecycle import leases
from farm.lifecycle.commands import cancel_job, retake
from farm.lifecycle.finish import finish, finish_many
from farm.plan import StepPlan, TaskPlan
from farm.records import ClaimedTask, FinishVerdict, Split
from farm.states import AttemptState
from tests.integration.farm.world import World, deferred, frame, settings, step

SLOW = Split(frame_s=9.0, target_s=20.0)
"""Three frames to a task: two would last 18 s."""


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def _step(chunk: int = 10, text: str = "1-10", **more: Any) -> StepPlan:
    parts = FrameRange.parse(text).chunks(chunk)
    plans = [TaskPlan(part, {"seed": 7, "frames": str(part)}, rank, 10.0) for rank, part in enumerate(parts)]
    return step(tasks=plans, **more)


def _leave(world: World, task: ClaimedTask, made: str, split: Split = SLOW, **more: Any) -> FinishVerdict:
    """The attempt ends with these frames, and leaves the rest."""
    numbers = [frame(number, take=task.take) for number in FrameRange.parse(made)]
    return world.end(task, frames=numbers, split=split, **more)


def _rows(world: World, job_id: str, name: str = "render") -> list[tuple[int, str | None, str]]:
    found = [world.task(task_id) for task_id in world.tasks(job_id, name)]
    return [(row.position, row.frames, row.state) for row in found]


def _events(world: World, kind: str = "task.split") -> list[EventRow]:
    with world.db.read() as conn:
        return list(read_after(conn, 0, where=EventFilter(types=[kind])))


def test_the_frames_that_are_left_go_on_as_tasks_cut_by_what_was_measured(world: World) -> None:
    job_id = world.job(_step(chunk=5))
    first, _ = world.tasks(job_id)
    (task,) = world.begin(first)
    assert _leave(world, task, "1-2", Split(frame_s=12.0, target_s=20.0)) == "counted"
    # 2 x 12 s is the first multiple of 12 s that reaches 20 s
    assert _rows(world, job_id) == [
        (0, "1-2", "done"), (1, "6-10", "ready"), (2, "3-4", "ready"), (3, "5", "ready"),
    ]  # fmt: skip
    counted = world.step(job_id, "render")
    assert (counted.n_done, counted.n_ready, counted.n_running) == (1, 3, 0)
    assert (counted.frames_total, counted.frames_done, counted.state) == (10, 2, "running")
    rows = [world.task(task_id) for task_id in world.tasks(job_id)]
    assert [row.rank for row in rows] == [0, 1, 0, 0], "parts come before what came after their chunk"
    assert [row.seconds for row in rows] == [10.0, 10.0, 24.0, 12.0]
    assert [row.payload for row in rows] == [
        {"seed": 7, "frames": text} for text in ("1-2", "6-10", "3-4", "5")
    ]
    # a bundle of several parts would undo the split
    assert counted.mean_task_s == pytest.approx(24.0)
    (told,) = _events(world)
    assert (told.job_id, told.task_id) == (job_id, first)
    assert told.data == {
        "frames": "1-2", "rest": "3-5", "tasks": 2, "frame_s": 12.0, "target_s": 20.0,
        "why": "a frame took 12.0 s: the rest of the chunk would take over 40 s",
    }  # fmt: skip
    world.check()
    for task_id in world.tasks(job_id)[1:]:
        world.run(task_id)
    assert world.state(job_id) == "done"
    world.check()


def test_slow_frames_travel_alone_and_the_next_take_is_cut_like_them(world: World) -> None:
    job_id = world.job(_step())
    (task,) = world.begin(*world.tasks(job_id))
    _leave(world, task, "1-7", Split(frame_s=70.0, target_s=400.0))
    assert [text for _, text, _ in _rows(world, job_id)] == ["1-7", "8", "9", "10"]
    for task_id in world.tasks(job_id)[1:]:
        world.run(task_id)
    with world.db.write() as conn:
        retake(conn, world.step(job_id, "render").id, FrameRange.parse("1-8"), settings=world.config)
    again = [row for row in map(world.task, world.tasks(job_id)) if row.take == 2]
    assert [(row.position, row.frames) for row in again] == [(0, "1-7"), (1, "8")]
    world.check()
    # place 2 is that of frame 9 in the first take: a result of one must not hide the other's
    (task,) = world.begin(again[0].id)
    _leave(world, task, "1-5", SLOW)
    parts = [row for row in map(world.task, world.tasks(job_id)) if row.take == 2]
    assert [(row.position, row.frames) for row in parts] == [(0, "1-5"), (1, "8"), (4, "6-7")]
    world.check()


def test_a_split_spends_no_retry_and_its_parts_go_on_with_what_was_spent(world: World) -> None:
    job_id = world.job(_step(max_retries=1))
    (task_id,) = world.tasks(job_id)
    world.run(task_id, AttemptState.FAILED, error="no light", killed_slot=True)
    (task,) = world.begin(task_id)
    _leave(world, task, "1-9")
    with world.db.read() as conn:
        rows = conn.execute(sa.select(attempts.c.state, attempts.c.charged).order_by(attempts.c.number)).all()
    assert [tuple(row) for row in rows] == [("failed", True), ("done", False)]
    (part,) = world.tasks(job_id)[1:]
    row = world.task(part)
    assert (row.charged, row.node_losses, bool(row.solo), row.epoch) == (1, 0, True, 0)
    world.run(part, AttemptState.FAILED, error="no light")
    assert world.task(part).state == "failed", "the one retry was spent before the split"
    world.check()


def test_frames_of_an_earlier_attempt_are_kept(world: World) -> None:
    job_id = world.job(_step())
    (task_id,) = world.tasks(job_id)
    world.run(task_id, AttemptState.PARKED, frames=[frame(5), frame(6)])
    (task,) = world.begin(task_id)
    assert task.frames == "1-4,7-10"
    _leave(world, task, "1")
    assert [text for _, text, _ in _rows(world, job_id)] == ["1,5-6", "2-4", "7-9", "10"]
    world.check()


def test_what_follows_frame_by_frame_waits_for_the_parts_with_its_frames(world: World) -> None:
    job_id = world.job(
        step("plates", "1-10", chunk=10),
        _step(after=[("plates", "frames")]),
        step("comp", "1-10", chunk=5, after=[("render", "frames")]),
        step("grade", None, after=[("render", "frames")]),
        step("film", None, after=[("render", "whole")]),
    )
    (plates,), (render,) = world.tasks(job_id, "plates"), world.tasks(job_id, "render")
    world.run(plates)
    (task,) = world.begin(render)
    _leave(world, task, "1-3")
    assert [text for _, text, _ in _rows(world, job_id)] == ["1-3", "4-6", "7-9", "10"]
    _, a, b, c = world.tasks(job_id, "render")
    low, high = world.tasks(job_id, "comp")
    (grade,) = world.tasks(job_id, "grade")
    with world.db.read() as conn:
        edges = {tuple(row) for row in conn.execute(sa.select(task_dependencies))}
    assert edges == {
        (render, plates), (a, plates), (b, plates), (c, plates),
        (low, render), (low, a), (high, render), (high, a), (high, b), (high, c),
        (grade, render), (grade, a), (grade, b), (grade, c),
    }  # fmt: skip
    assert [world.task(task_id).waiting_on for task_id in (low, high, grade)] == [1, 3, 3]
    world.check()
    world.run(a)
    assert world.states(job_id, "comp") == ["ready", "blocked"]
    world.run(b)
    assert world.states(job_id, "comp") == ["ready", "blocked"]
    assert (world.states(job_id, "grade"), world.states(job_id, "film")) == (["blocked"], ["blocked"])
    world.run(c)
    assert world.states(job_id, "comp") == ["ready", "ready"]
    assert (world.states(job_id, "grade"), world.states(job_id, "film")) == (["ready"], ["ready"])
    world.check()


def test_a_part_that_fails_cuts_off_only_what_needs_its_frames(world: World) -> None:
    job_id = world.job(_step(max_retries=0), step("comp", "1-10", chunk=5, after=[("render", "frames")]))
    (task,) = world.begin(*world.tasks(job_id, "render"))
    _leave(world, task, "1-6")
    world.run(world.tasks(job_id, "render")[1], AttemptState.FAILED)
    assert world.states(job_id, "comp") == ["ready", "unreachable"]
    world.check()


def test_a_step_that_waits_to_be_planned_waits_for_the_parts(world: World) -> None:
    job_id = world.job(_step(), deferred("views", "render"))
    planned: list[list[dict[str, Any]]] = []

    def expand(kind: str, spec: Any, name: str, results: list[dict[str, Any]], assets: Any) -> StepPlan:
        planned.append(results)
        return step("views", "1-2")

    (task,) = world.begin(*world.tasks(job_id, "render"))
    _leave(world, task, "1-7", expander=expand, result={"of": "1-7"})
    assert planned == []
    world.check()
    (part,) = world.tasks(job_id, "render")[1:]
    world.run(part, expander=expand, result={"of": "8-10"})
    assert planned == [[{"of": "1-7"}, {"of": "8-10"}]]
    assert world.states(job_id, "views") == ["ready", "ready"]
    world.check()


def test_a_report_that_comes_twice_or_too_late_splits_nothing(world: World) -> None:
    job_id = world.job(_step())
    (task_id,) = world.tasks(job_id)
    (lost,) = world.begin(task_id)
    late = world.report(lost, frames=[frame(1)], split=SLOW)
    with world.db.write() as conn:
        leases.lose(conn, [(task_id, lost.epoch)], error="gone", node_lost=True, settings=world.config)
    (task,) = world.begin(task_id, slot=1)
    with world.db.write() as conn:
        assert finish(conn, late, world.slot_ids[0], None, world.config) == "fenced_off"
    assert _rows(world, job_id) == [(0, "1-10", "running")]
    report = world.report(task, frames=[frame(n) for n in range(1, 8)], split=SLOW)
    with world.db.write() as conn:
        verdicts = finish_many(conn, [report, report], world.slot_ids[1], None, world.config)
    assert verdicts == ["counted", "repeated"]
    after = _rows(world, job_id)
    assert after == [(0, "1-7", "done"), (1, "8-10", "ready")]
    with world.db.write() as conn:
        assert finish(conn, report, world.slot_ids[1], None, world.config) == "repeated"
        assert finish(conn, late, world.slot_ids[0], None, world.config) == "fenced_off"
    assert _rows(world, job_id) == after
    assert len(_events(world)) == 1
    world.check()


def test_nobody_makes_the_rest_of_a_job_that_was_cancelled_meanwhile(world: World) -> None:
    job_id = world.job(_step(), step("film", None, after=[("render", "whole")]))
    (task,) = world.begin(*world.tasks(job_id, "render"))
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    assert _leave(world, task, "1-7") == "counted"
    assert _rows(world, job_id) == [(0, "1-10", "cancelled")]
    assert (world.state(job_id), world.step(job_id, "render").frames_done) == ("cancelled", 7)
    assert _events(world) == []
    world.check()


def test_a_chunk_that_is_whole_after_all_is_just_done(world: World) -> None:
    job_id = world.job(_step())
    (task,) = world.begin(*world.tasks(job_id))
    _leave(world, task, "1-10")
    assert _rows(world, job_id) == [(0, "1-10", "done")]
    assert (world.state(job_id), _events(world)) == ("done", [])
    world.check()


def test_an_attempt_that_made_no_frame_at_all_has_failed(world: World) -> None:
    world.config = settings()
    job_id = world.job(_step(max_retries=0))
    (task,) = world.begin(*world.tasks(job_id))
    world.end(task, frames=[], split=SLOW)
    assert _rows(world, job_id) == [(0, "1-10", "failed")]
    assert "10 of its frames were never published" in world.task(task.task_id).error
    world.check()


def test_tasks_of_one_bundle_split_each_by_itself(world: World) -> None:
    job_id = world.job(_step(chunk=5))
    one, two = world.begin(*world.tasks(job_id))
    reports = [
        world.report(one, frames=[frame(n) for n in (1, 2)], split=SLOW),
        world.report(two, frames=[frame(n) for n in (6, 7, 8, 9)], split=SLOW),
    ]
    with world.db.write() as conn:
        finish_many(conn, reports, world.slot_ids[0], None, world.config)
    assert _rows(world, job_id) == [
        (0, "1-2", "done"), (1, "6-9", "done"), (2, "3-5", "ready"), (3, "10", "ready"),
    ]  # fmt: skip
    world.check()
