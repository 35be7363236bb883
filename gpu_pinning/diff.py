"""What changes between two plans, and what has to be drained for it. Pure."""

from __future__ import annotations

from typing import Literal

from gpu_pinning import cpulist
from gpu_pinning.machine import Part
from gpu_pinning.plan import Plan, SlotPlan


class Change(Part):
    """One slot or neighbour that differs."""

    what: Literal["slot", "neighbour"]
    name: str
    how: Literal["added", "removed", "moved", "relabelled"]
    """``moved`` has to drain and start again; ``relabelled`` (pools, class) does not."""
    details: tuple[str, ...]

    @property
    def drains(self) -> bool:
        """True where a running slot has to be drained for this."""
        return self.what == "slot" and self.how in ("removed", "moved")


_LIVE = ("pools", "guarantee", "wish")
"""Fields that change without a restart."""


def diff_plans(running: Plan, wanted: Plan) -> tuple[Change, ...]:
    """Changes that lead from one plan to the other, in the order in which a rolling drain applies them.

    Slots that give something up come before slots that take it, so that no GPU and no core is held twice.
    """
    before, after = running.by_name, wanted.by_name
    changes = [
        Change(what="slot", name=name, how="removed", details=(_seat(before[name]),))
        for name in before
        if name not in after
    ]
    moved: list[Change] = []
    for name, slot in after.items():
        if name not in before or slot == before[name]:
            continue
        old, new = before[name].model_dump(mode="json"), slot.model_dump(mode="json")
        fields = [key for key in new if old[key] != new[key]]
        how: Literal["moved", "relabelled"] = "moved" if set(fields) - set(_LIVE) else "relabelled"
        details = tuple(_detail(key, old[key], new[key]) for key in fields)
        moved.append(Change(what="slot", name=name, how=how, details=details))
    changes += sorted(moved, key=lambda change: change.how == "relabelled")
    changes += [
        Change(what="slot", name=name, how="added", details=(_seat(after[name]),))
        for name in after
        if name not in before
    ]
    old_neighbours = {n.name: n for n in running.neighbours}
    new_neighbours = {n.name: n for n in wanted.neighbours}
    for name in sorted(set(old_neighbours) | set(new_neighbours)):
        was, now = old_neighbours.get(name), new_neighbours.get(name)
        if was == now:
            continue
        if was is None or now is None:
            how_n: Literal["added", "removed"] = "added" if was is None else "removed"
            changes.append(Change(what="neighbour", name=name, how=how_n, details=()))
            continue
        old, new = was.model_dump(mode="json"), now.model_dump(mode="json")
        details = tuple(_detail(key, old[key], new[key]) for key in new if old[key] != new[key])
        changes.append(Change(what="neighbour", name=name, how="moved", details=details))
    return tuple(changes)


def _seat(slot: SlotPlan) -> str:
    device = slot.mig or ", ".join(slot.pci) or "no GPU"
    return f"{device}; CPUs {cpulist.show(slot.cpus)}; memory {cpulist.show(slot.nodes)}"


def _detail(key: str, old: object, new: object) -> str:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [k for k in {**old, **new} if old.get(k) != new.get(k)]
        return f"{key}: " + ", ".join(f"{k} {old.get(k)} -> {new.get(k)}" for k in keys)
    if key == "deny":
        return "deny: other device nodes"
    return f"{key}: {old} -> {new}"
