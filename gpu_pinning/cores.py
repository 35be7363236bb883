"""Chooses whole physical cores: cheapest first by what they share with neighbours, then close together.
Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from gpu_pinning.machine import Topology

# A further memory node or cache group costs less than any sharing with a decode neighbour, but is not free.
_SPAN_NODE, _SPAN_LLC = 6, 1


class CorePool:
    """The physical cores that are still to be had."""

    def __init__(self, machine: Topology, reserved: int = 0) -> None:
        allowed = set(machine.allowed_cpus)
        self._machine = machine
        self.usable = {core.id: tuple(c for c in core.cpus if c in allowed) for core in machine.cores}
        self.usable = {core: cpus for core, cpus in self.usable.items() if cpus}
        self.partial = {
            core for core in self.usable if len(self.usable[core]) < len(machine.core_by_id[core].cpus)
        }
        isolated = set(machine.kernel.isolated)
        # The scheduler does not spread threads over isolated CPUs: a slot there would run on one of them.
        self.isolated = {core for core in self.usable if isolated & set(self.usable[core])}
        self.system = tuple(sorted(self.usable)[:reserved])
        self.free = set(self.usable) - set(self.system)
        self.of_slots: Counter[int] = Counter()
        """How many slots have been given each core."""
        # -1 stands for a node or cache that the machine does not tell.
        self._node = {core.id: -1 if core.node is None else core.node for core in machine.cores}
        self._llc = {core.id: -1 if core.llc is None else core.llc for core in machine.cores}

    def cpus(self, cores: Iterable[int]) -> tuple[int, ...]:
        """Hardware threads of cores, as far as they are ours."""
        return tuple(sorted(cpu for core in cores for cpu in self.usable[core]))

    def take(self, cores: Iterable[int]) -> None:
        """Take these cores out."""
        taken = set(cores)
        self.free -= taken
        self.system = tuple(core for core in self.system if core not in taken)

    def of_cpus(self, cpus: Iterable[int]) -> tuple[set[int], list[int]]:
        """The cores of these CPUs, and the CPUs that are not usable here."""
        known = self._machine.core_of
        cores = {known[cpu].id for cpu in cpus if cpu in known}
        bad = [cpu for cpu in cpus if cpu not in known or cpu not in self.usable.get(known[cpu].id, ())]
        return cores, bad

    def for_slots(self) -> set[int]:
        """Free cores that a slot may have."""
        return self.free - self.isolated

    def choose(self, number: int, cost: Callable[[int], int]) -> tuple[int, ...] | None:
        """``number`` free cores of least cost, in as few nodes and caches as that allows; None: too few.

        Where costs are equal, a group that is filled exactly is preferred to one that is broken.
        """
        free = self.for_slots()
        if number > len(free):
            return None
        price = {core: cost(core) + (20 if core in self.partial else 0) for core in free}
        # Cheapest first, then node by node: tuples sort without a call per comparison.
        order = [core for _, _, core in sorted((price[core], self._node[core], core) for core in free)]
        by_llc: dict[int, list[int]] = defaultdict(list)
        by_node: dict[int, list[int]] = defaultdict(list)
        for core in order:
            by_llc[self._llc[core]].append(core)
            by_node[self._node[core]].append(core)
        candidates = [group[:number] for group in by_llc.values() if len(group) >= number]
        lowest = sum(price[core] for core in order[:number])
        if not any(sum(price[core] for core in group) == lowest for group in candidates):
            # No single cache group is as cheap as can be: look at whole nodes, then anywhere.
            for group in by_node.values():
                if len(group) >= number:
                    ranked = sorted((price[c], -len(by_llc[self._llc[c]]), c) for c in group)
                    candidates.append([core for _, _, core in ranked[:number]])
            candidates.append(order[:number])
        best = min(candidates, key=lambda cores: self._score(cores, price, by_llc))
        return tuple(sorted(best))

    def _score(
        self, cores: list[int], price: dict[int, int], by_llc: dict[int, list[int]]
    ) -> tuple[int, int, int]:
        nodes = {self._node[core] for core in cores}
        llcs = {self._llc[core] for core in cores}
        rest = sum(len(by_llc[llc]) for llc in llcs) - len(cores)
        span = _SPAN_NODE * (len(nodes) - 1) + _SPAN_LLC * (len(llcs) - 1)
        return sum(price[core] for core in cores) + span, rest, min(cores)
