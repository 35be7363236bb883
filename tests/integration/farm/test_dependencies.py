"""What becomes ready, is made, or can never be reached when other tasks, steps and jobs end."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm.db.connect import Database
from farm.db.tables import tasks
from farm.errors import Conflict, InvalidInput
from farm.frame_range import FrameRange
from farm.lifecycle import leases
from farm.lifecycle.commands import cancel_job, delete_job, retake, retry_job
from farm.lifecycle.publish import record_contents
from farm.plan import StepPlan, TaskPlan
from farm.states import AttemptState
from tests.integration.farm.world import World, deferred, settings, step

FAILED = AttemptState.FAILED


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def test_a_step_waits_for_the_whole_of_another(world: World) -> None:
    job_id = world.job(step(frames="1-2"), step("encode", None, after=[("render", "whole")]))
    first, second = world.tasks(job_id, "render")
    assert world.states(job_id, "encode") == ["blocked"]
    world.run(second)
    assert world.states(job_id, "encode") == ["blocked"]
    world.run(first)
    assert world.states(job_id, "encode") == ["ready"]
    world.run(*world.tasks(job_id, "encode"))
    assert world.state(job_id) == "done"
    world.check()


def test_a_task_waits_only_for_those_that_make_its_frames(world: World) -> None:
    job_id = world.job(
        step(frames="1-6", chunk=2), step("comp", "1-6", chunk=3, after=[("render", "frames")])
    )
    a, b, c = world.tasks(job_id, "render")
    assert world.states(job_id, "comp") == ["blocked", "blocked"]
    world.run(c)
    assert world.states(job_id, "comp") == ["blocked", "blocked"]
    world.run(b)
    # 4-6 needs 3-4 and 5-6
    assert world.states(job_id, "comp") == ["blocked", "ready"]
    world.run(a)
    assert world.states(job_id, "comp") == ["ready", "ready"]
    world.check()


def test_a_frame_that_nobody_makes_is_not_waited_for(world: World) -> None:
    job_id = world.job(step(frames="1-2"), step("comp", "3-4", after=[("render", "frames")]))
    assert world.states(job_id, "comp") == ["ready", "ready"]
    world.check()


def test_a_failure_makes_only_what_needs_it_unreachable(world: World) -> None:
    job_id = world.job(
        step(frames="1-2", max_retries=0),
        step("comp", "1-2", after=[("render", "frames")]),
        step("encode", None, after=[("comp", "whole")]),
    )
    first, second = world.tasks(job_id, "render")
    world.run(first, FAILED)
    assert world.states(job_id, "comp") == ["unreachable", "blocked"]
    assert world.states(job_id, "encode") == ["blocked"]
    world.run(second)
    world.run(world.tasks(job_id, "comp")[1])
    # everything that could be done is done; the film cannot be
    assert world.states(job_id, "encode") == ["unreachable"]
    assert world.state(job_id) == "failed"
    world.check()


def test_retry_takes_up_only_what_failed_and_what_it_made_unreachable(world: World) -> None:
    job_id = world.job(
        step(frames="1-3", max_retries=1),
        step("comp", "1-3", after=[("render", "frames")]),
        step("encode", None, after=[("comp", "whole")]),
    )
    one, two, three = world.tasks(job_id, "render")
    for task_id in (one, three):
        world.run(task_id)
    world.run(two, FAILED)
    world.run(two, FAILED)
    for task_id in (world.tasks(job_id, "comp")[0], world.tasks(job_id, "comp")[2]):
        world.run(task_id)
    assert world.state(job_id) == "failed"
    epoch = world.task(two).epoch
    with world.db.write() as conn:
        assert retry_job(conn, job_id) == 1
    assert world.states(job_id) == ["done", "ready", "done", "done", "blocked", "done", "blocked"]
    row = world.task(two)
    assert (row.epoch, row.charged, row.error) == (epoch + 1, 0, None)
    assert world.state(job_id) == "running"
    world.check()
    world.run(two, FAILED)
    assert world.task(two).state == "ready", "the retry budget is fresh"
    world.run(two)
    world.run(world.tasks(job_id, "comp")[1])
    world.run(*world.tasks(job_id, "encode"))
    assert world.state(job_id) == "done"
    world.check()


def test_there_is_nothing_to_retry_in_a_job_without_failures(world: World) -> None:
    job_id = world.job(step(frames="1"))
    with pytest.raises(Conflict, match="nothing to retry"), world.db.write() as conn:
        retry_job(conn, job_id)


def test_a_failed_task_can_be_retried_while_others_run(world: World) -> None:
    job_id = world.job(step(frames="1-2", max_retries=0))
    first, second = world.tasks(job_id)
    (running,) = world.begin(second, slot=1)
    world.run(first, FAILED)
    with world.db.write() as conn:
        retry_job(conn, job_id)
    assert world.states(job_id) == ["ready", "running"]
    world.end(running, slot=1)
    world.run(first)
    assert world.state(job_id) == "done"
    world.check()


# --- jobs after jobs ---------------------------------------------------------------------------------


def test_a_job_waits_for_those_that_it_comes_after(world: World) -> None:
    one, two = world.job(step(frames="1")), world.job(step(frames="1"))
    later = world.job(step(frames="1"), step("encode", None, after=[("render", "whole")]), after=[one, two])
    world.run(*world.tasks(two))
    assert world.states(later) == ["blocked", "blocked"]
    world.run(*world.tasks(one))
    assert world.states(later) == ["ready", "blocked"]
    world.run(world.tasks(later)[0])
    assert world.states(later) == ["done", "ready"]
    world.check()


def test_a_job_after_a_done_job_begins_at_once(world: World) -> None:
    first = world.job(step(frames="1"))
    world.run(*world.tasks(first))
    assert world.states(world.job(step(frames="1"), after=[first])) == ["ready"]
    world.check()


def test_jobs_after_a_failed_job_are_unreachable_until_it_is_retried(world: World) -> None:
    first = world.job(step(frames="1", max_retries=0))
    second = world.job(step(frames="1"), after=[first])
    third = world.job(step(frames="1"), after=[second])
    world.run(*world.tasks(first), FAILED)
    late = world.job(step(frames="1"), after=[first])
    for job_id in (second, third, late):
        assert (world.states(job_id), world.state(job_id)) == (["unreachable"], "failed")
    assert first in world.task(world.tasks(second)[0]).error
    with pytest.raises(Conflict, match="retry that one first"), world.db.write() as conn:
        retry_job(conn, second)
    with world.db.write() as conn:
        retry_job(conn, first)
    assert [world.state(j) for j in (second, third, late)] == ["waiting"] * 3
    world.check()
    for job_id in (first, second, third):
        world.run(*world.tasks(job_id))
    assert world.states(late) == ["ready"]
    world.check()


def test_a_job_after_a_cancelled_job_is_refused(world: World) -> None:
    first = world.job(step(frames="1"))
    with world.db.write() as conn:
        cancel_job(conn, first)
    with pytest.raises(InvalidInput, match=r"/after/0.*cancelled"):
        world.job(step(frames="1"), after=[first])


def test_a_job_that_others_wait_for_cannot_be_deleted(world: World) -> None:
    one, two = world.job(step(frames="1", max_retries=0)), world.job(step(frames="1"))
    later = world.job(step(frames="1"), after=[one, two])
    world.run(*world.tasks(two))
    world.run(*world.tasks(one))
    with world.db.write() as conn:
        delete_job(conn, one)
    assert world.states(later) == ["ready"]
    world.check()


def test_retry_after_the_cause_was_deleted_says_so(world: World) -> None:
    first = world.job(step(frames="1", max_retries=0))
    later = world.job(step(frames="1"), after=[first])
    world.run(*world.tasks(first), FAILED)
    with world.db.write() as conn:
        delete_job(conn, first)
    with pytest.raises(Conflict, match="deleted before it was done"), world.db.write() as conn:
        retry_job(conn, later)
    world.check()


# --- deferred steps ----------------------------------------------------------------------------------


class Kind:
    """A kind whose deferred step renders as many frames as the preflight found."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], str, list[Any], dict[str, Any]]] = []
        self.fault: Exception | None = None
        self.tasks = True

    def __call__(
        self, kind: str, spec: dict[str, Any], name: str, results: list[dict[str, Any]], assets: Any
    ) -> StepPlan:
        self.asked.append((kind, spec, name, results, dict(assets)))
        if self.fault is not None:
            raise self.fault
        found = sum(result["frames"] for result in results)
        return step(name, f"1-{found}", tasks=None if self.tasks else [], payload={"found": found})


