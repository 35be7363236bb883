"""Many connections at once: nothing is done twice, lost, miscounted or deadlocked; events are not missed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from farm import events, ledger
from farm.db.connect import Database
from farm.db.tables import attempts, steps, tasks
from farm.errors import Conflict
from farm.lifecycle import leases, machines
from farm.lifecycle.claim import claim
from farm.lifecycle.commands import cancel_job, pause_job, resume_job, retake, retry_job
from farm.lifecycle.dispatch import dispatch_many
from farm.lifecycle.finish import finish_many
from farm.lifecycle.publish import publish_frames
from farm.records import Ticket
from farm.states import AttemptState
from tests.integration.farm.world import World, frame, step

THREADS = 4


def _together(*works: Callable[[], None], limit_s: float = 150.0) -> None:
    """Run these in threads; raise what any of them raised."""
    faults: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    until = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if faults:
        raise faults[0]


def test_one_ticket_claimed_by_many_at_once_begins_once(db: Database) -> None:
    world = World(db).build()
    ids = world.tasks(world.job(step(frames="1-8")))
    ticket = world.dispatch(ids)
    assert ticket is not None
    begun: list[str] = []
    _together(*[lambda: begun.extend(t.attempt_id for t in world.claim(ticket)) for _ in range(THREADS)])
    assert len(begun) == 8
    with db.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(attempts)) == 8
    world.check()


def test_two_schedulers_never_give_one_task_to_two_slots(db: Database) -> None:
    world = World(db).build(slots=THREADS)
    ids = world.tasks(world.job(step(frames="1-20")))
    tickets: list[Ticket] = []

    def give(slot: int) -> Callable[[], None]:
        def work() -> None:
            ticket = world.dispatch(ids, slot)
            if ticket is not None:
                tickets.append(ticket)

        return work

    _together(*[give(slot) for slot in range(THREADS)])
    given = [entry.task_id for ticket in tickets for entry in ticket.entries]
    assert len(given) == len(set(given))
    world.check()


def test_one_report_finished_by_many_at_once_counts_once(db: Database) -> None:
    world = World(db).build()
    job_id = world.job(step(frames="1-6"))
    bundle = world.begin(*world.tasks(job_id))
    reports = [world.report(task) for task in bundle]
    verdicts: list[str] = []

    def work() -> None:
        with db.write() as conn:
            verdicts.extend(finish_many(conn, reports, world.slot_ids[0], None, world.config))

    _together(*[work] * THREADS)
    assert sorted(verdicts) == ["counted"] * 6 + ["repeated"] * 6 * (THREADS - 1)
    assert world.state(job_id) == "done"
    world.check()


def test_two_steps_that_end_at_once_end_the_job(db: Database) -> None:
    """Each must see the other, or the job stays running for ever."""
    world = World(db).build()
    for _ in range(5):
        job_id = world.job(
            step("a", "1"), step("b", "1"), step("c", None, after=[("a", "whole"), ("b", "whole")])
        )
        (one,) = world.begin(*world.tasks(job_id, "a"), slot=0)
        (two,) = world.begin(*world.tasks(job_id, "b"), slot=1)
        _together(lambda t=one: world.end(t, slot=0), lambda t=two: world.end(t, slot=1))  # type: ignore[misc]
        assert world.states(job_id, "c") == ["ready"]
        world.run(*world.tasks(job_id, "c"))
        assert world.state(job_id) == "done"
    world.check()


def test_a_job_submitted_while_its_cause_ends_is_released(db: Database) -> None:
    world = World(db).build()
    for _ in range(5):
        first = world.job(step(frames="1"))
        (task,) = world.begin(*world.tasks(first))
        made: list[str] = []
        _together(
            lambda t=task: world.end(t),  # type: ignore[misc]
            lambda f=first, m=made: m.append(world.job(step(frames="1"), after=[f])),  # type: ignore[misc]
        )
        assert world.states(made[0]) == ["ready"]
    world.check()


@pytest.mark.timeout(300)
def test_a_busy_farm_with_people_and_losses_neither_deadlocks_nor_miscounts(db: Database) -> None:
    """Slots work, a scheduler dispatches, people command and the reconciler takes back, all at once."""
    world = World(db).build(slots=THREADS)
    with db.write() as conn:
        ledger.set_budget(conn, world.node_id, "shm", 10_000)
    job_ids = [
        world.job(
            step(frames="1-30", max_retries=100),
            step("comp", "1-30", chunk=3, after=[("render", "frames")], max_retries=100),
            step("encode", None, after=[("comp", "whole")], max_retries=100),
        )
        for _ in range(2)
    ]
    job_ids.append(world.job(step(frames="1-10", max_retries=100), after=job_ids[:1]))
    stop = threading.Event()
    tickets: dict[str, list[Ticket]] = {slot_id: [] for slot_id in world.slot_ids}

    def schedule() -> None:
        luck = random.Random(1)
        while not stop.is_set():
            with db.write() as conn:
                choices = []
                for slot_id in world.slot_ids:
                    ready = conn.scalars(sa.select(steps.c.id).where(steps.c.n_ready > 0)).all()
                    if ready:
                        query = sa.select(tasks.c.id).where(
                            tasks.c.step_id == luck.choice(ready), tasks.c.state == "ready"
                        )
                        choices.append((slot_id, list(conn.scalars(query.limit(luck.randint(1, 4))))))
                made = dispatch_many(conn, choices)
            for one in made:
                tickets[one.slot_id].append(one.ticket)
            stop.wait(0.005)

    def work(slot_id: str) -> Callable[[], None]:
        def loop() -> None:
            luck = random.Random(slot_id)
            while not stop.is_set():
                if not tickets[slot_id]:
                    stop.wait(0.002)
                    continue
                ticket = tickets[slot_id].pop(0)
                with db.write() as conn:
                    begun = claim(conn, ticket, slot_id, world.incarnation, 30.0)
                if not begun:
                    with db.write() as conn:
                        machines.slot_ready(conn, slot_id, world.incarnation, 1)
                    continue
                with db.write() as conn:
                    leases.extend(conn, world.node_id, [(t.task_id, t.epoch) for t in begun], 30.0)
                reports = []
                for task in begun:
                    with db.write() as conn:
                        ledger.reserve(
                            conn, world.node_id, slot_id, "shm", 10, "frame staging",
                            task_id=task.task_id, attempt_id=task.attempt_id, epoch=task.epoch,
                        )  # fmt: skip
                    if task.frames:
                        made = frame(int(task.frames.split(",")[0].split("-")[0]), take=task.take)
                        with db.write() as conn:
                            publish_frames(conn, task.task_id, task.epoch, task.attempt_id, [made])
                    states = [AttemptState.DONE] * 8 + [AttemptState.FAILED, AttemptState.PARKED]
                    reports.append(world.report(task, luck.choice(states)))
                with db.write() as conn:
                    finish_many(conn, reports, slot_id, None, world.config)

        return loop

    def people() -> None:
        luck = random.Random(2)
        commands = [pause_job, resume_job, resume_job, retry_job]
        while not stop.is_set():
            try:
                with db.write() as conn:
                    luck.choice(commands)(conn, luck.choice(job_ids))
            except Conflict:
                pass
            stop.wait(0.01)

    def reconcile() -> None:
        luck = random.Random(3)
        while not stop.is_set():
            with db.read() as conn:
                running = conn.execute(
                    sa.select(tasks.c.id, tasks.c.epoch).where(tasks.c.state == "running")
                ).all()
            if running:
                chosen = [tuple(row) for row in luck.sample(running, min(2, len(running)))]
                with db.write() as conn:
                    leases.lose(conn, chosen, error="lost", charged=False, settings=world.config)
            with db.write() as conn:
                leases.return_unclaimed(conn, 0.5)
                ledger.reconcile_orphans(conn)
            stop.wait(0.05)

    def watch() -> None:
        until = time.monotonic() + 100
        ended: set[str] = set()
        retaken = False
        while time.monotonic() < until and len(ended) < 3:
            time.sleep(0.05)
            ended = {job_id for job_id in job_ids if world.state(job_id) in ("done", "failed", "cancelled")}
            if not retaken and world.step(job_ids[1], "render").n_done > 10:
                retaken = True
                with db.write() as conn:
                    retake(conn, world.step(job_ids[1], "render").id)
                with db.write() as conn:
                    cancel_job(conn, job_ids[1])
            for job_id in job_ids:
                with db.write() as conn:
                    resume_job(conn, job_id)
        stop.set()

    _together(schedule, people, reconcile, watch, *[work(slot_id) for slot_id in world.slot_ids], limit_s=200)
    world.check()
    assert world.state(job_ids[0]) == "done"
    assert world.state(job_ids[1]) == "cancelled"
    assert world.state(job_ids[2]) == "done"


def test_a_budget_is_never_passed_however_many_reserve(db: Database) -> None:
    world = World(db).build()
    with db.write() as conn:
        ledger.set_budget(conn, world.node_id, "shm", 100)
    got: list[str] = []

    def work() -> None:
        for _ in range(6):
            with db.write() as conn:
                buffer_id = ledger.reserve(conn, world.node_id, None, "shm", 7, "frame staging")
            if buffer_id is not None:
                got.append(buffer_id)

    _together(*[work] * THREADS)
    assert len(got) == 14
    world.check()


def test_a_reader_misses_no_event_of_a_late_commit(db: Database) -> None:
    """Ids are given before commit: a reader that asks for ``id > last`` would miss some."""
    each = 40
    stop = threading.Event()
    seen: list[int] = []

    def write(number: int) -> Callable[[], None]:
        def loop() -> None:
            luck = random.Random(number)
            for index in range(each):
                with db.write() as conn:
                    events.emit(conn, "slot.state", data={"writer": number, "index": index})
                    if not db.is_sqlite:
                        time.sleep(luck.random() * 0.01)
                    events.emit(conn, "slot.state", data={"writer": number, "index": -1})

        return loop

    def read() -> None:
        last = 0
        while True:
            finished = stop.is_set()
            with db.read() as conn:
                found = events.read_after(conn, last, 7)
            for row in found:
                seen.append(row.id)
                last = row.id
            if not found:
                if finished:
                    return
                time.sleep(0.001)

    def writers() -> None:
        try:
            _together(*[write(number) for number in range(THREADS)])
        finally:
            stop.set()

    _together(read, writers)
    assert len(seen) == len(set(seen)) == 2 * each * THREADS


def test_events_of_an_open_transaction_hold_later_ones_back(postgres_db: Database) -> None:
    with postgres_db.engine.connect() as slow, slow.begin():
        events.emit(slow, "slot.state", data={"n": 1})
        with postgres_db.write() as conn:
            events.emit(conn, "slot.state", data={"n": 2})
        with postgres_db.read() as conn:
            assert events.read_after(conn, 0) == []
    with postgres_db.read() as conn:
        assert [row.data["n"] for row in events.read_after(conn, 0)] == [1, 2]


def test_a_reader_resumes_where_ids_and_commits_disagree(postgres_db: Database) -> None:
    """The older transaction takes the larger id: resuming by id alone would skip the other one."""
    with postgres_db.engine.connect() as older, older.begin():
        older.execute(sa.text("SELECT pg_current_xact_id()"))
        with postgres_db.engine.connect() as younger, younger.begin():
            events.emit(younger, "slot.state", data={"n": "small id, young transaction"})
            events.emit(older, "slot.state", data={"n": "large id, old transaction"})
    with postgres_db.read() as conn:
        rows = events.read_after(conn, 0)
        assert [row.id for row in rows] == [2, 1]
        assert [row.id for row in events.read_after(conn, rows[0].id)] == [1]
        assert events.read_after(conn, rows[1].id) == []
        assert events.newest_id(conn) == 1
