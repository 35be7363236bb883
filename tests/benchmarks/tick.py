"""A scheduler tick with 100,000 ready tasks against one with 100: ``python -m tests.benchmarks.tick``.

A tick here is the whole transaction that fills four idle slots with bundles, commit included, on SQLite and
on PostgreSQL (``fsync`` off, as in tests). Also with 2,000 steps ready instead of one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import sqlalchemy as sa

from farm.db import migrate
from farm.db.connect import Database
from farm.db.tables import slots, steps, tasks
from farm.scheduler.tick import TickState, tick
from farm.settings import Settings
from tests.benchmarks.machine import Figure, judge
from tests.integration.farm.scheduler.world import make_job, make_node, make_project, make_slots
from tests.servers import PostgresServer

BOUND_MS = 50.0
RUNS = 15


def tick_ms(db: Database, n_steps: int, tasks_each: int) -> tuple[float, float]:
    """Median milliseconds of a tick that gives four bundles, and of its processor time; leaves nothing."""
    with db.write() as conn:
        project = make_project(conn, f"{n_steps}x{tasks_each}")
        for _ in range(n_steps):
            make_job(conn, project, tasks_each, mean_task_s=0.05)
        if not conn.scalar(sa.select(sa.func.count()).select_from(slots)):
            make_slots(conn, make_node(conn), 4)
    if not db.is_sqlite:
        with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
            conn.exec_driver_sql("ANALYZE")
    settings, state = Settings(), TickState()
    times, used = [], []
    for _ in range(RUNS):
        began, began_used = time.perf_counter(), time.process_time()
        with db.write() as conn:
            given = tick(conn, settings, state)
        times.append((time.perf_counter() - began) * 1000)
        used.append((time.process_time() - began_used) * 1000)
        assert len(given) == 4, given
        with db.write() as conn:
            held = sa.text("state IN ('dispatched', 'running')")
            conn.execute(tasks.update().where(held).values(state="ready", slot_id=None))
            conn.execute(
                steps.update().values(n_ready=steps.c.n_ready + steps.c.n_dispatched, n_dispatched=0)
            )
            conn.execute(slots.update().values(state="idle"))
    with db.write() as conn:
        conn.exec_driver_sql("DELETE FROM jobs")
    return statistics.median(times), statistics.median(used)


def main() -> int:
    """Measure both databases, print, and judge."""
    figures = []
    server = PostgresServer()
    with tempfile.TemporaryDirectory() as folder:
        server.start()
        try:
            urls = {
                "SQLite": f"sqlite:///{Path(folder) / 'farm.sqlite3'}",
                "PostgreSQL": server.create_database("benchmark"),
            }
            for name, url in urls.items():
                migrate.upgrade(url)
                db = Database(url)
                (few, few_used), (many, many_used) = tick_ms(db, 1, 100), tick_ms(db, 1, 100_000)
                wide, _ = tick_ms(db, 2_000, 1)
                figures += [
                    Figure(f"{name}: tick with 100 ready", few, "ms"),
                    Figure(f"{name}: tick with 100,000 ready", many, "ms", BOUND_MS),
                    Figure(f"{name}: ratio", many / few, "x"),
                    Figure(f"{name}: processor time of this process, 100 ready", few_used, "ms"),
                    Figure(f"{name}: processor time of this process, 100,000 ready", many_used, "ms"),
                    Figure(f"{name}: tick with 2,000 steps of one task", wide, "ms"),
                ]
                db.dispose()
        finally:
            server.stop()
    return judge(figures)


if __name__ == "__main__":
    sys.exit(main())