def _deferred_job(world: World, **values: Any) -> str:
    two = [TaskPlan(payload={"part": 1}), TaskPlan(payload={"part": 2})]
    with world.db.write() as conn:
        record_contents(conn, [("a" * 64, 5)])
    return world.job(
        step("preflight", None, tasks=two, max_retries=0),
        deferred("render", "preflight", after=[("preflight", "whole")]),
        step("comp", "1-4", after=[("render", "frames")]),
        step("encode", None, after=[("comp", "whole")]),
        spec={"scene": "s.xml"},
        assets={"s.xml": "a" * 64},
        **values,
    )


def test_a_deferred_step_is_made_from_what_was_found(world: World) -> None:
    kind = Kind()
    job_id = _deferred_job(world)
    one, two = world.tasks(job_id, "preflight")
    assert world.states(job_id, "comp") == ["blocked"] * 4
    world.run(two, result={"frames": 1}, expander=kind)
    assert (kind.asked, world.states(job_id, "render")) == ([], [])
    assert world.state(job_id) == "running"
    world.run(one, result={"frames": 2}, expander=kind)
    assert kind.asked == [
        ("probe", {"scene": "s.xml"}, "render", [{"frames": 2}, {"frames": 1}], {"s.xml": ("a" * 64, 5)})
    ]
    assert world.states(job_id, "render") == ["ready"] * 3
    row = world.step(job_id, "render")
    assert (row.deferred, row.frames_total, row.payload) == (False, 3, {"found": 3})
    # frame 4 is made by nobody, the others wait for theirs
    assert world.states(job_id, "comp") == ["blocked"] * 3 + ["ready"]
    world.check()
    for task_id in [*world.tasks(job_id, "render"), *world.tasks(job_id, "comp")]:
        world.run(task_id)
    world.run(*world.tasks(job_id, "encode"))
    assert world.state(job_id) == "done"
    world.check()


