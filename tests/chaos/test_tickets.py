"""Tickets in the broker: never more than idle slots, and a long task is delivered once."""

from __future__ import annotations

import threading
import time

import redis

from farm.broker.tickets import queue_name
from farm.settings import Settings
from tests.chaos.farm_under_test import ROOT, FarmUnderTest, until


def test_never_more_tickets_wait_than_slots_are_idle(chaos: Settings) -> None:
    with FarmUnderTest(chaos, slots=2) as farm:
        queues = [queue_name(slot.id) for slot in farm.slot_rows()]
        client = redis.Redis.from_url(chaos.broker_url)
        seen: list[list[int]] = []
        end = threading.Event()

        def sample() -> None:
            while not end.is_set():
                pipe = client.pipeline()
                for name in queues:
                    pipe.llen(name)
                seen.append(pipe.execute())
                time.sleep(0.002)

        watcher = threading.Thread(target=sample)
        watcher.start()
        try:
            # both slots are busy: whatever is ready waits in the database
            long = farm.submit({"tasks": 2, "do": {"deaf_s": 1.5}})
            until(lambda: farm.states(long) == ["running"] * 2, "both slots work")
            before = len(seen)
            wide = farm.submit({"tasks": 60, "frames": 1, "do": {"frame_s": 0.01}, "seconds": 0.05})
            time.sleep(0.5)
            assert farm.states(long) == ["running"] * 2
            assert {sum(lengths) for lengths in seen[before:]} == {0}
            farm.wait_job(long)
            farm.wait_job(wide)
        finally:
            end.set()
            watcher.join()
            client.close()
        assert len(seen) > 100
        assert max(max(lengths) for lengths in seen) <= 1, "one ticket for a slot, never a second behind it"
        farm.check()


def test_a_task_longer_than_the_visibility_timeout_runs_once(chaos: Settings) -> None:
    """celery 5935, literally: the broker gives a message back after 2 s, the task takes 6 s."""
    patch = chaos.data / "patch"
    patch.mkdir(parents=True)
    (patch / "sitecustomize.py").write_text(
        "from farm.broker import tickets\ntickets.VISIBILITY_TIMEOUT_S = 2\n"
    )
    with FarmUnderTest(chaos, slots=2, environment={"PYTHONPATH": f"{patch}:{ROOT}"}) as farm:
        job = farm.submit({"do": {"deaf_s": 6.0}, "max_retries": 0})
        [task] = farm.tasks(job)
        farm.wait_said(task.id, "begin")
        # the other slot's consumer is what would give the message back: keep it awake
        short = farm.submit({"tasks": 8, "frames": 1, "do": {"frame_s": 0.4}})
        farm.wait_job(short)
        farm.wait_job(job)
        time.sleep(1.0)
        assert len(farm.said(task.id, "begin")) == len(farm.attempts(task.id)) == 1
        farm.check()
