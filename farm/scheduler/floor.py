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
from dataclasses import dataclass, field

import sqlalchemy as sa

from farm.db.tables import jobs, nodes, projects, slots, steps, tasks

_BUSY = sa.text("tasks.state IN ('dispatched', 'running')")


@dataclass(frozen=True, slots=True)
class Floor:
    """What is kept of each pool. ``unmet`` is by pool the slots that reserving projects could still claim."""

    reserving: frozenset[str] = frozenset()
    """Ids of projects that reserve."""
    steady: frozenset[str] = frozenset()
    """Ids of slots on nodes that stay."""
    unmet: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.reserving)


def floor_of(share: float, slots_of_pool: int, in_use: int) -> int:
    """Slots of a pool to keep free: ``share`` of its steady slots, rounded up, less those in use."""
    # 0.2 of 15 slots is 3, not 4: the product is a little off
    return max(0, math.ceil(round(share * slots_of_pool, 9)) - in_use)


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
    busy = conn.scalars(
        sa.select(tasks.c.slot_id)
        .join(steps, steps.c.id == tasks.c.step_id)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(_BUSY, tasks.c.slot_id.is_not(None), jobs.c.project_id.in_(sorted(reserving)))
        .distinct()
    )
    size, used = _count(steady.values()), _count(steady[slot] for slot in busy if slot in steady)
    unmet = {pool: floor_of(share, number, used[pool]) for pool, number in size.items()}
    return Floor(reserving, frozenset(steady), unmet)


def _count(pools: Iterable[tuple[str, ...]]) -> Counter[str]:
    return Counter(pool for each in pools for pool in each)