@pytest.mark.parametrize("fault", [InvalidInput("no camera was registered"), RuntimeError("boom"), None])
def test_a_step_that_cannot_be_planned_fails_its_cause_with_the_reason(
    world: World, fault: Exception | None
) -> None:
    kind = Kind()
    kind.fault, kind.tasks = fault, fault is not None
    job_id = _deferred_job(world)
    one, two = world.tasks(job_id, "preflight")
    world.run(one, result={"frames": 1}, expander=kind)
    world.run(two, result={"frames": 1}, expander=kind)
    assert world.states(job_id, "preflight") == ["done", "failed"]
    words = str(fault) if fault is not None else "has no tasks"
    # a refusal of what was submitted stands for itself
    refused = isinstance(fault, InvalidInput)
    assert ("step 'render' could not be planned: " in world.task(two).error) is not refused
    assert world.task(two).result == {"frames": 1}
    assert words in world.task(two).error
    assert world.step(job_id, "render").state == "failed"
    assert world.state(job_id) == "failed"
    assert world.states(job_id, "comp") == ["unreachable"] * 4
    assert world.states(job_id, "encode") == ["unreachable"]
    world.check()
    kind.fault, kind.tasks = None, True
    with world.db.write() as conn:
        retry_job(conn, job_id)
    assert world.step(job_id, "render").state == "waiting"
    world.check()
    world.run(two, result={"frames": 2}, expander=kind)
    assert world.states(job_id, "render") == ["ready"] * 3
    world.check()


def test_a_deferred_step_is_held_to_the_limits_of_the_farm(world: World) -> None:
    job_id = _deferred_job(world)
    one, two = world.tasks(job_id, "preflight")
    world.config = settings(max_tasks=9)
    world.run(one, result={"frames": 1}, expander=Kind())
    world.run(two, result={"frames": 2}, expander=Kind())
    # 2 + 4 + 1 tasks are there; three more make ten
    assert "more than 9 tasks" in world.task(two).error
    world.check()


