"""The floor under projects that reserve capacity: a part of each pool's slots that others leave to them.

A project with ``reserved`` set finds slots when it has work: of each pool, ``reserve_floor`` (20 %, rounded
up) of the slots on nodes that stay is kept free for such projects, less what they use there now. Slots on
preemptible nodes are everybody's and count for nothing here, since they may be gone tomorrow. Where no
project reserves anything there is no floor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from farm.db.tables import jobs, nodes, projects, slots, steps, tasks

_BUSY = sa.text("tasks.state IN ('dispatched', 'running')")


@dataclass(frozen=True, slots=True)
class Floor:
    """What is kept of each pool. ``unmet`` is by pool the slots that reserving projects could still claim;
    below 0 where they use more than that."""

    reserving: frozenset[str] = frozenset()
    """Ids of projects that reserve."""
    steady: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Slots on nodes that stay, each with its pools."""
    unmet: Mapping[str, int] = field(default_factory=dict)
    at_work: frozenset[str] = frozenset()
    """Steady slots that work for reserving projects: they make up for what is not in ``unmet``."""
    idle: Mapping[str, int] | None = None
    """Steady slots that are idle, by pool. None: they are those of the situation that is decided on."""

    def __bool__(self) -> bool:
        return bool(self.reserving)


def floor_of(share: float, slots_of_pool: int, in_use: int) -> int:
    """Slots of a pool to keep free: ``share`` of its steady slots, rounded up, less those in use.

    Below 0 where more are in use: so many may be given back without going under the floor.
    """
    # 0.2 of 15 slots is 3, not 4: the product is a little off
    return math.ceil(round(share * slots_of_pool, 9)) - in_use


def read_floor(conn: sa.Connection, share: float) -> Floor:
    """The floor now; false where no project reserves or the share is 0."""
    if share <= 0:
        return Floor()
    reserving = frozenset(conn.scalars(sa.select(projects.c.id).where(projects.c.reserved)))
    if not reserving:
        return Floor()
    query = (
        sa.select(slots.c.id, slots.c.pools, nodes.c.info)
        .join(nodes, nodes.c.id == slots.c.node_id)
        .where(slots.c.state != "dead", nodes.c.state == "up")
    )
    steady = {
        row.id: tuple(row.pools) for row in conn.execute(query) if not (row.info or {}).get("preemptible")
    }
    at_work = conn.scalars(
        sa.select(tasks.c.slot_id)
        .join(steps, steps.c.id == tasks.c.step_id)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(_BUSY, tasks.c.slot_id.is_not(None), jobs.c.project_id.in_(sorted(reserving)))
        .distinct()
    )
    used_slots = frozenset(at_work) & steady.keys()
    size, used = _count(steady.values()), _count(steady[slot] for slot in used_slots)
    unmet = {pool: floor_of(share, number, used[pool]) for pool, number in size.items()}
    return Floor(reserving, steady, unmet, used_slots)


def with_idle(floor: Floor, idle: Iterable[str]) -> Floor:
    """The floor for deciding on slots that are not idle yet, where ``idle`` (ids) are."""
    return replace(floor, idle=_count(floor.steady[slot] for slot in idle if slot in floor.steady))


def _count(pools: Iterable[tuple[str, ...]]) -> Counter[str]:
    return Counter(pool for each in pools for pool in each)
