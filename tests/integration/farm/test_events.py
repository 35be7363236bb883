"""The event log: what is said, who may read what, where a reader resumes."""

from __future__ import annotations

import time

import pytest

from farm import events
from farm.db.connect import Database
from farm.events import EventFilter
from farm.states import AttemptState
from tests.integration.farm.world import PROJECT, World, step


def _types(db: Database, where: EventFilter | None = None) -> list[str]:
    with db.read() as conn:
        return [row.type for row in events.read_after(conn, 0, 1000, where)]


def test_the_life_of_a_job_is_told_in_order(db: Database) -> None:
    world = World(db).build()
    job_id = world.job(step(frames="1-2", chunk=2, max_retries=0))
    world.run(*world.tasks(job_id))
    with db.read() as conn:
        told = events.read_after(conn, 0, where=EventFilter(job_id=job_id))
    assert [row.type for row in told] == [
        "job.submitted", "task.state", "step.state", "job.state",
        "attempt.started", "frame.published", "attempt.ended", "step.state", "job.state",
    ]  # fmt: skip
    assert {row.project_id for row in told} == {PROJECT}
    assert told[-1].data == {"state": "done", "was": "running"}
    assert told[5].data == {"take": 1, "numbers": [1, 2]}
    assert all(abs(row.at - time.time()) < 60 for row in told)


def test_a_reader_resumes_after_the_last_id_that_it_saw(db: Database) -> None:
    with db.write() as conn:
        for number in range(10):
            events.emit(conn, "slot.state", data={"n": number})
    seen: list[int] = []
    last = 0
    while True:
        with db.read() as conn:
            page = events.read_after(conn, last, 3)
        if not page:
            break
        seen += [row.data["n"] for row in page]
        last = page[-1].id
    assert seen == list(range(10))
    with db.read() as conn:
        assert events.newest_id(conn) == last


def test_an_empty_log_begins_at_zero(db: Database) -> None:
    with db.read() as conn:
        assert events.newest_id(conn) == 0
        assert events.read_after(conn, 0) == []


def test_filters_keep_to_one_job_project_or_kind_of_event(db: Database) -> None:
    world = World(db).build()
    one, two = world.job(step(frames="1")), world.job(step(frames="1"))
    world.run(*world.tasks(one))
    with db.read() as conn:
        assert {row.job_id for row in events.read_after(conn, 0, where=EventFilter(job_id=two))} == {two}
        assert events.read_after(conn, 0, where=EventFilter(project_id="proj_other")) == []
    assert set(_types(db, EventFilter(types=["attempt.*"]))) == {"attempt.started", "attempt.ended"}
    assert set(_types(db, EventFilter(types=["node.state", "job.submitted"]))) == {
        "node.state",
        "job.submitted",
    }


def test_an_event_of_an_unknown_type_is_a_mistake(db: Database) -> None:
    with pytest.raises(ValueError, match=r"unknown event type 'job\.stat'"), db.write() as conn:
        events.emit(conn, "job.stat")


def test_a_rolled_back_change_says_nothing(db: Database) -> None:
    with pytest.raises(RuntimeError), db.write() as conn:
        events.emit(conn, "slot.state")
        raise RuntimeError
    assert _types(db) == []


def test_a_bundle_makes_one_event_per_step_not_per_task(db: Database) -> None:
    world = World(db).build()
    job_id = world.job(step(frames="1-16", max_retries=0))
    bundle = world.begin(*world.tasks(job_id))
    from farm.lifecycle.finish import finish_many

    reports = [world.report(task) for task in bundle[:15]]
    reports.append(world.report(bundle[15], AttemptState.FAILED))
    with db.write() as conn:
        finish_many(conn, reports, world.slot_ids[0], None, world.config)
    told = _types(db, EventFilter(job_id=job_id))
    assert len(told) == len(set(told)) + 2  # step.state and job.state once at begin and once at end
    assert told.count("attempt.ended") == 1


def test_forgotten_events_do_not_stop_a_reader(db: Database) -> None:
    with db.write() as conn:
        for number in range(4):
            events.emit(conn, "slot.state", data={"n": number})
    with db.read() as conn:
        first = events.read_after(conn, 0)[0].id
    with db.write() as conn:
        assert events.forget_before(conn, time.time() - 3600) == 0
        conn.exec_driver_sql(f"UPDATE events SET at = 1 WHERE id <= {first + 1}")
        assert events.forget_before(conn, 2.0) == 2
    with db.read() as conn:
        assert [row.data["n"] for row in events.read_after(conn, first)] == [2, 3]


def test_an_id_does_not_come_twice_when_the_log_was_forgotten(db: Database) -> None:
    with db.write() as conn:
        events.emit(conn, "slot.state")
    with db.read() as conn:
        last = events.newest_id(conn)
    with db.write() as conn:
        assert events.forget_before(conn, time.time() + 60) == 1
        events.emit(conn, "slot.state")
    with db.read() as conn:
        assert len(events.read_after(conn, last)) == 1
