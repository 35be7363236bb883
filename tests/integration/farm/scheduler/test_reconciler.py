"""What the reconciler puts right, each on both databases."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm import ledger
from farm.db.connect import Database, db_now
from farm.db.tables import attempts, buffers, byte_budgets, events, jobs, nodes, slots, steps, tasks
from farm.lifecycle.claim import claim
from farm.records import Ticket, TicketEntry
from farm.scheduler.reconciler import Reconciled, audit_counters, reconcile, report_differences
from farm.scheduler.tick import tick
from farm.settings import Settings
from farm.states import TaskState
from tests.integration.farm.scheduler.world import (
    check_counters,
    make_job,
    make_node,
    make_project,
    make_slots,
    states_of,
)


def run(db: Database, settings: Settings, **options: Any) -> Reconciled:
    with db.write() as conn:
        return reconcile(conn, settings, **options)


def task(db: Database, task_id: str) -> Any:
    with db.read() as conn:
        return conn.execute(sa.select(tasks).where(tasks.c.id == task_id)).one()


def slot_state(db: Database, slot_id: str) -> str:
    with db.read() as conn:
        return str(conn.scalar(sa.select(slots.c.state).where(slots.c.id == slot_id)))


class Farm:
    """One node, one slot, one job; and what may have happened to them."""

    def __init__(self, db: Database, settings: Settings, n_tasks: int = 1, **step_fields: Any) -> None:
        self.db, self.settings = db, settings
        with db.write() as conn:
            self.job, self.step, self.tasks = make_job(conn, make_project(conn), n_tasks, **step_fields)
            self.node = make_node(conn)
            (self.slot,) = make_slots(conn, self.node, 1, beat_at=db_now())

    def dispatch(self) -> Ticket:
        with self.db.write() as conn:
            (given,) = tick(conn, self.settings)
        return given.ticket

    def claim(self, ticket: Ticket) -> int:
        with self.db.write() as conn:
            return len(claim(conn, ticket, self.slot, "i", self.settings.lease_s))

    def past(self, table: sa.Table, column: str, seconds: float = 3600) -> None:
        with self.db.write() as conn:
            conn.execute(table.update().values({column: db_now() - seconds}))


# --- tickets nobody claimed (airflow 21225: a task popped during shutdown stays queued for ever) --------


@pytest.mark.parametrize("slot_is", ["busy", "idle", "dead", "held", "draining", "gone"])
def test_unclaimed_task_is_ready_again_whatever_its_slot_is(
    db: Database, settings: Settings, slot_is: str
) -> None:
    farm = Farm(db, settings)
    ticket = farm.dispatch()
    assert not run(db, settings)  # not yet
    farm.past(tasks, "dispatched_at")
    with db.write() as conn:
        if slot_is == "gone":
            conn.execute(slots.delete())
        else:
            conn.execute(slots.update().values(state=slot_is))
    done = run(db, settings)
    assert done.purge == {farm.slot}
    assert done.unclaimed == farm.tasks
    row = task(db, farm.tasks[0])
    assert (row.state, row.slot_id, row.charged, row.node_losses) == ("ready", None, 0, 0)
    # the old ticket, should it come after all, begins nothing
    assert farm.claim(ticket) == 0
    check_counters(db)


def test_slot_of_an_unclaimed_ticket_gets_the_next_one_under_a_new_epoch(
    db: Database, settings: Settings
) -> None:
    farm = Farm(db, settings)
    old = farm.dispatch()
    farm.past(tasks, "dispatched_at")
    run(db, settings)
    assert slot_state(db, farm.slot) == "idle"
    new = farm.dispatch()
    assert new.entries[0].epoch == old.entries[0].epoch + 1
    assert farm.claim(old) == 0
    assert farm.claim(new) == 1


def test_claimed_in_time_is_left_alone(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings)
    farm.claim(farm.dispatch())
    farm.past(tasks, "dispatched_at")
    assert not run(db, settings)
    assert states_of(db) == {"running": 1}


# --- leases ---------------------------------------------------------------------------------------------


def test_lease_that_ended_on_a_living_node_spends_a_retry(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings, max_retries=1)
    for charged, state in ((1, "ready"), (2, "failed")):
        with db.write() as conn:
            conn.execute(slots.update().values(state="idle"))
            conn.execute(tasks.update().values(not_before=None))
        assert farm.claim(farm.dispatch()) == 1
        assert not run(db, settings)
        farm.past(tasks, "lease_expires_at")
        assert run(db, settings).lost == farm.tasks
        row = task(db, farm.tasks[0])
        assert (row.state, row.charged, row.node_losses) == (state, charged, 0)
        # the slot hangs in the attempt: no ticket goes there before it shows life
        assert slot_state(db, farm.slot) == "busy"
    with db.read() as conn:
        assert conn.scalars(sa.select(attempts.c.state)).all() == ["lost", "lost"]
        assert conn.scalar(sa.select(jobs.c.state)) == "failed"
    check_counters(db)


def test_node_losses_are_free_three_times_then_they_count(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings, max_retries=1)
    seen = []
    for _ in range(5):
        with db.write() as conn:
            conn.execute(nodes.update().values(state="up", seen_at=db_now()))
            conn.execute(slots.update().values(state="idle", incarnation="i"))
            conn.execute(tasks.update().values(not_before=None))
        assert farm.claim(farm.dispatch()) == 1
        farm.past(tasks, "lease_expires_at")
        farm.past(nodes, "seen_at")
        done = run(db, settings)
        assert done.nodes_down == [farm.node]
        assert done.lost == farm.tasks
        row = task(db, farm.tasks[0])
        seen.append((row.state, row.node_losses, row.charged))
    # max_retries is 1: the fourth loss spends it, the fifth is one too many
    assert seen == [("ready", 1, 0), ("ready", 2, 0), ("ready", 3, 0), ("ready", 4, 1), ("failed", 5, 2)]
    check_counters(db)


def test_wish_to_cancel_is_fulfilled_when_the_attempt_is_lost(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings)
    farm.claim(farm.dispatch())
    with db.write() as conn:
        conn.execute(tasks.update().values(wish="cancel"))
    farm.past(tasks, "lease_expires_at")
    run(db, settings)
    assert states_of(db) == {"cancelled": 1}


def test_outage_of_the_database_costs_nothing(db: Database, settings: Settings) -> None:
    """After it, leases are over and nodes silent; agents first get time to say otherwise."""
    farm = Farm(db, settings)
    farm.claim(farm.dispatch())
    farm.past(tasks, "lease_expires_at")
    farm.past(nodes, "seen_at")
    assert not run(db, settings, in_grace=True)
    assert states_of(db) == {"running": 1}
    with db.read() as conn:
        assert conn.scalar(sa.select(nodes.c.state)) == "up"


# --- nodes and slots ------------------------------------------------------------------------------------


def test_silent_node_is_down_and_its_slots_dead(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings)
    assert not run(db, settings)
    farm.past(nodes, "seen_at", settings.node_lost_s + 1)
    assert run(db, settings).nodes_down == [farm.node]
    assert slot_state(db, farm.slot) == "dead"
    assert run(db, settings).nodes_down == []


def test_draining_node_is_drained_when_its_last_task_ends(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings)
    farm.claim(farm.dispatch())
    with db.write() as conn:
        conn.execute(nodes.update().values(state="draining"))
    assert run(db, settings).drained == []
    with db.write() as conn:
        conn.execute(tasks.update().values(state="done", slot_id=None))
    assert run(db, settings).drained == [farm.node]


def test_living_slot_that_is_busy_with_nothing_is_freed(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings, state=TaskState.DONE)
    with db.write() as conn:
        conn.execute(slots.update().values(state="busy", changed_at=db_now()))
    assert run(db, settings).freed_slots == []  # its ticket may still be on the way
    farm.past(slots, "changed_at")
    with db.write() as conn:
        conn.execute(slots.update().values(beat_at=db_now() - 3600))
    assert run(db, settings).freed_slots == []  # it hangs
    with db.write() as conn:
        conn.execute(slots.update().values(beat_at=db_now()))
    done = run(db, settings)
    assert (done.freed_slots, done.purge) == ([farm.slot], {farm.slot})
    assert slot_state(db, farm.slot) == "idle"


def test_busy_slot_with_a_task_is_not_freed(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings)
    farm.claim(farm.dispatch())
    farm.past(slots, "changed_at")
    assert run(db, settings).freed_slots == []


# --- buffers --------------------------------------------------------------------------------------------


def test_buffers_of_ended_attempts_are_freed(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings)
    farm.claim(farm.dispatch())
    with db.write() as conn:
        ledger.set_budget(conn, farm.node, "shm", 100)
        attempt_id = conn.scalars(sa.select(attempts.c.id)).one()
        owner = {"task_id": farm.tasks[0], "attempt_id": attempt_id, "epoch": 1}
        kept = ledger.reserve(conn, farm.node, farm.slot, "shm", 60, "frame staging", **owner)
    assert run(db, settings).buffers == []
    with db.write() as conn:
        conn.execute(attempts.update().values(ended_at=db_now(), state="lost"))
    assert run(db, settings).buffers == [kept]
    with db.read() as conn:
        assert conn.scalar(sa.select(buffers.c.state)) == "released"
        assert conn.scalar(sa.select(byte_budgets.c.reserved_bytes)) == 0


# --- audit ----------------------------------------------------------------------------------------------


def test_audit_is_silent_while_counters_are_right(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings, n_tasks=3)
    farm.claim(farm.dispatch())
    with db.read() as conn:
        assert audit_counters(conn) == ([], "")


def test_audit_finds_and_reports_counters_that_differ(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings, n_tasks=3)
    with db.write() as conn:
        conn.execute(steps.update().values(n_ready=2, n_done=1))
        ledger.set_budget(conn, farm.node, "shm", 100)
        conn.execute(byte_budgets.update().values(reserved_bytes=7))
        found, _ = audit_counters(conn)
        assert [(d.step_id, d.kept["n_ready"], d.counted["n_ready"]) for d in found] == [(farm.step, 2, 3)]
        report_differences(conn, found, ledger.check_budgets(conn))
        told = conn.execute(sa.select(events.c.data).where(events.c.type == "audit")).scalars().all()
    assert told == [
        {"what": "counters", "kept": {"n_ready": 2, "n_done": 1}, "counted": {"n_ready": 3, "n_done": 0}},
        {"what": "budget", "medium": "shm", "kept": 7, "counted": 0},
    ]


def test_audit_goes_through_all_steps_in_parts(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        project = make_project(conn)
        for _ in range(60):
            make_job(conn, project, 1)
        conn.execute(steps.update().values(n_ready=5))
        first, after = audit_counters(conn)
        second, end = audit_counters(conn, after)
    assert (len(first), len(second), end) == (50, 10, "")
    assert len({d.step_id for d in [*first, *second]}) == 60


def test_late_ticket_of_another_slot_begins_nothing(db: Database, settings: Settings) -> None:
    farm = Farm(db, settings)
    ticket = farm.dispatch()
    with db.write() as conn:
        (other,) = make_slots(conn, farm.node, 1)
        stolen = Ticket(other, tuple(TicketEntry(e.task_id, e.epoch) for e in ticket.entries))
        assert claim(conn, stolen, other, "i", 30) == []
