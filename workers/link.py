"""The agent's link to the database: a thread, so that a database that hangs never holds up the agent.

Each round it tells what has happened (deaths of slots, their spools replayed first), asks what is wished of
our slots' tasks, and extends leases. The agent's main thread reads :attr:`DatabaseLink.view` and
:meth:`DatabaseLink.silent_s`, and does everything that has to do with processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import sqlalchemy as sa
import structlog

from farm.lifecycle import machines
from farm.lifecycle.leases import extend
from farm.settings import Settings
from workers import repository
from workers.control import ALONE
from workers.managed_slot import Death
from workers.node_folders import NodeFolders
from workers.obituary import report_death
from workers.patience import is_passing, open_impatient
from workers.placement import Seating
from workers.registration import Registration, register, register_plan
from workers.slot_views import SlotViews

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """What the database said last. ``held`` has the running tasks of our slots by attempt serial."""

    held: dict[int, repository.HeldTask] = field(default_factory=dict)
    slot_states: dict[str, str] = field(default_factory=dict)
    hold_reasons: dict[str, str] = field(default_factory=dict)
    """Why slots are held, by slot id; those that are not are left out."""
    node_state: str = ""
    fenced: frozenset[int] = frozenset()
    """Serials that slots are on although the database knows them as over."""


class DatabaseLink:
    """See the module. ``notify`` is called from this thread whenever there is something new to look at."""

    def __init__(
        self,
        settings: Settings,
        seating: Seating,
        folders: NodeFolders,
        incarnation: str,
        views: SlotViews,
        notify: Callable[[], None],
        wake: Callable[[str], object],
    ) -> None:
        self._settings = settings
        self._seating = seating
        self._folders = folders
        self._incarnation = incarnation
        self._views = views
        self._notify = notify
        self._wake = wake
        self._db = open_impatient(settings)
        self._tasks: list[tuple[str, Callable[[], None]]] = []
        self._lock = threading.Lock()
        self._kick = threading.Event()
        self._end = threading.Event()
        self._answered_at = time.monotonic()
        self._extended_at = 0.0
        self._left = False
        self.registration: Registration | None = None
        self.view = View()
        self.buried: list[str] = []
        self._thread = threading.Thread(target=self._run, name="database", daemon=True)

    def start(self) -> None:
        """Begin; registration comes first."""
        self._thread.start()

    def kick(self) -> None:
        """Look at the database now."""
        self._kick.set()

    def check(self) -> None:
        """Raise where the thread has ended by itself: an agent without it must end and be started again."""
        if self._thread.ident is not None and not self._thread.is_alive() and not self._end.is_set():
            raise RuntimeError("the thread that talks to the database has ended")

    def silent_s(self) -> float:
        """Seconds since the database last answered."""
        return time.monotonic() - self._answered_at

    def bury(self, death: Death) -> None:
        """Report a death; once that is done, the slot's id stands in :attr:`buried`."""

        def once() -> None:
            self._report(death)
            with self._lock:
                self.buried.append(death.slot_id)
            self._wake("scheduler")

        self._add(f"death of {death.slot_id}", once)

    def take_buried(self) -> list[str]:
        """Slots whose death has been reported since the last call."""
        with self._lock:
            taken, self.buried = self.buried, []
        return taken

    @property
    def node_id(self) -> str:
        """Our node's id. Only after registration."""
        assert self.registration is not None
        return self.registration.node_id

    def tell(self, what: str, action: Callable[[sa.Connection], object], wake: str | None = None) -> None:
        """Do something in a transaction of its own, in order with everything else that is told."""

        def once() -> None:
            with self._db.write() as conn:
                action(conn)
            if wake is not None:
                self._wake(wake)

        self._add(what, once)

    def hold(self, slot_id: str, reason: str) -> None:
        """Hold a slot that could take work."""
        self.tell(f"{slot_id} held", lambda conn: machines.hold_slot(conn, slot_id, reason))

    def hold_idle(self, slot_id: str, reason: str) -> None:
        """Hold a slot that runs nothing; what runs is left alone."""
        self.tell(f"{slot_id} held", lambda conn: machines.hold_slot(conn, slot_id, reason, idle_only=True))

    def reword_hold(self, slot_id: str, reason_head: str, reason: str) -> None:
        """Bring the words of a hold up to date whose reason begins so."""
        self.tell(f"hold of {slot_id}", lambda conn: machines.reword_hold(conn, slot_id, reason_head, reason))

    def let_go(self, slot_id: str, reason_head: str) -> None:
        """Let a slot go that was held for a reason that begins so."""
        self.tell(
            f"{slot_id} let go",
            lambda conn: machines.let_go_slot(conn, slot_id, reason_head),
            wake="scheduler",
        )

    def reseat(self, seating: Seating) -> None:
        """The node is to be as this plan has it: new slots get their rows, and the registration names them.

        Slots that are no longer planned keep theirs until :meth:`forget`.
        """

        def once() -> None:
            assert self.registration is not None
            with self._db.write() as conn:
                slots = register_plan(conn, self._settings, self.registration, seating)
            self._seating = seating
            self.registration = replace(self.registration, slots=slots)

        self._add("new plan", once)

    def forget(self, slot_id: str) -> None:
        """A slot is gone from the plan, and its process has ended."""

        def once() -> None:
            assert self.registration is not None
            kept = {name: each for name, each in self.registration.slots.items() if each != slot_id}
            with self._db.write() as conn:
                machines.retire_slots(conn, self.node_id, keep=list(kept.values()))
                machines.set_slot_state(conn, slot_id, "dead", "not in the plan any more")
            self.registration = replace(self.registration, slots=kept)

        self._add(f"{slot_id} gone", once)

    def set_slot_state(self, slot_id: str, state: str, reason: str | None) -> None:
        """Write a slot's state as soon as that can be done."""

        def once() -> None:
            with self._db.write() as conn:
                machines.set_slot_state(conn, slot_id, state, reason)

        self._add(f"{slot_id} {state}", once)

    def leave(self) -> None:
        """Say that the node goes down, in order after what was said before."""

        def once() -> None:
            assert self.registration is not None
            with self._db.write() as conn:
                repository.leave_node(conn, self.registration.node_id)
            self._left = True
            self._wake("scheduler")

        self._add("node down", once)

    def idle(self) -> bool:
        """Whether all that was to be told has been told."""
        with self._lock:
            return not self._tasks

    def stop(self, wait_s: float) -> None:
        """End the thread, even with things untold; the spool and the leases keep them."""
        self._end.set()
        self._kick.set()
        self._thread.join(wait_s)

    # --- the thread ----------------------------------------------------------------------------------

    def _add(self, what: str, action: Callable[[], None]) -> None:
        with self._lock:
            self._tasks.append((what, action))
        self._kick.set()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                self._round()
                self._answered_at = time.monotonic()
            except Exception as error:  # noqa: BLE001  the thread must live; silence makes the agent park
                level = log.warning if is_passing(error) else log.exception
                level("the database could not be worked with", error=str(error)[:300])
            self._notify()
            self._kick.wait(self._settings.agent_poll_s)
            self._kick.clear()

    def _round(self) -> None:
        if self.registration is None:
            self.registration = register(
                self._db, self._settings, self._seating, self._folders, self._incarnation
            )
            self._wake("scheduler")
            return
        self._tell()
        if self._left:
            # a sign of life would bring the node up again
            return
        self._ask()
        now = time.monotonic()
        if now - self._extended_at >= self._settings.lease_extend_s:
            self._extend()
            self._extended_at = now

    def _tell(self) -> None:
        while not self._end.is_set():
            with self._lock:
                if not self._tasks:
                    return
                what, action = self._tasks[0]
            try:
                action()
            except Exception as error:
                if is_passing(error):
                    raise
                # never again would this one succeed; the lease brings the task back
                log.exception("could not be told to the database", what=what)
            with self._lock:
                self._tasks.pop(0)
            self._answered_at = time.monotonic()
            self._notify()

    def _ask(self) -> None:
        assert self.registration is not None
        node_id = self.registration.node_id
        # read before the query: what began after it is not missed in its answer
        serials = self._views.serials()
        with self._db.read() as conn:
            held = {task.serial: task for task in repository.held_tasks(conn, node_id)}
            rows = repository.slot_states(conn, node_id)
            node_state = repository.node_state(conn, node_id)
        states = {slot_id: row.state for slot_id, row in rows.items()}
        reasons = {slot_id: row.hold_reason or "" for slot_id, row in rows.items() if row.state == "held"}
        fenced = frozenset(serial for serial in serials.values() if serial and serial not in held)
        self.view = View(held, states, reasons, node_state, fenced)
        self._show_the_living(rows)
        for slot_id, reason in reasons.items():
            if reason == ALONE:
                # we are here again; should the slot not have heard of it yet, it holds itself once more
                with self._db.write() as conn:
                    machines.let_go_slot(conn, slot_id, ALONE)
                self._wake("scheduler")
        fractions = self._views.progress()
        # a tenth of a percent of an hour's frame is seconds
        moved = [
            (task.task_id, task.epoch, fractions[serial])
            for serial, task in held.items()
            if serial in fractions and abs(fractions[serial] - (task.progress or 0.0)) >= 0.001
        ]
        if moved:
            with self._db.write() as conn:
                repository.note_progress(conn, moved)

    def _show_the_living(self, rows: dict[str, repository.SlotRow]) -> None:
        """The farm took this node for lost and its slots for dead, but they live: give them work again."""
        for slot_id, (incarnation, pid) in self._views.living().items():
            row = rows.get(slot_id)
            if row is not None and row.state == "dead" and row.incarnation is None:
                with self._db.write() as conn:
                    machines.slot_ready(conn, slot_id, incarnation, pid)
                log.warning("a slot that was thought dead is back", slot=slot_id)
                self._wake("scheduler")

    def _extend(self) -> None:
        assert self.registration is not None
        node_id = self.registration.node_id
        pulses = self._views.pulses()
        mine = [
            (task.task_id, task.epoch)
            for task in self.view.held.values()
            if task.slot_id in pulses and pulses[task.slot_id].holds(task.serial, self._settings.beat_stale_s)
        ]
        if mine:
            with self._db.write() as conn:
                extend(conn, node_id, mine, self._settings.lease_s)
        with self._db.write() as conn:
            machines.node_seen(conn, node_id, {slot_id: pulse.age_s for slot_id, pulse in pulses.items()})

    def _report(self, death: Death) -> None:
        try:
            report_death(self._db, self._settings, death)
        except Exception as error:
            if is_passing(error):
                raise
            # never would this one succeed; the lease brings the task back, the spool is kept for people
            log.exception("a death could not be reported", slot=death.slot_id)
            if death.spool.exists():
                death.spool.rename(death.spool.with_suffix(".refused"))
