"""The scheduler as it runs: leads if it may, ticks when woken or each second, reconciles, and never gives up.

One thread does everything in turn, so a slot's queue is never emptied after its next ticket went out. The
database or the broker being away is waited out with a back-off; so is any fault of our own, loudly.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import sqlalchemy as sa
import structlog

from farm import gc, ledger
from farm.broker.tickets import TicketQueue
from farm.broker.wakes import Wakes
from farm.db.connect import Database
from farm.db.tables import tasks
from farm.errors import Unavailable
from farm.lifecycle.dispatch import Dispatch
from farm.lifecycle.leases import return_unbegun
from farm.scheduler.leader import Leadership, NotLeading
from farm.scheduler.parking import ask_to_park, who_parks
from farm.scheduler.reconciler import audit_counters, reconcile, report_differences
from farm.scheduler.tick import MAX_TICKETS, REST_S, TickState, anything_to_do, observe, tick
from farm.settings import Settings
from farm.states import TaskState

CHANNEL: Final = "scheduler"
"""What wakes the scheduler: submissions, finishes, slots that become ready, commands of people."""

_RECONCILE_S: Final = 1.0
_AUDIT_S: Final = 60.0
_HOUSEKEEPING_S: Final = 600.0
_BACKOFF_S: Final = 0.1
_BACKOFF_MAX_S: Final = 2.0

log = structlog.get_logger(__name__)


def run(db: Database, broker: str | None, settings: Settings, stop: threading.Event) -> None:
    """Schedule until ``stop`` is set; ``broker`` is the broker's URL (``None``: the settings').

    Raises :class:`farm.errors.InvalidInput` for a URL that is no broker's, and nothing after that.
    """
    scheduler = Scheduler(db, broker or settings.broker_url, settings)
    try:
        scheduler.run(stop)
    finally:
        scheduler.close()


class Scheduler:
    """One candidate for the lead, with what it remembers between ticks."""

    def __init__(self, db: Database, broker: str, settings: Settings) -> None:
        self._db = db
        self._settings = settings
        self._queue = TicketQueue(broker)
        self._wakes = Wakes(broker)
        self._leadership = Leadership(settings.leader_lease_s)
        self._state = TickState()
        self._failures = 0
        self._database_away = False
        self._broker_away = False
        self._grace_until = float("-inf")
        self._due = {"reconcile": 0.0, "audit": _AUDIT_S, "housekeeping": _AUDIT_S}
        self._began = time.monotonic()
        self._audit_after = ""
        self._reported: set[tuple[str, str]] = set()

    @property
    def leads(self) -> bool:
        """Whether it believes that it leads."""
        return self._leadership.term is not None

    def run(self, stop: threading.Event) -> None:
        """Round after round until ``stop`` is set."""
        while not stop.is_set():
            more = self._guarded_round(stop)
            if not more and not stop.is_set():
                self._wakes.wait(CHANNEL, self._pause_s())

    def _pause_s(self) -> float:
        """How long to wait for a wake: shorter while a back-off may end, which wakes nobody."""
        pause = min(self._settings.scheduler_tick_s, _RECONCILE_S)
        return min(pause, REST_S) if self._state.resting else pause

    def close(self) -> None:
        """Give the lead up, if the database lets us, and close the connections."""
        try:
            with self._db.write() as conn:
                self._leadership.release(conn)
        except sa.exc.SQLAlchemyError as error:
            log.warning("the lead was not given up; its lease will end", error=str(error))
        self._wakes.close()
        self._queue.close()

    def _guarded_round(self, stop: threading.Event) -> bool:
        """One round; whether the next one is due at once."""
        try:
            more = self.round()
        except NotLeading:
            log.info("another scheduler leads, or has led since this one did")
            return False
        except Exception as error:  # noqa: BLE001  a scheduler that ends by an exception stops the farm
            self._failures += 1
            self._note(error)
            stop.wait(min(_BACKOFF_S * 2.0 ** min(self._failures, 10), _BACKOFF_MAX_S))
            return True
        self._failures = 0
        return more

    def _note(self, error: Exception) -> None:
        if isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.TimeoutError):
            self._database_away = True
            log.warning("the database is away", error=str(error).splitlines()[0], failures=self._failures)
        elif isinstance(error, Unavailable):
            log.warning("something is away", error=str(error), failures=self._failures)
        else:
            log.error("a round failed", exc_info=error, failures=self._failures)

    # --- a round -------------------------------------------------------------------------------------

    def round(self) -> bool:
        """Lead if possible, put right what is wrong, give work out; whether there may be more at once."""
        if not self.leads and not self._acquire():
            return False
        if self._is_due("reconcile", min(_RECONCILE_S, self._settings.leader_lease_s / 3)):
            self._reconcile()
        more = self._tick()
        if self._is_due("audit", _AUDIT_S):
            self._audit()
        if self._is_due("housekeeping", _HOUSEKEEPING_S):
            with self._db.write() as conn:
                self._leadership.hold(conn)
                gc.forget_old(conn, self._settings)
        return more

    def _is_due(self, name: str, every_s: float) -> bool:
        now = time.monotonic() - self._began
        if now < self._due[name]:
            return False
        self._due[name] = now + every_s
        return True

    def _acquire(self) -> bool:
        with self._db.write() as conn:
            if not self._leadership.acquire(conn):
                return False
        log.info("leads", term=self._leadership.term)
        self._due["reconcile"] = 0.0
        return True

    def _reconcile(self) -> None:
        now = time.monotonic()
        if self._database_away:
            # agents first get the time to extend their leases and to replay what they have to report
            settings = self._settings
            self._grace_until = now + 2 * settings.lease_extend_s + settings.lease_lock_wait_s
        with self._db.write() as conn:
            self._leadership.hold(conn)
            done = reconcile(conn, self._settings, in_grace=now < self._grace_until)
        self._database_away = False
        for slot_id in sorted(done.purge):
            try:
                self._queue.purge(slot_id)
            except Unavailable as error:
                # what stays in the queue has an old epoch, and the next ticket replaces it
                log.warning("a slot's queue was not emptied", slot=slot_id, error=str(error))
        with self._db.read() as conn:
            lent = who_parks(conn, self._settings)
        if lent:
            with self._db.write() as conn:
                self._leadership.hold(conn)
                nodes = ask_to_park(conn, lent)
            log.info("asked lent slots to park", slots=[each.slot.id for each in lent])
            for node_id in nodes:
                self._wakes.wake(f"node.{node_id}")
        if done:
            log.info("put right", **done.numbers())
            self._wakes.wake("events")

    # --- work ----------------------------------------------------------------------------------------

    def _tick(self) -> bool:
        with self._db.read() as conn:
            if not anything_to_do(conn):
                observe(conn, self._settings, self._state)
                return False
        if self._broker_away:
            self._queue.ping()
            self._broker_away = False
        with self._db.write() as conn:
            self._leadership.hold(conn)
            given = tick(conn, self._settings, self._state)
        self._publish(given)
        if given:
            self._wakes.wake("events")
        return len(given) >= MAX_TICKETS

    def _publish(self, given: list[Dispatch]) -> None:
        for index, dispatch in enumerate(given):
            try:
                self._queue.send(dispatch.ticket)
            except Unavailable:
                self._broker_away = True
                self._take_back(given[index:])
                raise

    def _take_back(self, unsent: list[Dispatch]) -> None:
        """Tickets that the broker did not take: their tasks are ready again at once, not after a timeout."""
        for dispatch in unsent:
            epochs = {entry.task_id: entry.epoch for entry in dispatch.ticket.entries}
            with self._db.write() as conn:
                self._leadership.hold(conn)
                # should a ticket have gone out after all, what its slot has claimed is left to it
                unclaimed = conn.scalars(
                    sa.select(tasks.c.id).where(tasks.c.id.in_(epochs), tasks.c.state == TaskState.DISPATCHED)
                )
                held = [(task_id, epochs[task_id]) for task_id in unclaimed]
                return_unbegun(conn, dispatch.slot_id, held)

    # --- audit ---------------------------------------------------------------------------------------

    def _audit(self) -> None:
        with self._db.read() as conn:
            counters, self._audit_after = audit_counters(conn, self._audit_after)
            budgets = ledger.check_budgets(conn)
        found = {(each.step_id, repr(each)) for each in counters}
        found |= {(each.node_id + each.medium, repr(each)) for each in budgets}
        news = found - self._reported
        if news:
            counters = [each for each in counters if (each.step_id, repr(each)) in news]
            budgets = [each for each in budgets if (each.node_id + each.medium, repr(each)) in news]
            log.error("an audit found differences", counters=counters, budgets=budgets)
            with self._db.write() as conn:
                self._leadership.hold(conn)
                report_differences(conn, counters, budgets)
            # only once it is committed: a leader that was replaced meanwhile has told nobody
            self._reported |= news
            self._wakes.wake("events")
