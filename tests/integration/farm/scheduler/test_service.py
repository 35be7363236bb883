"""The scheduler as it runs, with a real database, a real Redis, and everything that goes away under it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from farm.broker.tickets import TicketQueue
from farm.broker.wakes import Wakes
from farm.db.connect import Database, db_now
from farm.db.tables import attempts, leaders, slots, steps, tasks
from farm.records import Ticket
from farm.scheduler import service
from farm.settings import Settings
from tests.integration.farm.scheduler.pretend import PretendSlot
from tests.integration.farm.scheduler.world import (
    check_counters,
    make_job,
    make_node,
    make_project,
    make_slots,
    states_of,
)
from tests.servers import PostgresServer, RedisServer

DEADLINE_S = 150.0


class Running:
    """Schedulers and slots of a test, all ended with it."""

    def __init__(self, db: Database, url: str, settings: Settings, stack: ExitStack) -> None:
        self.db, self.url, self.settings, self.stack = db, url, settings, stack
        self.slots: list[PretendSlot] = []
        # a pretend slot sends no beats, and its node is never seen again
        settings.node_lost_s = 3600.0

    def scheduler(self) -> tuple[threading.Thread, threading.Event]:
        stop = threading.Event()
        thread = threading.Thread(
            target=service.run, args=(self.db, self.url, self.settings, stop), daemon=True
        )
        thread.start()
        self.stack.callback(thread.join, 30)
        self.stack.callback(stop.set)
        return thread, stop

    def make_slots(self, number: int, drop: Callable[[Ticket], bool] = lambda ticket: False) -> None:
        with self.db.write() as conn:
            node = make_node(conn)
            ids = make_slots(conn, node, number, beat_at=db_now() + 3600)
        for slot_id in ids:
            slot = PretendSlot(self.db, self.url, slot_id, drop)
            self.slots.append(slot)
            self.stack.callback(slot.stop)
            slot.start()

    def submit(self, n_tasks: int, **fields: object) -> list[str]:
        with self.db.write() as conn:
            project = conn.scalar(sa.text("SELECT id FROM projects")) or make_project(conn)
            _, _, task_ids = make_job(conn, project, n_tasks, **fields)  # type: ignore[arg-type]
        return task_ids

    def wait(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                if condition():
                    return
            except sa.exc.SQLAlchemyError:
                pass
            assert time.monotonic() < deadline, f"it did not come; tasks are {states_of(self.db)}"
            time.sleep(0.02)

    def wait_until_done(self, number: int) -> None:
        self.wait(lambda: states_of(self.db) == {"done": number})
        check_counters(self.db)


@pytest.fixture
def running(db: Database, redis_url: str, settings: Settings) -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(db, redis_url, settings, stack)


def test_every_task_runs_once_and_no_queue_holds_more_than_one_ticket(running: Running) -> None:
    running.make_slots(3)
    running.scheduler()
    task_ids = running.submit(60, mean_task_s=0.2)
    Wakes(running.url).wake("scheduler")
    running.wait_until_done(60)
    claimed = [task.task_id for slot in running.slots for task in slot.claimed]
    assert sorted(claimed) == sorted(task_ids)
    assert all(slot.tickets for slot in running.slots)
    assert max(slot.most_waiting for slot in running.slots) <= 1
    assert sum(slot.tickets for slot in running.slots) < 60  # bundles


def test_wake_brings_the_ticket_long_before_the_next_tick(running: Running) -> None:
    running.settings.scheduler_tick_s = 1.0
    running.make_slots(1)
    running.scheduler()
    wakes = Wakes(running.url)
    running.wait(lambda: any_leader(running.db))
    times = []
    for number in range(1, 8):
        time.sleep(0.05)
        began = time.monotonic()
        running.submit(1)
        wakes.wake("scheduler")
        running.wait(lambda expected=number: states_of(running.db)["done"] == expected)
        times.append(time.monotonic() - began)
    # by ticks alone the median would be half a second
    assert sorted(times)[len(times) // 2] < 0.4, times


def any_leader(db: Database) -> bool:
    with db.read() as conn:
        return bool(conn.scalar(sa.select(leaders.c.expires_at > db_now())))


def test_ticket_that_is_lost_is_sent_again(running: Running) -> None:
    """A slot pops its ticket and dies before it claims (airflow 21225)."""
    lost: list[Ticket] = []

    def drop_first(ticket: Ticket) -> bool:
        if not lost:
            lost.append(ticket)
            return True
        return False

    running.settings.claim_timeout_s = 0.5
    running.make_slots(1, drop_first)
    running.scheduler()
    running.submit(2)
    running.wait_until_done(2)
    assert len(lost) == 1
    with running.db.read() as conn:
        assert conn.scalars(sa.select(tasks.c.charged)).all() == [0, 0]
        assert conn.scalar(sa.select(sa.func.count()).select_from(attempts)) == 2


def test_broker_that_dies_and_forgets_everything_costs_redispatch_alone(
    running: Running, redis_server: RedisServer
) -> None:
    running.settings.claim_timeout_s = 1.0
    running.make_slots(2)
    running.scheduler()
    running.submit(40)
    running.wait(lambda: states_of(running.db)["done"] >= 5)
    redis_server.halt()
    try:
        time.sleep(0.5)
        assert states_of(running.db).total() == 40
    finally:
        redis_server.start()
    running.wait_until_done(40)
    with running.db.read() as conn:
        assert set(conn.scalars(sa.select(tasks.c.charged))) == {0}


def test_while_the_broker_is_away_tasks_stay_ready(running: Running, redis_server: RedisServer) -> None:
    running.settings.claim_timeout_s = 3600.0
    running.make_slots(2)
    redis_server.halt()
    try:
        running.scheduler()
        running.submit(4)
        running.wait(lambda: any_leader(running.db))
        time.sleep(0.5)
        running.wait(lambda: states_of(running.db) == {"ready": 4})
    finally:
        redis_server.start()
    # what was taken back needs no timeout
    running.wait_until_done(4)


@pytest.mark.postgres
def test_database_that_goes_away_and_comes_back(
    postgres_db: Database, postgres_server: PostgresServer, redis_url: str, settings: Settings
) -> None:
    with ExitStack() as stack:
        running = Running(postgres_db, redis_url, settings, stack)
        running.make_slots(2)
        thread, _ = running.scheduler()
        running.submit(40)
        running.wait(lambda: states_of(running.db)["done"] >= 5)
        postgres_server.halt()
        try:
            time.sleep(1.0)
            assert thread.is_alive()
        finally:
            postgres_server.start()
        running.wait_until_done(40)
        with running.db.read() as conn:
            assert set(conn.scalars(sa.select(tasks.c.charged))) == {0}


def test_fault_of_our_own_does_not_end_the_scheduler(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[str] = []
    real = service.tick

    def faulty(*args: object) -> object:
        if len(faults) < 3:
            faults.append("fault")
            raise ZeroDivisionError("a bug")
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(service, "tick", faulty)
    running.make_slots(1)
    running.scheduler()
    running.submit(1)
    running.wait_until_done(1)
    assert len(faults) == 3


def test_second_scheduler_takes_over_at_once_when_the_first_stops(running: Running) -> None:
    running.settings.leader_lease_s = 3600.0
    running.make_slots(1)
    first, stop_first = running.scheduler()
    running.wait(lambda: any_leader(running.db))
    running.scheduler()
    stop_first.set()
    first.join(30)
    assert not first.is_alive()
    running.submit(3)
    running.wait_until_done(3)
    with running.db.read() as conn:
        assert conn.scalar(sa.select(leaders.c.term)) == 2


def test_leader_that_vanishes_is_replaced_after_its_lease(running: Running) -> None:
    with running.db.write() as conn:
        conn.execute(
            leaders.insert().values(role="scheduler", holder="gone", term=7, expires_at=db_now() + 1.0)
        )
    running.make_slots(1)
    running.scheduler()
    running.submit(1)
    running.wait_until_done(1)
    with running.db.read() as conn:
        assert (conn.scalar(sa.select(leaders.c.term)) or 0) >= 8


def test_audit_that_finds_a_difference_says_so_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_AUDIT_S", 0.05)
    running.submit(2)
    with running.db.write() as conn:
        conn.execute(steps.update().values(n_done=1))
    running.scheduler()
    count = sa.text("SELECT count(*) FROM events WHERE type = 'audit'")

    def told() -> int:
        with running.db.read() as conn:
            return int(conn.scalar(count) or 0)

    running.wait(lambda: told() == 1)
    time.sleep(0.5)
    assert told() == 1


def test_slots_of_a_forgotten_ticket_are_free_again(running: Running) -> None:
    """A person cancels a dispatched task whose ticket was lost: the slot must not stay busy."""
    running.settings.claim_timeout_s = 0.5
    running.make_slots(1, lambda ticket: True)
    running.scheduler()
    running.submit(1)
    running.wait(lambda: running.slots[0].tickets == 1)
    with running.db.write() as conn:
        conn.execute(tasks.update().values(state="cancelled", slot_id=None))
        conn.execute(steps.update().values(n_dispatched=0, n_ready=0, n_cancelled=1))
        conn.execute(slots.update().values(beat_at=db_now()))
    running.slots[0].drop = lambda ticket: False
    running.wait(lambda: slot_states(running.db) == ["idle"])
    running.submit(1)
    running.wait(lambda: states_of(running.db) == {"cancelled": 1, "done": 1})


def slot_states(db: Database) -> list[str]:
    with db.read() as conn:
        return list(conn.scalars(sa.select(slots.c.state)))


def test_wrong_broker_url_is_refused_before_anything_runs(sqlite_db: Database, settings: Settings) -> None:
    with pytest.raises(Exception, match="FARM_BROKER_URL"):
        service.run(sqlite_db, "amqp://x", settings, threading.Event())


def test_pending_counts_what_the_scheduler_sent(running: Running) -> None:
    with running.db.write() as conn:
        ids = make_slots(conn, make_node(conn), 2)
    running.scheduler()
    running.submit(5)
    queue = TicketQueue(running.url)
    running.wait(lambda: sorted(queue.pending(slot_id) for slot_id in ids) == [1, 1])
    assert states_of(running.db) == {"dispatched": 2, "ready": 3}
    queue.close()
