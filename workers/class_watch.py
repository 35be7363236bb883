"""Looks from time to time at how the neighbours run, and tells where that changes the classes of slots."""

from __future__ import annotations

from collections.abc import Callable

from gpu_pinning import Plan, discover_neighbours
from gpu_pinning.regrade import regrade
from workers.placement import Seating


class ClassWatch:
    """:meth:`look` belongs to the auditor's thread, :meth:`take` to the agent's main thread."""

    def __init__(self, seating: Callable[[], Seating], notify: Callable[[], None]) -> None:
        self._seating = seating
        self._notify = notify
        self._found: tuple[Seating, Plan] | None = None
        self._last: Plan | None = None

    def look(self) -> None:
        """Observe the neighbours once. What is seen twice in a row is told: a server may just be starting."""
        seating = self._seating()
        if not seating.plan.neighbours:
            return
        machine = seating.machine
        plan = regrade(machine, seating.config.wishes, seating.plan, discover_neighbours(machine))
        last, self._last = self._last, plan
        if plan != seating.plan and plan == last:
            self._found = seating, plan
            self._notify()

    def take(self) -> Seating | None:
        """The seating with its new classes, once; None where nothing is new, or it is no longer the same."""
        found, self._found = self._found, None
        if found is None or found[0] is not self._seating():
            return None
        return Seating(found[0].config, found[0].machine, found[1])
