"""The guard in its agent: a thread that watches the node's neighbours, and the hands that hold slots back.

The loop's thread decides (:mod:`gpu_pinning.guard.loop`); the agent's main thread acts, in
:meth:`Guarding.turn`, since all that has to do with processes is done there. What each rung does to a slot:

=========== ==========================================================================================
rung        what happens
=========== ==========================================================================================
no new work the slot is ``held`` in the database with the reason, and model loads wait their turn for ever
slow host   CPU slots work for half of the time, at their next step boundary; in slots with a GPU all
            threads but the main one share a quarter of the cores
pause       every attempt stands still at its next step boundary; declared child groups are stopped
park        attempts save a checkpoint and go back free, for other nodes to take
kill        what has not parked is ended, free of charge
=========== ==========================================================================================

Whatever the rung, slots whose attempt runs on the neighbour's own GPU are frozen where they stand, outside of
their transactions (:mod:`workers.stillstand`); one that had to be frozen again soon parks its work for others
and stays empty for a while. The guard climbs to the rung that ``FARM_GUARD_TOP`` names. Letting go undoes
each. Leases go on and time limits stand still meanwhile, so that held work loses nothing.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from gpu_pinning.guard.decide import Policy, Rung
from gpu_pinning.guard.loop import FarmLoad, GuardEvent, GuardLoop, Hold, same_gpu, shown_curve
from gpu_pinning.guard.watch import Subject, Watch
from workers import guard_rows, stillstand
from workers.brake import Brake
from workers.keeper import descendants
from workers.load_turn import LOCK_VARIABLE
from workers.neighbour_services import NeighbourServices
from workers.offenders import Offenders
from workers.orders import GuardWish
from workers.placement import Seating

if TYPE_CHECKING:
    from farm.settings import Settings
    from workers.link import DatabaseLink
    from workers.managed_slot import ManagedSlot
    from workers.node_folders import NodeFolders
    from workers.processes import SlotProcess

log = structlog.get_logger(__name__)
_TELL_EVERY_S = 2.0
_ASSERT_EVERY_S = 1.0
_REFREEZE_S = 0.5


class Guarding:
    """The guard of one node; does nothing where ``farm.toml`` names no neighbour with a URL."""

    def __init__(
        self,
        seating: Seating,
        folders: NodeFolders,
        link: DatabaseLink,
        notify: Callable[[], None],
        settings: Settings,
    ) -> None:
        """``notify`` makes the main thread turn at once."""
        self._policy = Policy(top=Rung[settings.guard_top.upper()])
        self._grace_s = settings.park_grace_s
        self._offenders = Offenders()
        self._brakes: dict[str, Brake] = {}
        self._link = link
        self._notify = notify
        self._folders = folders
        self._slots: Mapping[str, ManagedSlot] = {}
        self.services = NeighbourServices(seating, folders.control / "neighbours")
        self._lock = _LoadLock(folders.control / "load.lock")
        self._hold = Hold()
        self._asserted_at = 0.0
        self._asserted: Hold | None = None
        self._ours: set[str] = set()
        """Slots that we hold in the database, as far as we have been told."""
        self._told_at = 0.0
        self._telling = False
        self._refrozen_at = 0.0
        self._brought_out_at = 0.0
        self._began_at = time.monotonic()
        self._build(seating)

    def _build(self, seating: Seating) -> None:
        self._subjects = subjects_of(seating)
        kept = self._folders.control / "guard"
        watches = [Watch.of(s, kept, alive=self.services.alive_of(s.name)) for s in self._subjects]
        self._gpus = {subject.name: subject.gpus for subject in self._subjects}
        self._loop = GuardLoop(
            watches, self, self._load, self._record, policy=self._policy, cpus=guard_cpus(seating)
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)

    @property
    def active(self) -> bool:
        """Whether there is anybody to watch."""
        return bool(self._subjects)

    def start(self, slots: Mapping[str, ManagedSlot]) -> None:
        """Begin, once the slots are known; slots that are started from now on load in turn."""
        self._slots = slots
        if self.active:
            os.environ[LOCK_VARIABLE] = str(self._lock.path)
            self._thread.start()

    def reseat(self, seating: Seating) -> None:
        """The node has another plan: watch the neighbours that it has now, and run their commands."""
        self.services.reseat(seating)
        if subjects_of(seating) == self._subjects:
            return
        self._end_loop()
        self._hold = Hold()
        self._began_at = time.monotonic()
        self._build(seating)
        self.start(self._slots)
        if not self.active:
            os.environ.pop(LOCK_VARIABLE, None)
            self._let_go(time.monotonic())

    def release(self) -> None:
        """The agent ends: let everything go, and stop watching."""
        self._stop.set()
        self._hold = Hold()
        for slot in self._slots.values():
            if slot.process is not None:
                slot.process.thaw()
        self._slow(Rung.FREE)
        self._lock.hold(False)
        self._end_loop()

    def _end_loop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def _let_go(self, now: float) -> None:
        """With nobody left to watch: thaw, and release what is held."""
        self._lock.hold(False)
        self._freeze(Hold(), now)
        self._slow(Rung.FREE)
        self._assert_states(Hold(), now)
        self._tell()

    # --- for the main thread -------------------------------------------------------------------------

    def turn(self, now: float) -> None:
        """Act on what the loop decided: freeze and thaw, hold and release in the database, tell people."""
        self.services.turn(now)
        if not self.active or self._stop.is_set():
            return
        hold = self._hold
        self._lock.hold(hold.rung >= Rung.NO_NEW_WORK)
        self._freeze(hold, now)
        if now - self._asserted_at >= _ASSERT_EVERY_S or hold is not self._asserted:
            self._asserted_at, self._asserted = now, hold
            self._slow(hold.rung)
            self._assert_states(hold, now)
        if now - self._told_at >= _TELL_EVERY_S and not self._telling:
            self._told_at = now
            self._tell()

    def wish(self, slot: ManagedSlot) -> GuardWish | None:
        """What the guard asks of the slot's attempt; ``None``: nothing."""
        hold = self._hold
        if self._offenders.away(slot.slot_id, time.monotonic()):
            return GuardWish(Rung.PARK, self._offenders.reason(slot.slot_id), grace_s=self._grace_s)
        if hold.rung is Rung.FREE and slot.slot_id not in self._ours:
            return None
        return GuardWish(hold.rung, hold.reason, host_work=not slot.seat.gpus)

    def _freeze(self, hold: Hold, now: float) -> None:
        again = now - self._refrozen_at >= _REFREEZE_S
        if again:
            self._refrozen_at = now
        fresh: list[ManagedSlot] = []
        for slot in self._slots.values():
            process = slot.process
            if process is None:
                continue
            # one that is to end has to hear of it; our own wish to park has no deadline
            ending = slot.killed or bool(slot.leaving) or slot.kill_at is not None
            # so has one whose work is to go elsewhere
            ending = ending or self._offenders.away(slot.slot_id, now)
            wanted = not ending and slot.present_serial() != 0 and self._beside(slot, hold.frozen)
            if wanted and not process.frozen:
                fresh.append(slot)
            elif wanted and again and not _by_group(process):
                # by signals alone, a process that was born meanwhile has missed its own
                process.freeze()
            elif process.frozen and not wanted:
                process.thaw()
        if fresh:
            stillstand.freeze(fresh)
        for slot in fresh:
            log.warning("froze a slot on a neighbour's GPU", slot=slot.name, reason=hold.reason)
            if self._offenders.froze(slot.slot_id, now):
                log.warning("its work goes elsewhere", slot=slot.name)
                self._asserted_at = 0.0
        if now - self._brought_out_at >= stillstand.AGAIN_S:
            self._brought_out_at = now
            stillstand.bring_out([slot for slot in self._slots.values() if slot not in fresh])

    def _beside(self, slot: ManagedSlot, names: frozenset[str]) -> bool:
        used = {*slot.seat.gpus, *slot.seat.pci}
        return any(same_gpu(own, known) for name in names for own in self._gpus[name] for known in used)

    def _slow(self, rung: Rung) -> None:
        """Press or release the brake on the host work of slots that drive a GPU."""
        for slot in self._slots.values():
            brake = self._brakes.setdefault(slot.slot_id, Brake())
            pid = slot.process.slot_pid if slot.process is not None and slot.seat.gpus else None
            if pid is None or (rung < Rung.SLOW_HOST and not brake.on):
                continue
            if rung >= Rung.SLOW_HOST:
                brake.press(pid, descendants(pid), slot.seat.cpus)
            else:
                brake.release(pid, descendants(pid), slot.seat.cpus)

    def _assert_states(self, hold: Hold, now: float) -> None:
        states = self._link.view.slot_states
        away = [slot_id for slot_id in states if self._offenders.away(slot_id, now)]
        for slot_id in away:
            if states[slot_id] in ("idle", "busy"):
                self._hold_slots([slot_id], self._offenders.reason(slot_id))
        self._ours = {slot_id for slot_id in self._ours if states.get(slot_id) in ("idle", "busy", "held")}
        if hold.rung >= Rung.NO_NEW_WORK:
            ids = [slot_id for slot_id, state in states.items() if state in ("idle", "busy")]
            if ids := [slot_id for slot_id in ids if slot_id not in away]:
                self._hold_slots(ids, hold.reason)
            return
        self._ours = {slot_id for slot_id in self._ours if states.get(slot_id) == "held" or slot_id in away}
        ids = sorted(self._ours - set(away))
        if ids:
            self._link.tell("guard lets go", lambda conn: guard_rows.release_slots(conn, ids), "scheduler")

    def _hold_slots(self, ids: list[str], reason: str) -> None:
        self._ours |= set(ids)
        self._link.tell("guard holds", lambda conn: guard_rows.hold_slots(conn, ids, reason))

    def _tell(self) -> None:
        registration = self._link.registration
        if registration is None:
            return
        alive_s = time.monotonic() - self._began_at
        shown = {
            "at": time.time(),
            "rung": self._hold.rung.name.lower(),
            "reason": self._hold.reason,
            "cpu_share": round(self._loop.cpu_s / alive_s, 5) if alive_s > 0 else 0.0,
            "neighbours": self._loop.describe(),
        }
        self._telling = True

        def once(conn: Any) -> None:
            self._telling = False
            guard_rows.show(conn, registration.node_id, shown)

        self._link.tell("guard status", once)

    # --- for the loop's thread -----------------------------------------------------------------------

    def hold(self, hold: Hold) -> None:
        """See :class:`gpu_pinning.guard.loop.Actuator`."""
        self._hold = hold
        log.info("guard", rung=hold.rung.name, frozen=sorted(hold.frozen), reason=hold.reason)
        self._notify()

    def _load(self) -> FarmLoad:
        gpus: set[str] = set()
        busy = False
        for slot in list(self._slots.values()):
            if slot.present_serial():
                busy = True
                gpus |= {*slot.seat.gpus, *slot.seat.pci}
        return FarmLoad(busy, frozenset(gpus))

    def _record(self, event: GuardEvent) -> None:
        registration = self._link.registration
        if registration is None:
            return
        data = {
            "neighbour": event.neighbour,
            "rung": event.rung.name.lower(),
            "frozen": event.frozen,
            "reason": event.reason,
            "share_over": round(event.share, 4),
            "seconds_ago": round(time.monotonic() - event.at, 2),
            "curve": shown_curve(event.curve, event.at),
        }
        log.info("guard event", kind=event.kind, neighbour=event.neighbour, reason=event.reason)
        self._link.tell(
            f"guard.{event.kind}",
            lambda conn: guard_rows.record(conn, registration.node_id, f"guard.{event.kind}", data),
            "events",
        )

    def _run(self) -> None:
        try:
            self._loop.run(self._stop)
        except Exception:  # a guard that is gone must not leave the farm held, nor pass unseen
            log.exception("the guard ended")
            self._hold = Hold()


