"""Who gets the idle slots: a pure function of what is ready, who uses what, and which slots are idle.

The rules, in the order in which they count:

1. A slot serves its pools in their order: the first pool that has work for it wins. Slots that have a pool
   further up come before slots that lend themselves to it.
2. Within a pool the project furthest below its share goes first: the one with the least use per share
   (:mod:`farm.scheduler.shares` measures use, which is reserved ahead for what is given here).
3. Within a project: priority plus age, then the older job, then the earlier step.
4. A slot that has the step's state loaded (``warm_key``) is preferred. A task may pass those before it for
   the sake of a warm slot, by at most ``look_ahead`` places, never one of higher priority, and no step is
   passed more than ``look_ahead`` times before it gets a slot.
5. Never more slots than a project's or a pool's cap; nothing for a project whose quota is spent.
6. A project that reserves nothing leaves the floor (:mod:`farm.scheduler.floor`) to those that do, in every
   pool that a slot serves.

Only steps with their numbers of ready tasks are looked at, never tasks: the cost does not depend on how many
are ready.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farm.scheduler.fit import fits
from farm.scheduler.floor import Floor


@dataclass(frozen=True, slots=True)
class IdleSlot:
    """A slot that waits for a ticket. ``warm`` holds the keys of what it has loaded."""

    id: str
    pools: tuple[str, ...]
    device: Mapping[str, Any] = field(default_factory=dict)
    warm: frozenset[str] = frozenset()
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadyStep:
    """A step with ready tasks. Times in seconds; ``created_at`` is its job's."""

    id: str
    job_id: str
    project_id: str
    pool: str
    priority: int
    created_at: float
    position: int
    n_ready: int
    requires: Mapping[str, Any] = field(default_factory=dict)
    warm_key: str | None = None
    mean_task_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProjectLimits:
    """A project's share (relative to the others'), cap in slots, and quota in slot-seconds."""

    share: float = 1.0
    max_slots: int | None = None
    quota_slot_s: float | None = None
    used_slot_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """A pool's cap in slots, and whether it gives out nothing."""

    max_slots: int | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class PickRules:
    """Bounds from the settings; see :class:`farm.settings.Settings`."""

    look_ahead: int = 32
    age_boost_per_hour: float = 10.0
    bundle_max: int = 16
    bundle_s: float = 1.0
    unknown_task_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Situation:
    """What :func:`choose` decides on.

    ``busy`` counts slots in use by (pool, project). ``use`` is slot-seconds by (pool, project), measured and
    reserved. ``passed`` says how often a step was passed by warm ones since it last got a slot.
    """

    now: float
    slots: Sequence[IdleSlot]
    steps: Sequence[ReadyStep]
    projects: Mapping[str, ProjectLimits] = field(default_factory=dict)
    pools: Mapping[str, PoolLimits] = field(default_factory=dict)
    busy: Mapping[tuple[str, str], int] = field(default_factory=dict)
    use: Mapping[tuple[str, str], float] = field(default_factory=dict)
    passed: Mapping[str, int] = field(default_factory=dict)
    rules: PickRules = field(default_factory=PickRules)
    floor: Floor = field(default_factory=Floor)


@dataclass(frozen=True, slots=True)
class Pick:
    """Up to ``max_tasks`` tasks of a step for a slot.

    ``need`` is its project's use per share at that moment; ``passed`` are steps that this pick went before.
    """

    slot_id: str
    step: ReadyStep
    max_tasks: int
    need: float = 0.0
    passed: tuple[str, ...] = ()


def choose(situation: Situation, limit: int | None = None) -> list[Pick]:
    """Give the idle slots out, at most ``limit`` of them; see the module for the rules."""
    return _Round(situation).run(len(situation.slots) if limit is None else limit)


