"""A plan's guarantee classes for the neighbours as they run now. Pure.

A plan is made for what runs at that moment. A server that is started anew without its fence, or one that is
fenced at last, changes the classes of slots that sit where they sat.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_pinning import cpulist, sharing
from gpu_pinning.machine import Topology
from gpu_pinning.neighbour_seats import match
from gpu_pinning.observed import ObservedNeighbour, fence_command
from gpu_pinning.plan import NeighbourPlan, Plan, Sharing, SlotPlan
from gpu_pinning.wishes import Guarantee, NeighbourWish, Wishes


def regrade(machine: Topology, wishes: Wishes, plan: Plan, observed: Iterable[ObservedNeighbour]) -> Plan:
    """``plan`` with the fences of its neighbours, and the classes beside them, as ``observed`` has them.

    A neighbour that does not run now keeps what was known of it: it is disturbed by nobody.
    """
    seen = tuple(observed)
    by_name = {wish.name: wish for wish in wishes.neighbours}
    neighbours = tuple(_as_seen(each, by_name[each.name], seen) for each in plan.neighbours)
    if neighbours == plan.neighbours:
        return plan
    pairs = [
        sharing.judge(machine, slot, neighbour, sharing.place_of_slot(machine, slot))
        for slot in plan.slots
        for neighbour in neighbours
    ]
    slots = tuple(
        slot.model_copy(
            update={"guarantee": sharing.lowest([pair.guarantee for pair in pairs if pair.slot == slot.name])}
        )
        for slot in plan.slots
    )
    return plan.model_copy(update={"neighbours": neighbours, "slots": slots, "sharing": tuple(pairs)})


def below_its_wish(wishes: Wishes, plan: Plan, slot: SlotPlan) -> tuple[Guarantee, Sharing] | None:
    """The class that a slot is to have at least and the pair that falls short of it; None: none does."""
    wish = next((wish for wish in wishes.slots if wish.name == slot.wish), None)
    floor = (wish.lowest_class if wish is not None else None) or wishes.placement.lowest_class
    if slot.guarantee is None or slot.guarantee <= floor:
        return None
    pairs = (pair for pair in plan.sharing if pair.slot == slot.name)
    worst = max(pairs, key=lambda pair: pair.guarantee, default=None)
    return None if worst is None else (floor, worst)


def _as_seen(
    neighbour: NeighbourPlan, wish: NeighbourWish, observed: tuple[ObservedNeighbour, ...]
) -> NeighbourPlan:
    found = match(observed, wish, neighbour.gpus)
    if found is None:
        return neighbour
    held = set(found.cpus) <= set(neighbour.cpus)
    mend = None if held else fence_command(cpulist.show(neighbour.cpus), found, neighbour.name)
    return neighbour.model_copy(update={"fence": "observed" if held else "none", "mend": mend})