def subjects_of(seating: Seating) -> list[Subject]:
    """The neighbours of a node that can be watched, with the GPUs that the plan found for them."""
    planned = {neighbour.name: neighbour for neighbour in seating.plan.neighbours}
    return [
        Subject(
            wish.name,
            wish.role,
            wish.url,
            wish.model,
            planned[wish.name].gpus if wish.name in planned else wish.gpus,
            wish.budget_ms,
            wish.budget_ratio,
        )
        for wish in seating.config.wishes.neighbours
        if wish.url is not None
    ]


def guard_cpus(seating: Seating) -> list[int]:
    """CPUs where the guard's threads may run: all that are no neighbour's, or all where that leaves none."""
    taken = {cpu for neighbour in seating.plan.neighbours for cpu in neighbour.cpus}
    allowed = set(seating.machine.allowed_cpus)
    return sorted(allowed - taken or allowed)


def _by_group(process: SlotProcess) -> bool:
    return process.fence is not None and "freeze" in process.fence.group.folders


class _LoadLock:
    """Held by the agent, no slot loads a model; see :mod:`workers.load_turn`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._held = False

    def hold(self, wanted: bool) -> None:
        """Take it as soon as nobody loads, or give it back."""
        if wanted and not self._held:
            with suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._held = True
        elif not wanted and self._held:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._held = False