def bundle_size(mean_task_s: float | None, n_ready: int, slots_waiting: int, rules: PickRules) -> int:
    """How many tasks of a step travel together.

    As many as last about ``bundle_s`` by their measured mean, at most ``bundle_max``; but not so many that
    other idle slots go without. A step that was not measured yet may bundle by its tasks' own expectations,
    which are not known here: up to ``bundle_max`` are offered and :func:`take_bundle` decides.
    """
    size = rules.bundle_max
    if mean_task_s is not None:
        size = min(size, int(rules.bundle_s / max(mean_task_s, 1e-6)))
    fair = math.ceil(n_ready / max(1, slots_waiting))
    return max(1, min(size, fair, n_ready))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ready task as fetched. ``seconds``: what its plan expects; ``solo``: it has killed a slot."""

    id: str
    solo: bool
    seconds: float | None


def take_bundle(
    tasks: Sequence[Candidate], max_tasks: int, mean_task_s: float | None, rules: PickRules
) -> list[str]:
    """The tasks of one ticket, out of the first ready ones in their order.

    A task that has killed a slot travels alone. Where neither a measured mean nor the plan says how long
    tasks last, one travels alone; else they go on while they last ``bundle_s`` together.
    """
    if not tasks:
        return []
    if tasks[0].solo:
        return [tasks[0].id]
    taken: list[str] = []
    total = 0.0
    for task in tasks:
        if len(taken) == max_tasks:
            break
        if task.solo:
            continue
        seconds = mean_task_s if mean_task_s is not None else task.seconds
        if taken and (seconds is None or total + seconds > rules.bundle_s):
            break
        taken.append(task.id)
        if seconds is None:
            break
        total += seconds
    return taken


class _Round:
    """One run of :func:`choose`: the situation, and what this run has given out so far."""

    def __init__(self, situation: Situation) -> None:
        self.it = situation
        self.left = {step.id: step.n_ready for step in situation.steps}
        self.use = dict(situation.use)
        self.passed = Counter(situation.passed)
        self.slots_of_project: Counter[str] = Counter()
        self.slots_of_pool: Counter[str] = Counter()
        for (pool, project), number in situation.busy.items():
            self.slots_of_project[project] += number
            self.slots_of_pool[pool] += number
        queues: dict[tuple[str, str], list[ReadyStep]] = defaultdict(list)
        for step in sorted(situation.steps, key=self._order):
            queues[step.pool, step.project_id].append(step)
        self.queues: dict[str, dict[str, list[ReadyStep]]] = defaultdict(dict)
        for (pool, project), steps in queues.items():
            self.queues[pool][project] = steps
        self.able: dict[str, frozenset[str]] = {}
        floor = situation.floor
        steady = [slot for slot in situation.slots if slot.id in floor.steady]
        self.steady_idle = Counter(pool for slot in steady for pool in slot.pools)
        if floor.idle is not None:
            self.steady_idle = Counter(dict(floor.idle))
        self.unmet = Counter(dict(floor.unmet))

    def _order(self, step: ReadyStep) -> tuple[float, float, str, int]:
        age_h = max(0.0, self.it.now - step.created_at) / 3600
        rank = step.priority + self.it.rules.age_boost_per_hour * age_h
        return (-rank, step.created_at, step.job_id, step.position)

    def run(self, limit: int) -> list[Pick]:
        picks: list[Pick] = []
        waiting = list(self.it.slots)
        depth = max((len(slot.pools) for slot in waiting), default=0)
        for place in range(depth):
            pools = sorted({slot.pools[place] for slot in waiting if len(slot.pools) > place})
            for pool in pools:
                while len(picks) < limit:
                    here = [slot for slot in waiting if len(slot.pools) > place and slot.pools[place] == pool]
                    others = sum(pool in slot.pools for slot in waiting) - len(here)
                    pick = self._pick(pool, here, others)
                    if pick is None:
                        break
                    picks.append(pick)
                    waiting = [slot for slot in waiting if slot.id != pick.slot_id]
        return picks

    def _pick(self, pool: str, slots: Sequence[IdleSlot], others: int) -> Pick | None:
        limits = self.it.pools.get(pool, PoolLimits())
        if not slots or limits.paused or _full(self.slots_of_pool[pool], limits.max_slots):
            return None
        projects = self.queues.get(pool, {})
        for project in sorted(projects, key=lambda name: (self._need(pool, name), name)):
            if self._may_have_more(project):
                open_slots = self._above_floor(project, slots)
                pick = self._pick_step(projects[project], open_slots, others) if open_slots else None
                if pick is not None:
                    pick = replace(pick, need=self._need(pool, project))
                    self._count(pool, project, pick)
                    return pick
        return None

    def _above_floor(self, project: str, slots: Sequence[IdleSlot]) -> Sequence[IdleSlot]:
        """The slots that this project may have without going under the floor of those that reserve."""
        floor = self.it.floor
        if not floor or project in floor.reserving:
            return slots
        # a slot that is still at work would be one idle slot more, and what it works for counts no longer
        more = floor.idle is not None
        return [
            slot
            for slot in slots
            if slot.id not in floor.steady
            or all(
                self.steady_idle[pool] + more > self.unmet[pool] + (slot.id in floor.at_work)
                for pool in floor.steady[slot.id]
            )
        ]

    def _count_floor(self, project: str, slot_id: str) -> None:
        floor = self.it.floor
        if not floor or slot_id not in floor.steady:
            return
        pools = floor.steady[slot_id]
        if floor.idle is None:
            self.steady_idle.subtract(pools)
        change = (slot_id in floor.at_work) - (project in floor.reserving)
        for pool in pools:
            self.unmet[pool] += change

    def _need(self, pool: str, project: str) -> float:
        """Use per share; the least goes first."""
        share = self.it.projects.get(project, ProjectLimits()).share
        return self.use.get((pool, project), 0.0) / share if share > 0 else math.inf

    def _may_have_more(self, project: str) -> bool:
        limits = self.it.projects.get(project, ProjectLimits())
        if limits.quota_slot_s is not None and limits.used_slot_s >= limits.quota_slot_s:
            return False
        return not _full(self.slots_of_project[project], limits.max_slots)

    def _pick_step(self, queue: Sequence[ReadyStep], slots: Sequence[IdleSlot], others: int) -> Pick | None:
        """``others`` are idle slots that may lend themselves to this pool later in the run."""
        head: ReadyStep | None = None
        head_slots: list[IdleSlot] = []
        places = 0
        wanted: Counter[str] = Counter()
        warm_pick: tuple[ReadyStep, IdleSlot, tuple[str, ...]] | None = None
        before: list[str] = []
        for step in queue:
            if not self.left[step.id]:
                continue
            if head is not None and (places >= self.it.rules.look_ahead or step.priority < head.priority):
                break
            able = self._able(step, slots)
            if not able:
                continue
            warm = [slot for slot in able if step.warm_key is not None and step.warm_key in slot.warm]
            if head is None:
                head, head_slots = step, able
                if warm:
                    return self._give(step, min(warm, key=_coldest), len(able) + others)
            elif warm:
                wanted.update(slot.id for slot in warm)
                if warm_pick is None and step.priority == head.priority:
                    warm_pick = (step, min(warm, key=_coldest), tuple(before))
            before.append(step.id)
            places += self.left[step.id]
        if head is None:
            return None
        # a slot that no step behind wants warm: the head loses nothing by taking it
        spare = [slot for slot in head_slots if not wanted[slot.id]]
        if spare or warm_pick is None or self._passed_enough(warm_pick[2]):
            return self._give(head, min(spare or head_slots, key=_coldest), len(head_slots) + others)
        step, slot, passed = warm_pick
        return self._give(step, slot, len(slots) + others, passed)

    def _able(self, step: ReadyStep, slots: Sequence[IdleSlot]) -> list[IdleSlot]:
        if not step.requires:
            return list(slots)
        able = self.able.get(step.id)
        if able is None:
            able = frozenset(slot.id for slot in self.it.slots if fits(step.requires, slot.device))
            self.able[step.id] = able
        return [slot for slot in slots if slot.id in able]

    def _passed_enough(self, steps: Sequence[str]) -> bool:
        return any(self.passed[step] >= self.it.rules.look_ahead for step in steps)

    def _give(
        self, step: ReadyStep, slot: IdleSlot, slots_waiting: int, passed: tuple[str, ...] = ()
    ) -> Pick:
        size = bundle_size(step.mean_task_s, self.left[step.id], slots_waiting, self.it.rules)
        return Pick(slot.id, step, size, passed=passed)

    def _count(self, pool: str, project: str, pick: Pick) -> None:
        self._count_floor(project, pick.slot_id)
        self.left[pick.step.id] -= pick.max_tasks
        self.slots_of_project[project] += 1
        self.slots_of_pool[pool] += 1
        expected = expected_seconds(pick.step.mean_task_s, pick.max_tasks, self.it.rules)
        self.use[pool, project] = self.use.get((pool, project), 0.0) + expected
        self.passed.update(pick.passed)
        self.passed.pop(pick.step.id, None)


def expected_seconds(mean_task_s: float | None, tasks: int, rules: PickRules) -> float:
    """How long a ticket is expected to keep its slot: what it adds to its project's use."""
    return rules.unknown_task_s if mean_task_s is None else max(mean_task_s * tasks, 1e-3)


def _coldest(slot: IdleSlot) -> tuple[int, float, str]:
    # the longest idle among equals: a slot that has just let a ticket go unclaimed is asked last
    return (len(slot.warm), slot.since, slot.id)


def _full(used: int, cap: int | None) -> bool:
    return cap is not None and used >= cap
