"""The node agent: starts one slot process per slot, watches them, speaks for them, and ends them all.

The main thread does everything that has to do with processes (the parent-death signal follows the thread
that forks) in one loop over pidfds and timers. :class:`workers.link.DatabaseLink` talks to the database in a
thread of its own, and another thread waits for wakes, so that neither can hold the loop up. The agent never
touches CUDA.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress

import structlog

from farm.broker.wakes import Wakes
from farm.errors import InvalidInput, Unavailable
from farm.ids import new_id
from farm.settings import Settings
from farm.settings import settings as read_settings
from gpu_pinning import Fence, PinningError, prepare_delegation, read_topology
from gpu_pinning.mig import make_wished
from jobs.render.blender.installation import versions
from workers.auditing import Auditor
from workers.disk_watch import DiskWatch
from workers.disks import Disks
from workers.findings import FindingsDesk
from workers.guarding import Guarding
from workers.link import DatabaseLink
from workers.managed_slot import ManagedSlot
from workers.node_config import NodeConfig, read_node_config
from workers.node_folders import NodeFolders, lock_node
from workers.orders import Circumstances, order
from workers.placement import (
    Seating,
    claim,
    device_of,
    forget_plan,
    keep_plan,
    move_planned_interrupts,
    refuse_impossible,
    seat,
    tell_plan,
)
from workers.preemption import Preemption
from workers.processes import become_subreaper, end_strays
from workers.seats import Hands, Seats
from workers.slot_views import SlotViews

log = structlog.get_logger(__name__)
_LOOK_S = 0.25
_LEAVE_S = 5.0
_WAKE_WAIT_S = 30.0
BLENDERS_EVERY_S = 10.0
"""A Blender that is installed on a node at work is offered after this time."""


class Agent:
    """One node's agent. :meth:`run` returns after SIGTERM or SIGINT, when no process is left."""

    def __init__(self, settings: Settings, seating: Seating) -> None:
        config = seating.config
        if not settings.broker_url:
            raise InvalidInput("FARM_BROKER_URL is empty: a node needs the farm's broker")
        self._settings = settings
        self._config = config
        self._folders = NodeFolders.of(settings, config.name, config.wishes.paths)
        self._lock_fd = lock_node(self._folders.lock, config.name)
        self._claims = claim(settings, seating)
        self._slots: dict[str, ManagedSlot] = {}
        self._views = SlotViews(self._slots)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._stop_signals = 0
        self._stopping_at: float | None = None
        self._wakes = Wakes(settings.broker_url)
        self._wakes_thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._link = DatabaseLink(
            settings,
            seating,
            self._folders,
            new_id("node"),
            self._views,
            notify=self._notify,
            wake=self._wakes.wake,
        )
        self._desk = FindingsDesk(self._link, self._retire)
        self._guard = Guarding(seating, self._folders, self._link, self._notify, settings)
        self._seats = Seats(
            seating,
            self._slots,
            self._folders,
            self._claims,
            self._link,
            self._guard,
            self._desk,
            Hands(self._add_slot, self._retire, self._pids),
            self._notify,
        )
        self._auditor = Auditor(
            lambda: self._seats.seating,
            self._views.subjects,
            self._notify,
            settings.audit_every_s,
            also=self._seats.classes.look,
        )
        self._blenders: tuple[float, list[str] | None] = (time.monotonic(), None)
        self._disks = DiskWatch(Disks.of_node(settings, self._folders), self._link, settings.agent_poll_s)
        self._preemption = Preemption(
            settings.preemption_file, self._folders.control / "preempted", self._link
        )

    def run(self) -> int:
        """Work until told to stop; the exit code. Must be called on the main thread."""
        become_subreaper()
        self._watch_signals()
        self._link.start()
        try:
            while not self._finished():
                for key, _ in self._selector.select(self._pause_s()):
                    if key.data is None:
                        self._drain_wakes()
                    else:
                        self._collect(key.data)
                self._turn()
        finally:
            self._end_all()
        return 0

    # --- one turn ------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._link.check()
        if self._link.registration is not None and not self._slots and self._stopping_at is None:
            self._take_up(self._link.registration.node_id, self._link.registration.slots)
        if self._stop_signals and self._stopping_at is None:
            self._begin_stop()
        now = time.monotonic()
        for slot_id in self._link.take_buried():
            if (slot := self._slots.get(slot_id)) is not None:
                slot.restart_at = now + slot.back_off_s()
                if (why := self._seats.why_below(slot_id)) is not None:
                    self._link.set_slot_state(slot_id, "dead", why)
        for news in self._auditor.take_news():
            self._desk.act(news, self._slots)
        if self._stopping_at is None:
            self._seats.turn()
        if self._slots and self._stopping_at is None:
            self._disks.turn()
            self._preemption.turn(self._link.node_id)
            self._guard.turn(now)
        self._notice_blenders(now)
        for slot in self._slots.values():
            self._look_at(slot, now)
        keepers = [slot.process.keeper_pid for slot in self._slots.values() if slot.process is not None]
        strays = end_strays([*keepers, *self._guard.services.pids()])
        if strays:
            log.warning("ended processes whose keeper was killed", pids=strays)

    def _take_up(self, node_id: str, slots: dict[str, str]) -> None:
        for name in self._seats.seating.plan.by_name:
            self._add_slot(slots[name], name)
        keep_plan(self._folders.control, self._seats.seating.plan)
        move_planned_interrupts(self._seats.seating)
        self._auditor.start()
        self._disks.start()
        self._preemption.forget(node_id)
        self._guard.start(self._slots)
        self._wakes_thread = threading.Thread(
            target=self._run_wakes, args=(f"node.{node_id}",), name="wakes", daemon=True
        )
        self._wakes_thread.start()

    def _look_at(self, slot: ManagedSlot, now: float) -> None:
        if slot.process is None:
            if slot.restart_at is not None and now >= slot.restart_at and self._stopping_at is None:
                self._start(slot, now)
            return
        if not slot.launch_seen and (rows := slot.process.launched()) is not None:
            slot.launch_seen = True
            slot.device = device_of(self._seats.seating, slot.seat, rows)
            self._desk.show(slot)
        reading = slot.look(now)
        silent_s = self._link.silent_s()
        # whatever it claimed while we cannot reach the database, we would have to park at once
        slot.may_claim(silent_s < self._settings.database_away_park_s)
        if reading is not None and reading.serial:
            view = self._link.view
            chosen = order(
                Circumstances(
                    held=view.held.get(reading.serial),
                    fenced=reading.serial in view.fenced,
                    slot_state=view.slot_states.get(slot.slot_id, ""),
                    limits=slot.limits,
                    database_silent_s=silent_s,
                    stopping=slot.leaving if self._stopping_at is None else "the node's agent is stopping",
                    draining=view.node_state in ("draining", "drained"),
                    guard=self._guard.wish(slot),
                ),
                self._settings,
            )
            slot.tell(chosen.command, chosen.reason, chosen.grace_s, now, chosen.duty)
        if slot.kill_at is not None and now >= slot.kill_at:
            log.warning("a slot has not obeyed in time", slot=slot.name, asked=slot.asked.name)
            slot.kill()
        elif slot.end_by is not None and now >= slot.end_by and not slot.killed:
            log.warning("a slot has not parked in time", slot=slot.name, why=slot.leaving)
            slot.kill()
        elif self._stopping_at is not None and not slot.killed and now >= self._kill_all_at():
            slot.kill()

    def _add_slot(self, slot_id: str, name: str) -> None:
        planned = self._seats.seating.plan.slot(name)
        assert self._link.registration is not None
        self._slots[slot_id] = ManagedSlot(
            slot_id,
            planned,
            Fence.create(self._seats.seating.machine, planned, self._folders.fence),
            device_of(self._seats.seating, planned),
            (self._link.registration.node_id, self._config.name),
            self._folders,
        )
        self._auditor.expect_free(slot_id, planned)

    def _retire(self, slot: ManagedSlot, reason: str) -> None:
        """Drain a slot: it parks what it is on, ends and, if it is still planned, starts anew."""
        if slot.process is None or slot.leaving or self._stopping_at is not None:
            return
        log.warning("a slot is drained", slot=slot.name, reason=reason)
        self._link.set_slot_state(slot.slot_id, "draining", reason)
        slot.retire(reason, time.monotonic() + self._settings.park_grace_s)

    def _pids(self) -> Iterable[int]:
        return (pid for subject in self._views.subjects() for pid in subject.fence.pids(subject.pid))

    def _start(self, slot: ManagedSlot, now: float) -> None:
        if self._auditor.why_wait(slot.slot_id) is not None or self._seats.why_below(slot.slot_id):
            return
        try:
            if not self._seats.prepare(slot):
                return
            slot.start(self._settings)
        except Exception as error:
            # whatever it is, it is this slot's: the others go on
            foreseen = isinstance(error, PinningError | OSError)
            reason = str(error) if foreseen else f"{type(error).__name__}: {error}"
            log.error("a slot could not be started", slot=slot.name, error=reason, exc_info=not foreseen)
            slot.restart_at = now + slot.failed_start()
            self._link.set_slot_state(slot.slot_id, "dead", f"could not be started: {reason}")
            return
        assert slot.process is not None
        self._selector.register(slot.process.pidfd, selectors.EVENT_READ, slot)

    def _collect(self, slot: ManagedSlot) -> None:
        assert slot.process is not None
        self._selector.unregister(slot.process.pidfd)
        death = slot.ended()
        self._auditor.expect_free(slot.slot_id, slot.seat)
        if self._stopping_at is None:
            log.warning("a slot ended", slot=slot.name, note=death.note, serial=death.serial)
        self._link.bury(death)

    # --- what slots are said to be --------------------------------------------------------------------

    def _notice_blenders(self, now: float) -> None:
        """A Blender may be installed on a node that runs; jobs that ask for it wait until we tell."""
        looked, known = self._blenders
        if now - looked > BLENDERS_EVERY_S:
            self._blenders = (now, versions())
            if self._blenders[1] != known:
                for slot in self._slots.values():
                    self._seats.describe(slot)

    # --- stopping ------------------------------------------------------------------------------------

    def _begin_stop(self) -> None:
        self._stopping_at = time.monotonic()
        self._views.leaving = True
        log.info("stopping: slots park their tasks")
        self._guard.release()
        for slot in self._slots.values():
            if slot.process is not None:
                self._link.set_slot_state(slot.slot_id, "draining", "the node's agent is stopping")
                slot.end()

    def _kill_all_at(self) -> float:
        assert self._stopping_at is not None
        # a second signal: somebody is in a hurry
        grace_s = self._settings.park_grace_s if self._stop_signals < 2 else 0.0
        return self._stopping_at + grace_s

    def _finished(self) -> bool:
        return self._stopping_at is not None and all(slot.process is None for slot in self._slots.values())

    def _end_all(self) -> None:
        """Whatever happened, no process stays and the database hears of it where it can."""
        self._guard.release()
        self._guard.services.stop()
        for slot in self._slots.values():
            if slot.process is not None:
                slot.kill()
                self._link.bury(slot.ended())
        end_strays(())
        if self._link.registration is not None:
            self._link.leave()
        deadline = time.monotonic() + (_LEAVE_S if self._stop_signals < 2 else 1.0)
        while not self._link.idle() and time.monotonic() < deadline:
            time.sleep(0.01)
        self._ended.set()
        self._auditor.stop()
        self._disks.stop()
        self._link.stop(2.0)
        for slot in self._slots.values():
            with suppress(PinningError):
                slot.fence.remove()
        forget_plan(self._folders.control)
        self._wakes.close()
        if self._claims is not None:
            self._claims.close()
        os.close(self._lock_fd)

    # --- for the threads ----------------------------------------------------------------------------

    def _notify(self) -> None:
        try:
            os.write(self._wake_write, b"n")
        except BlockingIOError:
            # a full pipe wakes as well as one byte more would
            return

    # --- waking --------------------------------------------------------------------------------------

    def _pause_s(self) -> float:
        return min(_LOOK_S, self._settings.agent_poll_s)

    def _drain_wakes(self) -> None:
        try:
            while os.read(self._wake_read, 4096):
                continue
        except BlockingIOError:
            return

    def _run_wakes(self, channel: str) -> None:
        while not self._ended.is_set():
            if self._wakes.wait(channel, _WAKE_WAIT_S):
                self._link.kick()

    def _watch_signals(self) -> None:
        def heard(number: int, frame: object) -> None:
            if number == signal.SIGUSR2:
                self._preemption.signal()
            elif number == signal.SIGHUP:
                self._seats.replan_wanted = True
            else:
                self._stop_signals += 1
            self._notify()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, heard)


def run_agent(settings: Settings, config: NodeConfig | None = None) -> int:
    """Run this machine's agent until SIGTERM or SIGINT; the exit code.

    Call it on the main thread of a process of its own. ``config`` is by default what ``settings.config``
    names. Raises :class:`farm.errors.InvalidInput` for a bad ``farm.toml`` and
    :class:`farm.errors.Conflict` when another agent of the same node name runs with this data folder.
    """
    try:
        if os.environ.get("SYSTEMD_EXEC_PID") == str(os.getpid()):
            # only as the service itself: elsewhere the group is shared with others
            prepare_delegation()
        config = config or read_node_config(settings.config)
        make_wished(config.wishes.mig, read_topology)
        seating = seat(config)
    except PinningError as error:
        raise Unavailable(f"this machine's slots cannot be planned: {error}") from error
    tell_plan(seating)
    refuse_impossible(seating)
    return Agent(settings, seating).run()


if __name__ == "__main__":
    sys.exit(run_agent(read_settings()))
