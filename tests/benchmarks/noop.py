"""No-op tasks through the whole farm, and how soon work starts: ``python -m tests.benchmarks.noop [TASKS]``.

PostgreSQL (``fsync`` off, as in tests), Redis, the real scheduler, one agent and four slots. Each task is
claimed, publishes a verified frame of one pixel, and is finished; short tasks travel in bundles. The same
Redis then carries plain Celery no-ops to four solo workers, for the ratio. Also: submit to running, and a
slot killed by SIGKILL to its task running again.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis
import sqlalchemy as sa

from farm.db import migrate
from farm.db import tables as t
from farm.db.connect import db_now
from farm.settings import Settings
from tests.benchmarks.machine import Figure, judge
from tests.chaos.farm_under_test import FarmUnderTest, until
from tests.servers import PostgresServer, RedisServer

SLOTS = 4
TASKS = 4_000
LEAST_PER_S, MOST_START_MS, MOST_AGAIN_S = 200.0, 100.0, 3.0
STARTS, KILLS = 31, 5

_WORKER = """
import sys
from celery import Celery
app = Celery(broker=sys.argv[1])
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=4)
@app.task(name="noop", ignore_result=True)
def noop():
    counter.incr("done")
import redis
counter = redis.Redis.from_url(sys.argv[1])
app.worker_main(["worker", "-P", "solo", "-l", "error", "--without-gossip", "--without-mingle",
                 "--without-heartbeat", "-n", sys.argv[2]])
"""


def farm_rate(farm: FarmUnderTest, number: int) -> float:
    """Tasks a second, from the first claimed to the last done."""
    step = {"name": "noop", "tasks": number, "frames": 1, "seconds": 0.02}
    job_id = farm.submit(step)
    farm.wait_job(job_id, seconds=600)
    with farm.db.read() as conn:
        first, last, count = conn.execute(
            sa.select(
                sa.func.min(t.attempts.c.started_at), sa.func.max(t.attempts.c.ended_at), sa.func.count()
            ).where(t.attempts.c.job_id == job_id)
        ).one()
        published = conn.scalar(
            sa.select(sa.func.count()).where(t.frames.c.job_id == job_id, t.frames.c.state == "published")
        )
    assert (count, published) == (number, number)
    return float(number / (last - first))


def celery_rate(url: str, number: int) -> float:
    """Plain no-ops a second with as many solo workers; each counts itself in Redis, and does no more."""
    from celery import Celery

    client = redis.Redis.from_url(url)
    client.flushdb()
    app = Celery(broker=url)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, url, f"w{i}@bench"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for i in range(SLOTS)
    ]
    try:

        def done() -> int:
            return int(client.get("done") or 0)

        for _ in range(SLOTS * 8):
            app.send_task("noop", ignore_result=True)
        until(lambda: done() == SLOTS * 8, "workers are up", 120)
        time.sleep(2)
        client.set("done", 0)
        with app.producer_or_acquire() as producer:
            for _ in range(number):
                app.send_task("noop", ignore_result=True, producer=producer)
        began, at_first = time.perf_counter(), done()
        until(lambda: done() == number, "no-ops are done", 600)
        return (number - at_first) / (time.perf_counter() - began)
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()


def start_ms(farm: FarmUnderTest) -> float:
    """Median milliseconds from just before the submission to the claim, on an idle farm."""
    times = []
    for _ in range(STARTS):
        farm.wait_slots(SLOTS)
        time.sleep(0.3)
        with farm.db.read() as conn:
            began = conn.scalars(sa.select(db_now())).one()
        job_id = farm.submit({"name": "one"})
        farm.wait_job(job_id)
        (task,) = farm.tasks(job_id)
        (attempt,) = farm.attempts(task.id)
        times.append((attempt.started_at - began) * 1000)
    return statistics.median(times)


def again_s(farm: FarmUnderTest) -> float:
    """Median seconds from SIGKILL of a slot to the next attempt of its task running."""
    times = []
    for _ in range(KILLS):
        farm.wait_slots(SLOTS)
        job_id = farm.submit({"name": "long", "frames": 1, "max_retries": 3, "do": {"frame_s": 600.0}})
        (task,) = farm.tasks(job_id)
        farm.wait_said(task.id, "")
        pid = farm.slot_pid(task.id)
        with farm.db.read() as conn:
            began = conn.scalars(sa.select(db_now())).one()
        os.kill(pid, signal.SIGKILL)
        until(lambda task_id=task.id: len(farm.attempts(task_id)) == 2, "a second attempt", 60)
        times.append(farm.attempts(task.id)[1].started_at - began)
        with farm.db.write() as conn:
            from farm.lifecycle.commands import cancel_job

            cancel_job(conn, job_id)
        farm.wake_nodes()
        farm.wait_job(job_id, "cancelled")
    return statistics.median(times)


def with_servers(work: Callable[[str, str, Path], list[Figure]]) -> list[Figure]:
    """Run ``work(postgres url, redis url, folder)`` between real servers."""
    postgres, broker = PostgresServer(), RedisServer()
    with tempfile.TemporaryDirectory(prefix="stillframe-bench-") as folder:
        try:
            postgres.start()
            broker.start()
            url = postgres.create_database("benchmark")
            migrate.upgrade(url)
            return work(url, broker.url, Path(folder))
        finally:
            broker.stop()
            postgres.stop()


def main(number: int) -> int:
    """Measure, print, and judge."""

    def work(database_url: str, broker_url: str, folder: Path) -> list[Figure]:
        settings = Settings(
            data=folder / "farm", database_url=database_url, broker_url=broker_url, free_space_floor=1
        )
        with FarmUnderTest(settings, slots=SLOTS) as farm:
            farm_rate(farm, 200)  # warm: imports, compiled statements, a measured mean
            rate = farm_rate(farm, number)
            starts, again = start_ms(farm), again_s(farm)
        plain = celery_rate(broker_url, number)
        return [
            Figure("no-op tasks with a verified frame each", rate, "/s", LEAST_PER_S, least=True),
            Figure("plain Celery no-ops, four solo workers", plain, "/s"),
            Figure("ratio", rate / plain, "x"),
            Figure("submit to running, median, idle farm", starts, "ms", MOST_START_MS),
            Figure("slot killed to its task running again, median", again, "s", MOST_AGAIN_S),
        ]

    return judge(with_servers(work))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else TASKS))
