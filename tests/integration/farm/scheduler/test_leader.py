"""One leader at a time, on the database's clock; a leader that slept is fenced off."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from farm.db.connect import Database, db_now
from farm.db.tables import leaders, pools, slots, tasks
from farm.scheduler.leader import Leadership, NotLeading
from farm.scheduler.tick import TickState, tick
from farm.settings import Settings
from tests.integration.farm.scheduler.world import (
    make_job,
    make_node,
    make_project,
    make_slots,
)


def acquire(db: Database, candidate: Leadership) -> bool:
    with db.write() as conn:
        return candidate.acquire(conn)


def hold(db: Database, candidate: Leadership) -> None:
    with db.write() as conn:
        candidate.hold(conn)


def end_lease(db: Database) -> None:
    with db.write() as conn:
        conn.execute(leaders.update().values(expires_at=db_now() - 1))


def test_one_leads_and_the_other_waits_for_the_lease_to_end(db: Database) -> None:
    first, second = Leadership(60), Leadership(60)
    assert acquire(db, first)
    assert first.term == 1
    assert not acquire(db, second)
    hold(db, first)
    end_lease(db)
    assert acquire(db, second)
    assert second.term == 2


def test_leader_that_slept_past_its_lease_goes_on_while_nobody_took_over(db: Database) -> None:
    """Else a machine that is slower than the lease would never get anything done."""
    leader = Leadership(60)
    acquire(db, leader)
    end_lease(db)
    hold(db, leader)
    assert leader.term == 1
    assert not acquire(db, Leadership(60))


def test_leader_that_slept_while_another_led_and_left_is_fenced(db: Database) -> None:
    leader, other = Leadership(60), Leadership(60)
    acquire(db, leader)
    end_lease(db)
    acquire(db, other)
    with db.write() as conn:
        other.release(conn)
    with pytest.raises(NotLeading):
        hold(db, leader)
    assert leader.term is None
    assert acquire(db, leader)
    assert leader.term == 3


def test_nothing_that_a_fenced_leader_does_counts(db: Database) -> None:
    old, new = Leadership(60), Leadership(60)
    with db.write() as conn:
        make_project(conn)
    acquire(db, old)
    end_lease(db)
    acquire(db, new)
    with pytest.raises(NotLeading), db.write() as conn:
        old.hold(conn)
        conn.execute(pools.insert().values(name="mark"))
    with db.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(pools)) == 0
    hold(db, new)


def test_released_role_is_free_at_once(db: Database) -> None:
    first, second = Leadership(600), Leadership(600)
    acquire(db, first)
    with db.write() as conn:
        first.release(conn)
    assert first.term is None
    assert acquire(db, second)
    with pytest.raises(NotLeading):
        hold(db, first)
    with db.write() as conn:
        first.release(conn)  # what it does not have it cannot give up
    hold(db, second)


def test_renewal_moves_the_end_of_the_lease(db: Database) -> None:
    leader = Leadership(60)
    acquire(db, leader)
    with db.write() as conn:
        conn.execute(leaders.update().values(expires_at=db_now() + 1))
    hold(db, leader)
    with db.read() as conn:
        assert conn.scalar(sa.select(leaders.c.expires_at - db_now())) == pytest.approx(60, abs=5)


def test_roles_are_led_apart(db: Database) -> None:
    assert acquire(db, Leadership(60, "a"))
    assert acquire(db, Leadership(60, "b"))


def test_nobody_leads_while_a_leader_is_in_its_transaction(postgres_db: Database) -> None:
    """Its lease ends in the middle of a long transaction; the next one waits for the commit."""
    old, new = Leadership(0.2), Leadership(60)
    acquire(postgres_db, old)
    order: list[str] = []

    def take_over() -> None:
        while not acquire(postgres_db, new):
            time.sleep(0.01)
        order.append("new leads")

    thread = threading.Thread(target=take_over)
    with postgres_db.write() as conn:
        old.hold(conn)
        thread.start()
        time.sleep(0.6)  # three times the lease
        order.append("old acted")
    thread.join(30)
    assert order == ["old acted", "new leads"]


@pytest.fixture
def crowded(postgres_db: Database) -> Iterator[Database]:
    """On SQLite there is one writer at a time, so there is nothing to try."""
    db = postgres_db
    with db.write() as conn:
        project = make_project(conn, "capped", max_slots=3)
        other = make_project(conn, "other")
        make_job(conn, project, 300)
        make_job(conn, other, 300)
        conn.execute(pools.insert().values(name="render", max_slots=5))
        make_slots(conn, make_node(conn), 12)
    yield db


def test_caps_hold_while_leaders_change_and_slots_finish(crowded: Database, settings: Settings) -> None:
    """Three schedulers with tiny leases contend, a finisher frees slots, an observer counts."""
    db = crowded
    stop = threading.Event()
    errors: list[BaseException] = []
    terms: set[int] = set()
    seen: list[tuple[int, int]] = []

    def schedule() -> None:
        candidate, state = Leadership(0.3), TickState()
        ticks = 0
        while not stop.is_set():
            try:
                if candidate.term is None and not acquire(db, candidate):
                    time.sleep(0.01)
                    continue
                with db.write() as conn:
                    candidate.hold(conn)
                    assert candidate.term is not None
                    terms.add(candidate.term)
                    tick(conn, settings, state)
                ticks += 1
                # now and then a leader sleeps past its lease; the pause lets other writers of SQLite in
                time.sleep(0.02 if ticks % 5 else 0.6)
            except NotLeading:
                continue
            except BaseException as error:
                errors.append(error)
                return

    def finish() -> None:
        while not stop.is_set():
            with db.write() as conn:
                # two of the busy slots end
                ended = conn.scalars(
                    sa.select(tasks.c.slot_id).where(sa.text("state IN ('dispatched', 'running')")).limit(2)
                ).all()
                step = sa.select(tasks.c.id).where(tasks.c.slot_id.in_(ended), tasks.c.state == "dispatched")
                ids = conn.scalars(step).all()
                conn.execute(tasks.update().where(tasks.c.id.in_(ids)).values(state="done", slot_id=None))
                conn.execute(slots.update().where(slots.c.id.in_(ended)).values(state="idle"))
            time.sleep(0.03)

    def observe() -> None:
        query = sa.text(
            "SELECT (SELECT count(DISTINCT slot_id) FROM tasks JOIN steps ON steps.id = step_id JOIN jobs ON "
            "jobs.id = job_id JOIN projects ON projects.id = project_id WHERE tasks.state = 'dispatched' AND "
            "projects.name = 'capped'), "
            "(SELECT count(DISTINCT slot_id) FROM tasks WHERE state = 'dispatched')"
        )
        while not stop.is_set():
            with db.read() as conn:
                seen.append(tuple(conn.execute(query).one()))
            time.sleep(0.005)

    threads = [threading.Thread(target=f) for f in (schedule, schedule, schedule, finish, observe)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while (len(terms) < 3 or len(seen) < 30) and time.monotonic() < deadline and not errors:
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(terms) >= 3
    assert max(capped for capped, _ in seen) == 3
    assert max(total for _, total in seen) == 5
