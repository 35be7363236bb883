"""Slots that are kept for projects that reserve: a floor that preemptible nodes do not count towards."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa

from farm import why
from farm.db.connect import Database
from farm.db.tables import jobs, nodes, slots, steps, tasks
from farm.scheduler.floor import floor_of, read_floor
from farm.scheduler.tick import tick
from farm.settings import Settings
from tests.integration.farm.scheduler.world import make_job, make_node, make_project, make_slots


def preemptible(conn: sa.Connection, node_id: str) -> None:
    conn.execute(nodes.update().where(nodes.c.id == node_id).values(info={"preemptible": True}))


def run_tick(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        tick(conn, settings)


def slots_of_projects(db: Database) -> Counter[str]:
    query = (
        sa.select(jobs.c.project_id, sa.func.count(sa.distinct(tasks.c.slot_id)))
        .select_from(tasks)
        .join(steps, steps.c.id == tasks.c.step_id)
        .join(jobs, jobs.c.id == steps.c.job_id)
        .where(tasks.c.state.in_(["dispatched", "running"]))
        .group_by(jobs.c.project_id)
    )
    with db.read() as conn:
        return Counter({row[0]: row[1] for row in conn.execute(query)})


@pytest.mark.parametrize(
    ("share", "number", "in_use", "kept"),
    [(0.2, 10, 0, 2), (0.2, 10, 1, 1), (0.2, 10, 5, -3), (0.2, 1, 0, 1), (0.2, 15, 0, 3), (0.2, 0, 0, 0)],
)
def test_a_fifth_rounded_up_less_what_is_in_use(share: float, number: int, in_use: int, kept: int) -> None:
    assert floor_of(share, number, in_use) == kept


def test_where_nobody_reserves_everything_is_given_out(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        project = make_project(conn)
        make_job(conn, project, 20)
        make_slots(conn, make_node(conn), 10)
        assert not read_floor(conn, settings.reserve_floor)
    run_tick(db, settings)
    assert slots_of_projects(db) == {project: 10}


def test_others_leave_a_fifth_and_the_reserving_project_finds_it(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        ordinary = make_project(conn, "ordinary")
        reserving = make_project(conn, "reserving", reserved=True)
        make_job(conn, ordinary, 20)
        make_slots(conn, make_node(conn), 10)
    run_tick(db, settings)
    run_tick(db, settings)
    assert slots_of_projects(db) == {ordinary: 8}, "two of ten are kept although they are idle"
    with db.write() as conn:
        make_job(conn, reserving, 5)
    run_tick(db, settings)
    assert slots_of_projects(db) == {ordinary: 8, reserving: 2}


def test_what_the_reserving_project_uses_counts_towards_its_floor(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        ordinary = make_project(conn, "ordinary")
        reserving = make_project(conn, "reserving", reserved=True)
        make_job(conn, reserving, 4)
        make_slots(conn, make_node(conn), 10)
    run_tick(db, settings)
    assert slots_of_projects(db) == {reserving: 4}
    with db.write() as conn:
        make_job(conn, ordinary, 20)
    run_tick(db, settings)
    assert slots_of_projects(db) == {reserving: 4, ordinary: 6}, "four in use are more than the floor of two"


def test_preemptible_nodes_do_not_count_towards_the_floor(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        ordinary = make_project(conn, "ordinary")
        make_project(conn, "reserving", reserved=True)
        make_job(conn, ordinary, 40)
        stays, goes = make_node(conn, "stays"), make_node(conn, "goes")
        preemptible(conn, goes)
        steady = make_slots(conn, stays, 5)
        make_slots(conn, goes, 20)
        floor = read_floor(conn, settings.reserve_floor)
        assert (floor.steady.keys(), floor.unmet) == (set(steady), {"render": 1})
    run_tick(db, settings)
    # all 20 that may be gone tomorrow, and four of the five that stay: one of these is the floor
    assert slots_of_projects(db) == {ordinary: 24}
    with db.read() as conn:
        [kept] = conn.scalars(sa.select(slots.c.id).where(slots.c.state == "idle")).all()
        assert kept in steady
        [task] = conn.scalars(sa.select(tasks.c.id).where(tasks.c.state == "ready").limit(1)).all()
        [reason] = [r for r in why.why(conn, task, settings) if r.kind == "reserved"]
        assert reason.data == {"pool": "render", "kept": 1}


def test_a_slot_of_several_pools_is_kept_where_one_of_them_needs_it(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        ordinary = make_project(conn, "ordinary")
        make_project(conn, "reserving", reserved=True)
        make_job(conn, ordinary, 10, pool="render")
        node = make_node(conn)
        # the one video slot of the farm is the floor of pool video, though it could render too
        [video] = make_slots(conn, node, 1, ("video", "render"))
        make_slots(conn, node, 4, ("render",))
    run_tick(db, settings)
    with db.read() as conn:
        assert conn.scalar(sa.select(slots.c.state).where(slots.c.id == video)) == "idle"
    # of the five that render, one is kept: the video slot serves as that too
    assert slots_of_projects(db) == {ordinary: 4}


def test_a_floor_of_nothing_keeps_nothing(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        ordinary = make_project(conn, "ordinary")
        make_project(conn, "reserving", reserved=True)
        make_job(conn, ordinary, 20)
        make_slots(conn, make_node(conn), 10)
    run_tick(db, settings.model_copy(update={"reserve_floor": 0.0}))
    assert slots_of_projects(db) == {ordinary: 10}
