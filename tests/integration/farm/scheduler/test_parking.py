"""Lent slots go back: who is asked to park, who is not, and how many."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from farm.db.connect import Database, db_now
from farm.db.tables import nodes, pools, projects, tasks
from farm.lifecycle.claim import claim
from farm.scheduler.parking import ask_to_park, who_parks
from farm.scheduler.tick import tick
from farm.settings import Settings
from tests.integration.farm.scheduler.world import make_job, make_node, make_project, make_slots


class Lent:
    """GPU slots (video, then render) that render because there was no video work."""

    def __init__(self, db: Database, settings: Settings, number: int = 1) -> None:
        self.db, self.settings = db, settings
        with db.write() as conn:
            self.project = make_project(conn)
            self.node = make_node(conn)
            device = {"kind": "cuda"}
            self.slots = make_slots(conn, self.node, number, ("video", "render"), device=device)
            make_job(conn, self.project, number)
            for given in tick(conn, settings):
                claim(conn, given.ticket, given.slot_id, "i", 600)
            conn.execute(tasks.update().values(started_at=db_now() - 3600))

    def video_work(self, n_tasks: int = 1, **fields: Any) -> None:
        with self.db.write() as conn:
            make_job(conn, self.project, n_tasks, pool="video", **fields)

    def asked(self) -> list[str]:
        with self.db.read() as conn:
            lent = who_parks(conn, self.settings)
        with self.db.write() as conn:
            woken = ask_to_park(conn, lent)
        assert woken == ({self.node} if lent else set())
        return [each.slot.id for each in lent]

    def wishes(self) -> list[str | None]:
        with self.db.read() as conn:
            return list(conn.scalars(sa.select(tasks.c.wish).where(tasks.c.state == "running")))


def test_lent_slot_is_asked_once_its_own_pool_has_work(db: Database, settings: Settings) -> None:
    lent = Lent(db, settings)
    assert lent.asked() == []
    lent.video_work()
    assert lent.asked() == lent.slots
    assert lent.wishes() == ["park"]
    assert lent.asked() == []  # it is on its way


def test_as_many_are_asked_as_there_is_work_for(db: Database, settings: Settings) -> None:
    lent = Lent(db, settings, 3)
    lent.video_work(2)
    assert len(lent.asked()) == 2
    assert lent.asked() == []
    lent.video_work(1)
    assert len(lent.asked()) == 1


def test_task_that_has_just_begun_runs_a_while_first(db: Database, settings: Settings) -> None:
    lent = Lent(db, settings)
    lent.video_work()
    with db.write() as conn:
        conn.execute(tasks.update().values(started_at=db_now()))
    assert lent.asked() == []
    settings.lend_min_run_s = 0.0
    assert lent.asked() == lent.slots


@pytest.mark.parametrize("why", ["cap", "quota", "paused pool", "paused job", "device"])
def test_nobody_parks_for_work_that_could_not_start(db: Database, settings: Settings, why: str) -> None:
    lent = Lent(db, settings)
    lent.video_work(paused=why == "paused job", requires={"min_vram": 10**12} if why == "device" else {})
    with db.write() as conn:
        if why == "cap":
            conn.execute(projects.update().values(max_slots=0))
        if why == "quota":
            conn.execute(projects.update().values(quota_slot_s=1.0, used_slot_s=1.0))
        if why == "paused pool":
            conn.execute(pools.insert().values(name="video", paused=True))
    assert lent.asked() == []


def test_capped_project_may_trade_one_of_its_tasks_for_another(db: Database, settings: Settings) -> None:
    lent = Lent(db, settings)
    with db.write() as conn:
        conn.execute(projects.update().values(max_slots=1))
    lent.video_work()
    assert lent.asked() == lent.slots


def test_nobody_parks_for_a_slot_that_would_be_kept_for_projects_that_reserve(
    db: Database, settings: Settings
) -> None:
    lent = Lent(db, settings, 5)
    lent.video_work(5)
    with db.write() as conn:
        reserving = make_project(conn, "reserving", reserved=True)
        # a fifth of five slots that stay: one is kept, and all five are lent to others
        make_job(conn, reserving, 1, pool="video")
    # the reserving project's task comes first for it, and nothing is left above the floor; the ordinary
    # project may then have the rest, since the one that is kept is in use
    assert len(lent.asked()) == 4
    with db.read() as conn:
        assert len(lent.wishes()) - lent.wishes().count(None) == 4


def test_nobody_parks_for_an_ordinary_project_while_the_floor_is_unmet(
    db: Database, settings: Settings
) -> None:
    lent = Lent(db, settings, 5)
    lent.video_work(5)
    with db.write() as conn:
        make_project(conn, "reserving", reserved=True)
    # a slot that parks would be the one that is kept, so the video work could not have it
    assert lent.asked() == []
    with db.write() as conn:
        make_slots(conn, lent.node, 1, ("video", "render"), device={"kind": "cuda"})
    # six slots: two are to be kept, one is idle
    assert lent.asked() == []
    with db.write() as conn:
        make_slots(conn, lent.node, 1, ("video", "render"), device={"kind": "cuda"})
        conn.execute(nodes.update().values(info={"preemptible": True}))
    # a node that may be gone tomorrow is everybody's
    assert len(lent.asked()) == 4


def test_a_lent_slot_of_a_reserving_project_counts_for_it(db: Database, settings: Settings) -> None:
    lent = Lent(db, settings, 5)
    with db.write() as conn:
        conn.execute(projects.update().values(reserved=True))
        ordinary = make_project(conn, "ordinary")
        make_job(conn, ordinary, 5, pool="video")
    # all five work for the project that reserves. Three of five are its floor, so two may go back; asked once
    # more, a project that could have no third slot moves nobody
    settings.reserve_floor = 0.6
    assert len(lent.asked()) == 2
    assert lent.asked() == []


def test_slot_at_work_for_its_first_pool_is_left_alone(db: Database, settings: Settings) -> None:
    with db.write() as conn:
        project = make_project(conn)
        make_slots(conn, make_node(conn), 1)
        make_job(conn, project, 1)
        for given in tick(conn, settings):
            claim(conn, given.ticket, given.slot_id, "i", 600)
        conn.execute(tasks.update().values(started_at=db_now() - 3600))
        make_job(conn, project, 1, priority=100)
        assert who_parks(conn, settings) == []