def test_a_failed_cause_fails_the_deferred_step_and_what_follows_it(world: World) -> None:
    job_id = _deferred_job(world)
    one, two = world.tasks(job_id, "preflight")
    world.run(one, FAILED)
    assert world.step(job_id, "render").state == "waiting"
    world.run(two, result={"frames": 1}, expander=Kind())
    assert world.step(job_id, "render").state == "failed"
    assert world.states(job_id, "comp") == ["unreachable"] * 4
    assert world.states(job_id, "encode") == ["unreachable"]
    assert world.state(job_id) == "failed"
    world.check()


def test_a_cause_that_is_lost_for_good_fails_what_follows(world: World) -> None:
    job_id = _deferred_job(world)
    one, two = world.tasks(job_id, "preflight")
    world.run(two, result={"frames": 1}, expander=Kind())
    (task,) = world.begin(one)
    with world.db.write() as conn:
        leases.lose(conn, [(one, task.epoch)], error="lease over", settings=world.config)
    assert world.state(job_id) == "failed"
    assert world.states(job_id, "encode") == ["unreachable"]
    world.check()


def test_cancelling_ends_deferred_steps_as_well(world: World) -> None:
    job_id = _deferred_job(world)
    (running,) = world.begin(world.tasks(job_id, "preflight")[0])
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    assert world.state(job_id) == "running"
    # it was done before it heard of the wish: nothing more is made of it
    kind = Kind()
    world.end(running, result={"frames": 1}, expander=kind)
    assert kind.asked == []
    assert world.state(job_id) == "cancelled"
    assert world.step(job_id, "render").state == "cancelled"
    world.check()


# --- retakes and dependencies ------------------------------------------------------------------------


def test_a_retake_releases_nothing_twice(world: World) -> None:
    job_id = world.job(step(frames="1-2"), step("encode", None, after=[("render", "whole")]))
    later = world.job(step(frames="1"), after=[job_id])
    for task_id in world.tasks(job_id):
        world.run(task_id)
    assert world.states(later) == ["ready"]
    with world.db.write() as conn:
        retake(conn, world.step(job_id, "render").id)
    assert world.state(job_id) == "running"
    for task_id in world.tasks(job_id, "render")[2:]:
        world.run(task_id)
    assert world.state(job_id) == "done"
    assert world.states(job_id, "encode") == ["done"]
    world.check()


def _many(world: World) -> str:
    """Twenty thousand tasks behind one, and as many behind them: more ids than SQLite takes parameters."""
    shards = [TaskPlan(FrameRange.of([n])) for n in range(1, 20_001)]
    return world.job(
        step("preflight", None, max_retries=0),
        step("render", tasks=shards, after=[("preflight", "frames")]),
        step("comp", tasks=shards, after=[("render", "frames")]),
    )


def test_very_many_dependents_are_released_at_once(world: World) -> None:
    """Twice as many would take four times as long, were each compared with each."""
    job_id = _many(world)
    world.run(*world.tasks(job_id, "preflight"))
    assert world.step(job_id, "render").n_ready == 20_000
    assert world.step(job_id, "comp").n_blocked == 20_000
    with world.db.read() as conn:
        states = dict(conn.execute(sa.select(tasks.c.state, sa.func.count()).group_by(tasks.c.state)).all())
    assert states == {"done": 1, "ready": 20_000, "blocked": 20_000}


def test_very_many_dependents_are_cut_off_at_once_and_retried(world: World) -> None:
    job_id = _many(world)
    world.run(*world.tasks(job_id, "preflight"), FAILED)
    assert world.step(job_id, "comp").n_unreachable == 20_000
    assert world.state(job_id) == "failed"
    with world.db.write() as conn:
        retry_job(conn, job_id)
    assert world.step(job_id, "comp").n_blocked == 20_000
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    assert world.state(job_id) == "cancelled"
    with world.db.write() as conn:
        delete_job(conn, job_id)
