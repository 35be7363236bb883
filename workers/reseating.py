"""A changed farm.toml is applied by a rolling drain: slot by slot parks, ends and starts in its new seat.

Slots that give something up go before slots that take it (``gpu_pinning.diff_plans`` orders them so), and a
slot starts in its new seat only when no slot that still sits in an old one holds a GPU or a core of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import structlog

from gpu_pinning import Change, Fence, SlotPlan, diff_plans
from workers.managed_slot import ManagedSlot
from workers.node_folders import NodeFolders
from workers.placement import Seating, device_of

log = structlog.get_logger(__name__)


class Reseating:
    """One rolling drain towards ``wanted``. Call :meth:`turn` often, on the agent's main thread.

    ``seats`` are those in which the slots sit now: an earlier drain may not have come to its end.
    """

    def __init__(
        self,
        running: Seating,
        seats: Mapping[str, SlotPlan],
        wanted: Seating,
        retire: Callable[[ManagedSlot, str], None],
    ) -> None:
        self.wanted = wanted
        present = running.plan.model_copy(update={"slots": tuple(seats.values())})
        self.changes: tuple[Change, ...] = diff_plans(present, wanted.plan)
        self._retire = retire
        self._waiting = deque(change.name for change in self.changes if change.drains)
        self._leaving: str | None = None

    def pending(self) -> set[str]:
        """Names of slots that still sit, or may still sit, in a seat that they have to leave."""
        return {*self._waiting, *([self._leaving] if self._leaving else [])}

    def turn(self, slots: Mapping[str, ManagedSlot]) -> list[ManagedSlot]:
        """Go on where it can be gone on; slots that have left for good."""
        by_name = {slot.name: slot for slot in slots.values()}
        gone: list[ManagedSlot] = []
        if self._leaving is not None:
            slot = by_name.get(self._leaving)
            if slot is not None and slot.process is not None:
                return gone
            self._leaving = None
        while self._waiting and self._leaving is None:
            slot = by_name.get(self._waiting.popleft())
            if slot is None:
                continue
            if slot.process is not None:
                self._leaving = slot.name
                self._retire(slot, "farm.toml has changed: the slot is drained for its new place")
        for slot in by_name.values():
            if slot.process is None and slot.name not in self.wanted.plan.by_name:
                gone.append(slot)
        return gone

    def may_start(self, slot: ManagedSlot, slots: Mapping[str, ManagedSlot]) -> bool:
        """Whether the slot's seat in the new plan is free of slots that still sit in old ones."""
        seat = self.wanted.slot(slot.name)
        if seat is None:
            return False
        pending = self.pending() - {slot.name}
        for other in slots.values():
            if other.name in pending and other.process is not None and _overlap(seat, other.seat):
                return False
        return True

    def done(self, slots: Mapping[str, ManagedSlot]) -> bool:
        """Whether every slot sits where it is to."""
        if self.pending():
            return False
        seats = {slot.name: slot.seat for slot in slots.values()}
        wanted = self.wanted.plan.by_name
        return seats.keys() == wanted.keys() and all(seats[name] == seat for name, seat in wanted.items())

    def take_seat(self, slot: ManagedSlot, folders: NodeFolders) -> None:
        """Give a slot that may start its new seat. Raises :class:`gpu_pinning.FenceError`."""
        seat = self.wanted.plan.slot(slot.name)
        if slot.seat != seat:
            slot.move(seat, Fence.create(self.wanted.machine, seat, folders.fence))
        slot.device = device_of(self.wanted, seat)

    def relabelled(self) -> list[str]:
        """Slots that change without a drain: pools or class alone."""
        return [
            change.name for change in self.changes if change.what == "slot" and change.how == "relabelled"
        ]


def _overlap(one: SlotPlan, other: SlotPlan) -> bool:
    devices = set(one.gpus) & set(other.gpus)
    if one.mig and other.mig:
        devices = {one.mig} & {other.mig}
    return bool(devices or set(one.cpus) & set(other.cpus))
