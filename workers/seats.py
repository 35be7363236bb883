"""Where the slots of a node sit, and how they change seats while the node works.

Two things change them: a farm.toml that was read again (SIGHUP), which is applied by a rolling drain
(:mod:`workers.reseating`), and neighbours that come, go or move, which changes the classes of slots
(:mod:`workers.class_watch`). A slot whose class has fallen below its wish is drained and kept until that is
mended. Everything here belongs to the agent's main thread, but for what :attr:`Seats.classes` says of itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
import structlog

from farm import events
from gpu_pinning import PinningError
from gpu_pinning.regrade import below_its_wish
from workers.class_watch import ClassWatch
from workers.managed_slot import ManagedSlot
from workers.node_folders import NodeFolders
from workers.placement import Seating, device_of, keep_plan, move_planned_interrupts, tell_plan
from workers.replanning import Replanning, tell_not_applied
from workers.reseating import Reseating

if TYPE_CHECKING:
    from gpu_pinning import Claims
    from workers.findings import FindingsDesk
    from workers.guarding import Guarding
    from workers.link import DatabaseLink

log = structlog.get_logger(__name__)
_TRY_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Hands:
    """What the agent does to slots at our word."""

    add: Callable[[str, str], None]
    """Take up a slot that is new in the plan: its id and name."""
    retire: Callable[[ManagedSlot, str], None]
    """Drain a slot for a reason."""
    pids: Callable[[], Iterable[int]]
    """Process ids of all that runs in slots."""


class Seats:
    """See the module. ``slots`` is the agent's own mapping of slots by id, which changes here too."""

    def __init__(
        self,
        seating: Seating,
        slots: dict[str, ManagedSlot],
        folders: NodeFolders,
        claims: Claims | None,
        link: DatabaseLink,
        guard: Guarding,
        desk: FindingsDesk,
        hands: Hands,
        notify: Callable[[], None],
    ) -> None:
        self.seating = seating
        self.classes = ClassWatch(lambda: self.seating, notify)
        self.replan_wanted = False
        """Set from a signal handler: farm.toml is to be read again."""
        self._slots = slots
        self._folders = folders
        self._claims = claims
        self._link = link
        self._guard = guard
        self._desk = desk
        self._hands = hands
        self._reseating: Reseating | None = None
        self._replanning = Replanning(seating.config, notify, claims)
        self._again_at = 0.0
        self._below: dict[str, str] = {}
        """Why a slot, by its id, may not run beside the neighbours as they are now."""

    def turn(self) -> None:
        """Go on with what is under way, and take up what is new."""
        self._reseat()
        self._regrade()

    def why_below(self, slot_id: str) -> str | None:
        """Why the slot may not run beside the neighbours as they are now; None: it may."""
        return self._below.get(slot_id)

    def prepare(self, slot: ManagedSlot) -> bool:
        """Give a slot that is about to start its seat; False where that is not free yet.

        Raises :class:`gpu_pinning.FenceError`.
        """
        if self._reseating is not None:
            if not self._reseating.may_start(slot, self._slots):
                return False
            self._reseating.take_seat(slot, self._folders)
        return True

    def describe(self, slot: ManagedSlot, *, pools_changed: bool = False) -> None:
        """Let the database have a slot as the present plan has it, where that differs."""
        rows = slot.process.launched() if slot.process is not None else None
        device = device_of(self.seating, slot.seat, rows, slot.device.get("audit", ()))
        if pools_changed or device != slot.device:
            slot.device = device
            self._desk.show(slot)

    # --- a changed farm.toml -------------------------------------------------------------------------

    def _replan(self) -> None:
        """Let farm.toml be read again; what may be applied comes back in a moment."""
        seats = {slot.name: slot.seat for slot in self._slots.values()}
        self._replanning.begin(self.seating, seats, set(self._hands.pids()))

    def _apply(self, wanted: Seating) -> None:
        """Begin a rolling drain to a new plan, also where an earlier one has not come to its end."""
        tell_plan(wanted)
        seats = {slot.name: slot.seat for slot in self._slots.values()}
        self._reseating = Reseating(self.seating, seats, wanted, self._hands.retire)
        changes = [change.model_dump(mode="json") for change in self._reseating.changes]
        log.info("applying farm.toml", changes=len(changes))
        self.seating = wanted
        self._below.clear()
        self._guard.reseat(wanted)
        self._link.reseat(wanted)

        def once(conn: sa.Connection) -> None:
            events.emit(conn, "node.plan", node_id=self._link.node_id, data={"changes": changes})

        self._link.tell("plan changed", once)
        for slot in self._slots.values():
            if slot.restart_at is not None and slot.seat != wanted.slot(slot.name):
                # its troubles were those of its old seat
                slot.restart_at = 0.0

    def _reseat(self) -> None:
        if self.replan_wanted and not self._replanning.busy and self._slots:
            self.replan_wanted = False
            self._replan()
        if (wanted := self._replanning.take()) is not None:
            before = self.seating, self._reseating
            try:
                self._apply(wanted)
            except Exception as error:
                log.exception("applying farm.toml failed")
                tell_not_applied(error)
                self.seating, self._reseating = before
                self._guard.reseat(self.seating)
                self._link.reseat(self.seating)
        now = time.monotonic()
        if self._reseating is not None and now >= self._again_at:
            try:
                self._go_on_reseating(self._reseating)
            except Exception as error:
                # a full disk, say: what is left to do is tried again, and the slots that sit work on
                log.error("moving slots to their new seats goes on later", error=str(error), exc_info=True)
                self._again_at = now + _TRY_AGAIN_S

    def _go_on_reseating(self, moving: Reseating) -> None:
        known = self._link.registration
        if known is None or not moving.wanted.plan.by_name.keys() <= known.slots.keys():
            return
        for name in moving.wanted.plan.by_name:
            if known.slots[name] not in self._slots:
                self._hands.add(known.slots[name], name)
        for slot in moving.turn(self._slots):
            with suppress(PinningError):
                slot.fence.remove()
            self._link.forget(slot.slot_id)
            del self._slots[slot.slot_id]
        for name in moving.relabelled():
            slot, planned = self._slots[known.slots[name]], moving.wanted.plan.slot(name)
            if slot.seat != planned:
                slot.seat = planned
                self.describe(slot, pools_changed=True)
        if moving.done(self._slots):
            # what a slot shares with a neighbour may be another, although neither it nor its class is
            for slot in self._slots.values():
                self.describe(slot)
            log.info("farm.toml is applied")
            if self._claims is not None:
                self._claims.keep(moving.wanted.plan.slots)
            keep_plan(self._folders.control, moving.wanted.plan)
            move_planned_interrupts(moving.wanted)
            self._reseating = None

    # --- neighbours that run otherwise ----------------------------------------------------------------

    def _regrade(self) -> None:
        """Neighbours run otherwise than they did: slots have other classes, and some may not go on."""
        regraded = self.classes.take()
        if regraded is None or self._reseating is not None:
            return
        self.seating = regraded
        self._link.reseat(regraded)
        keep_plan(self._folders.control, regraded.plan)
        for slot in self._slots.values():
            planned = regraded.slot(slot.name)
            if planned is not None:
                slot.seat = planned
                self.describe(slot)
                self._mind_class(slot)

    def _mind_class(self, slot: ManagedSlot) -> None:
        """Drain a slot whose class has fallen below its wish, and keep it until that is mended."""
        short = below_its_wish(self.seating.config.wishes, self.seating.plan, slot.seat)
        if short is None:
            if self._below.pop(slot.slot_id, None) is not None:
                log.info("a slot has its class again", slot=slot.name)
            return
        floor, pair = short
        why = f"class {pair.guarantee} beside {pair.neighbour}, {floor} is wished: {pair.reason}"
        why += f"; {pair.raise_by}"
        if self._below.get(slot.slot_id) == why:
            return
        self._below[slot.slot_id] = why
        self._desk.class_fell(slot, floor, pair)
        if slot.process is not None:
            self._hands.retire(slot, why)
        else:
            self._link.set_slot_state(slot.slot_id, "dead", why)
