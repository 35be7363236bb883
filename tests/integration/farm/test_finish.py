"""How attempts end, and what becomes of their tasks: retries, what is free, what is fenced off."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from farm import ledger
from farm.db.connect import Database
from farm.db.tables import artifacts, attempts, contents, frames, projects, slots
from farm.lifecycle import leases
from farm.lifecycle.finish import finish_many
from farm.records import ArtifactRecord, Cost, TimeSplit
from farm.states import AttemptState
from tests.integration.farm.world import World, frame, settings, step


@pytest.fixture
def world(db: Database) -> World:
    return World(db).build()


def _attempts(world: World, task_id: str) -> list[tuple[int, str, bool, str | None]]:
    with world.db.read() as conn:
        query = (
            sa.select(attempts.c.number, attempts.c.state, attempts.c.charged, attempts.c.error_type)
            .where(attempts.c.task_id == task_id)
            .order_by(attempts.c.number)
        )
        return [(n, state, bool(charged), kind) for n, state, charged, kind in conn.execute(query)]


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
    assert _attempts(world, task_id) == [(1, "failed", True, "frames-missing")]
    assert world.state(job_id) == "failed"
    world.check()


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_task_that_always_fails_is_tried_once_more_than_it_has_retries(world: World, retries: int) -> None:
    """OpenCue 2477: retries 3, always failing, is 4 attempts."""
    job_id = world.job(step(frames="1", max_retries=retries))
    (task_id,) = world.tasks(job_id)
    tries = 0
    while world.task(task_id).state != "failed":
        world.run(task_id, AttemptState.FAILED, error=f"no light {tries}", error_type="task-failed")
        tries += 1
        assert tries < 10
    assert tries == retries + 1
    row = world.task(task_id)
    assert (row.error, row.charged) == (f"no light {retries}", retries + 1)
    assert [state for _, state, _, _ in _attempts(world, task_id)] == ["failed"] * (retries + 1)
    assert world.state(job_id) == "failed"
    world.check()


def test_a_permanent_failure_fails_at_once(world: World) -> None:
    job_id = world.job(step(frames="1", max_retries=5))
    (task_id,) = world.tasks(job_id)
    world.run(task_id, AttemptState.FAILED, permanent=True, error="the scene is broken")
    assert world.task(task_id).state == "failed"
    world.check()


def test_preempted_is_free(world: World) -> None:
    """OpenCue PR 2169: retries 0, preempted, still succeeds."""
    job_id = world.job(step(frames="1", max_retries=0))
    (task_id,) = world.tasks(job_id)
    for _ in range(3):
        world.run(task_id, AttemptState.PARKED, checkpoint="c" * 64)
        assert world.task(task_id).state == "ready"
    world.run(task_id, AttemptState.INTERRUPTED)
    (task,) = world.begin(task_id)
    assert task.checkpoint == "c" * 64
    assert task.attempt_number == 5
    assert world.end(task) == "counted"
    assert world.state(job_id) == "done"
    assert world.task(task_id).checkpoint is None
    assert not any(charged for _, _, charged, _ in _attempts(world, task_id))
    world.check()


def test_node_losses_are_free_three_times(world: World) -> None:
    world.config = settings(free_node_losses=3)
    job_id = world.job(step(frames="1", max_retries=1))
    (task_id,) = world.tasks(job_id)
    charged = []
    for _ in range(5):
        (task,) = world.begin(task_id)
        with world.db.write() as conn:
            held = [(task_id, task.epoch)]
            lost = leases.lose(conn, held, error="gone", node_lost=True, settings=world.config)
        assert lost == [task_id]
        charged.append(world.task(task_id).charged)
        if world.task(task_id).state == "failed":
            break
    assert charged == [0, 0, 0, 1, 2]
    assert world.state(job_id) == "failed"
    world.check()


def test_a_slot_that_dies_costs_a_retry_and_the_task_travels_alone(world: World) -> None:
    """celery 3053, 3541: a task that kills its worker does not loop for ever."""
    job_id = world.job(step(frames="1", max_retries=1))
    (task_id,) = world.tasks(job_id)
    world.run(task_id, AttemptState.LOST, killed_slot=True, error="the slot was killed by signal 9")
    assert world.task(task_id).solo
    world.run(task_id, AttemptState.LOST, killed_slot=True, error="the slot was killed by signal 9")
    row = world.task(task_id)
    assert (row.state, row.error) == ("failed", "the slot was killed by signal 9")
    world.check()


def test_a_dying_attempt_keeps_the_frames_that_are_done(world: World) -> None:
    job_id = world.job(step(frames="1-4", chunk=4, max_retries=1))
    (task_id,) = world.tasks(job_id)
    (task,) = world.begin(task_id)
    world.end(task, AttemptState.FAILED, frames=[frame(2), frame(3)])
    (again,) = world.begin(task_id)
    assert again.frames == "1,4"
    assert world.end(again) == "counted"
    assert world.state(job_id) == "done"
    with world.db.read() as conn:
        owners = dict(conn.execute(sa.select(frames.c.number, frames.c.attempt_id)).all())
    assert {n: owner == task.attempt_id for n, owner in owners.items()} == {
        1: False, 2: True, 3: True, 4: False,
    }  # fmt: skip
    world.check()


def test_a_task_whose_frames_are_all_there_has_only_to_finish(world: World) -> None:
    job_id = world.job(step(frames="1-2", chunk=2, max_retries=1))
    (task_id,) = world.tasks(job_id)
    (task,) = world.begin(task_id)
    world.end(task, AttemptState.LOST, frames=[frame(1), frame(2)])
    (again,) = world.begin(task_id)
    assert again.frames == ""
    assert world.end(again) == "counted"
    assert world.state(job_id) == "done"
    world.check()


def test_the_same_report_twice_counts_once(world: World) -> None:
    """OpenCue PR 2473: a report is replayed until it is answered."""
    job_id = world.job(step(frames="1"))
    (task_id,) = world.tasks(job_id)
    (task,) = world.begin(task_id)
    report = world.report(task)
    with world.db.write() as conn:
        assert finish_many(conn, [report, report], world.slot_ids[0], None, world.config) == [
            "counted",
            "repeated",
        ]
    for _ in range(3):
        with world.db.write() as conn:
            assert finish_many(conn, [report], world.slot_ids[0], None, world.config) == ["repeated"]
    with world.db.read() as conn:
        assert conn.scalar(sa.select(projects.c.used_slot_s)) == 0.5
    world.check()


def test_a_fenced_off_attempt_can_neither_publish_nor_report(world: World) -> None:
    """OpenCue 2438: a frame is rendered by two hosts, the late one must not count."""
    job_id = world.job(step(frames="1"))
    (task_id,) = world.tasks(job_id)
    (slow,) = world.begin(task_id, slot=0)
    with world.db.write() as conn:
        leases.lose(conn, [(task_id, slow.epoch)], error="lease over", settings=world.config)
    (fast,) = world.begin(task_id, slot=1)
    assert fast.epoch == slow.epoch + 1
    late = world.report(slow, frames=[frame(1, content="late")])
    with world.db.write() as conn:
        assert finish_many(conn, [late], world.slot_ids[0], None, world.config) == ["fenced_off"]
    assert world.task(task_id).state == "running"
    assert world.end(fast, slot=1, frames=[frame(1, content="good")]) == "counted"
    with world.db.write() as conn:
        assert finish_many(conn, [late], world.slot_ids[0], None, world.config) == ["fenced_off"]
    with world.db.read() as conn:
        hashes = set(conn.scalars(sa.select(contents.c.sha256)))
    assert hashes == {frame(1, content="good").files[0].sha256}
    assert [state for _, state, _, _ in _attempts(world, task_id)] == ["lost", "done"]
    world.check()


def test_a_report_that_comes_first_after_its_task_went_on_closes_the_attempt(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task_id,) = world.tasks(job_id)
    (task,) = world.begin(task_id)
    from farm.lifecycle.commands import cancel_job

    with world.db.write() as conn:
        cancel_job(conn, job_id)
    assert world.end(task, AttemptState.CANCELLED) == "counted"
    assert world.end(task, AttemptState.DONE) == "repeated"
    assert world.task(task_id).state == "cancelled"
    world.check()


def test_one_failing_task_of_a_bundle_does_not_fail_the_others(world: World) -> None:
    job_id = world.job(step(frames="1-4", max_retries=0))
    ids = world.tasks(job_id)
    bundle = world.begin(*ids)
    assert [task.task_id for task in bundle] == ids
    reports = [world.report(task) for task in bundle]
    reports[1] = world.report(bundle[1], AttemptState.FAILED, error="bad pixel")
    with world.db.write() as conn:
        verdicts = finish_many(conn, reports, world.slot_ids[0], None, world.config)
    assert verdicts == ["counted"] * 4
    assert world.states(job_id) == ["done", "failed", "done", "done"]
    assert world.step(job_id, "render").mean_task_s == pytest.approx(0.5)
    with world.db.read() as conn:
        assert conn.scalar(sa.select(slots.c.state).where(slots.c.id == world.slot_ids[0])) == "idle"
    world.check()


def test_a_failed_task_waits_longer_before_each_retry(world: World) -> None:
    world.config = settings(retry_backoff_s=10.0, retry_backoff_max_s=25.0)
    job_id = world.job(step(frames="1", max_retries=9))
    (task_id,) = world.tasks(job_id)
    pauses = []
    for _ in range(4):
        world.run(task_id, AttemptState.FAILED)
        row = world.task(task_id)
        pauses.append(round(row.not_before - row.ready_at))
        assert world.dispatch([task_id]) is None
        with world.db.write() as conn:
            conn.execute(sa.text("UPDATE tasks SET not_before = 0"))
    assert pauses == [10, 20, 25, 25]


def test_the_cost_and_the_time_split_of_an_attempt_are_kept(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task_id,) = world.tasks(job_id)
    cost = Cost(slot_s=2.5, cpu_s=1.0, gpu_s=float("nan"), energy_j=None, peak_rss=10, peak_vram=2**40)
    world.run(
        task_id,
        cost=cost,
        times=TimeSplit(fetch_s=0.1, work_s=2.0, write_s=0.25, held_s=0.5),
        device={"kind": "cpu", "note": "\x00"},
    )
    with world.db.read() as conn:
        row = conn.execute(sa.select(attempts)).one()
        used = conn.execute(sa.select(projects.c.used_slot_s, projects.c.used_gpu_s)).one()
    assert (row.slot_s, row.cpu_s, row.gpu_s, row.peak_vram) == (2.5, 1.0, None, 2**40)
    assert (row.fetch_s, row.work_s, row.write_s, row.held_s) == (0.1, 2.0, 0.25, 0.5)
    assert row.queue_s is not None and row.queue_s >= 0
    assert used == (2.5, 0.0)


def test_artifacts_of_a_done_task_are_recorded(world: World) -> None:
    job_id = world.job(step("encode", None))
    (task_id,) = world.tasks(job_id)
    film = ArtifactRecord("film.mp4", "f" * 64, 1234, "video/mp4", {"fps": 24})
    world.run(task_id, artifacts=[film])
    with world.db.read() as conn:
        row = conn.execute(sa.select(artifacts)).one()
    assert (row.name, row.sha256, row.bytes, row.meta) == ("film.mp4", "f" * 64, 1234, {"fps": 24})
    world.check()


def test_an_ended_attempt_gives_its_buffers_back(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task_id,) = world.tasks(job_id)
    with world.db.write() as conn:
        ledger.set_budget(conn, world.node_id, "shm", 100)
    (task,) = world.begin(task_id)
    with world.db.write() as conn:
        ledger.reserve(
            conn, world.node_id, world.slot_ids[0], "shm", 60, "frame staging",
            task_id=task_id, attempt_id=task.attempt_id, epoch=task.epoch,
        )  # fmt: skip
    world.end(task)
    with world.db.write() as conn:
        assert ledger.reserve(conn, world.node_id, None, "shm", 100, "frame staging") is not None
    world.check()


def test_an_error_with_broken_bytes_is_kept_readable(world: World) -> None:
    """OpenCue 2118: a log line with NUL and bytes that are no UTF-8."""
    job_id = world.job(step(frames="1", max_retries=0))
    (task_id,) = world.tasks(job_id)
    broken = b"\x82\xff\x00".decode("utf-8", "surrogateescape") + "x" * 1_000_000
    world.run(task_id, AttemptState.FAILED, error=broken)
    row = world.task(task_id)
    assert row.error.startswith("??\N{REPLACEMENT CHARACTER}xxx")
    assert len(row.error) <= 20_000


def test_a_report_of_a_running_attempt_is_a_mistake(world: World) -> None:
    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    with pytest.raises(ValueError, match="still runs"):
        world.end(task, AttemptState.RUNNING)


def test_a_report_for_a_deleted_job_is_fenced_off(world: World, tmp_path: Path) -> None:
    from farm.lifecycle.commands import cancel_job, delete_job

    job_id = world.job(step(frames="1"))
    (task,) = world.begin(*world.tasks(job_id))
    with world.db.write() as conn:
        cancel_job(conn, job_id)
    assert world.end(task, AttemptState.CANCELLED) == "counted"
    with world.db.write() as conn:
        delete_job(conn, job_id)
    assert world.end(task) == "fenced_off"
    world.check()
