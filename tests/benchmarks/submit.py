"""Submitting a job of 100,000 tasks with a frame each: ``python -m tests.benchmarks.submit``.

On SQLite (its default durability) and PostgreSQL (``fsync`` off, as in tests). Each runs in a process of its
own. Time is one committed submission; memory is what the process grew by at most; the ratio is to a plain
``executemany`` of the very same task and frame rows in one transaction, rows ready in memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from farm import submission
from farm.db import migrate
from farm.db import tables as t
from farm.db.connect import Database
from farm.frame_range import FrameRange
from farm.ids import new_id
from farm.plan import JobPlan, OutputDecl, StepPlan, TaskPlan
from farm.settings import Settings
from tests.benchmarks.machine import Figure, judge
from tests.servers import PostgresServer

TASKS = 100_000
BOUND_S, BOUND_MB = 3.0, 400.0


def plan(number: int) -> JobPlan:
    """One step of that many tasks, one frame each, from a generator."""

    def tasks() -> Iterator[TaskPlan]:
        for i in range(number):
            yield TaskPlan(frames=FrameRange.of([i + 1]), rank=0)

    output = OutputDecl("beauty.png", "png", 320, 180, ("R", "G", "B"), "uint8", "srgb")
    return JobPlan([StepPlan("render", "render", "render", tasks(), outputs=(output,))])


def submit(db: Database, project_id: str, user_id: str, number: int) -> tuple[str, float]:
    """Id of the submitted job, and the seconds that it took."""
    made = submission.Submission("benchmark", "render", project_id, user_id)
    began = time.perf_counter()
    with db.write() as conn:
        job_id = submission.submit(conn, made, plan(number), Settings())
    return job_id, time.perf_counter() - began


def plain_insert_s(db: Database, job_id: str) -> float:
    """Seconds for an executemany of the job's task and frame rows, after deleting them."""
    with db.read() as conn:
        rows = {
            table: [dict(row) for row in conn.execute(query).mappings()]
            for table, query in (
                (t.tasks, sa.select(t.tasks).join(t.steps).where(t.steps.c.job_id == job_id)),
                (t.frames, sa.select(t.frames).where(t.frames.c.job_id == job_id)),
            )
        }
    with db.write() as conn:
        conn.execute(t.frames.delete().where(t.frames.c.job_id == job_id))
        conn.execute(t.tasks.delete())
    began = time.perf_counter()
    with db.write() as conn:
        for table, values in rows.items():
            conn.execute(table.insert(), values)
    return time.perf_counter() - began


def measure(url: str) -> dict[str, float]:
    """Seconds, megabytes and ratio for one database; in a process of its own."""
    db = Database(url)
    project_id, user_id = new_id("proj"), new_id("user")
    with db.write() as conn:
        conn.execute(t.projects.insert().values(id=project_id, name="p", created_at=0.0))
        conn.execute(t.users.insert().values(id=user_id, name="u", created_at=0.0))
    submit(db, project_id, user_id, 100)  # compiled statements are not what is measured
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    used = time.process_time()
    job_id, seconds = submit(db, project_id, user_id, TASKS)
    used = time.process_time() - used
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    with db.read() as conn:
        stored = conn.scalar(sa.select(t.steps.c.n_ready).where(t.steps.c.job_id == job_id))
        assert stored == TASKS, stored
    plain = plain_insert_s(db, job_id)
    db.dispose()
    return {
        "seconds": seconds, "used": used, "grown_mb": grown, "peak_mb": before / 1024 + grown, "plain": plain
    }  # fmt: skip


def child(url: str) -> dict[str, Any]:
    """:func:`measure` in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.submit", url], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
                found = child(url)
                ratio = found["seconds"] / found["plain"]
                figures += [
                    Figure(f"{name}: submit {TASKS:,} tasks", found["seconds"], "s", BOUND_S),
                    Figure(f"{name}: processor time of this process", found["used"], "s"),
                    Figure(f"{name}: plain executemany of the same rows", found["plain"], "s"),
                    Figure(f"{name}: ratio", ratio, "x"),
                    Figure(f"{name}: memory that it grew by", found["grown_mb"], "MiB"),
                    Figure(f"{name}: peak memory of the process", found["peak_mb"], "MiB", BOUND_MB),
                ]
        finally:
            server.stop()
    return judge(figures)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
    else:
        sys.exit(main())
