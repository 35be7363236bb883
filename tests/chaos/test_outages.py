"""Broker, scheduler, agent, database and disk going away: redispatch at most, never a frame, never a job."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from farm.db import migrate
from farm.db import tables as t
from farm.lifecycle import machines
from farm.records import Ticket, TicketEntry
from farm.settings import Settings
from farm.why import why
from tests.chaos import cut_off
from tests.chaos.farm_under_test import FarmUnderTest, sleepers, unique_sleep, until
from tests.servers import PostgresServer, RedisServer
from workers.spool import read_unanswered


@pytest.fixture
def on_postgres(settings: Settings, own_postgres: PostgresServer, redis_url: str) -> Iterator[Settings]:
    """A farm on a PostgreSQL server that the test may halt."""
    url = own_postgres.create_database("chaos")
    migrate.upgrade(url)
    yield settings.model_copy(update={"database_url": url, "broker_url": redis_url})
    own_postgres.drop_database("chaos")


def test_broker_killed_and_restarted_loses_nothing(
    settings: Settings, sqlite_url: str, own_redis: RedisServer
) -> None:
    chaos = settings.model_copy(update={"database_url": sqlite_url, "broker_url": own_redis.url})
    with FarmUnderTest(chaos, slots=2) as farm:
        job = farm.submit({"tasks": 6, "frames": 2, "do": {"frame_s": 0.2}, "max_retries": 0})
        until(lambda: "done" in farm.states(job), "the first task is done")
        own_redis.halt()
        # what runs now finishes without a broker
        running = [task.id for task in farm.tasks(job) if task.state == "running"]
        for task_id in running:
            farm.wait_task(task_id, "done")
        own_redis.start()
        farm.wait_job(job)
        assert [len(farm.attempts(task.id)) for task in farm.tasks(job)] == [1] * 6
        farm.check()


def test_scheduler_and_agent_killed_with_five_jobs_under_way(chaos_on_both: Settings) -> None:
    mark = unique_sleep()
    with FarmUnderTest(chaos_on_both, slots=2) as farm:
        jobs = [
            farm.submit(
                {"tasks": 2, "frames": 3, "do": {"frame_s": 0.4, "grandchild": mark}, "max_retries": 0}
            )
            for _ in range(5)
        ]
        until(lambda: any("running" in farm.states(job) for job in jobs), "a task runs")
        until(lambda: farm.frame_files(jobs[0]), "a frame is published")
        farm.kill_agent()
        farm.kill_scheduler()
        # nothing of the node outlives its agent, grandchildren that left their session included
        until(lambda: not farm.processes(), "the slots are gone with their agent")
        assert sleepers(mark) == []
        early = {row.sha256: row.attempt_id for row in farm.frame_files(jobs[0])}
        farm.start_scheduler()
        farm.start_agent("one")
        for job in jobs:
            farm.wait_job(job)
        tasks = [task for job in jobs for task in farm.tasks(job)]
        assert all(task.charged == 0 for task in tasks), "losing a node is free"
        assert 1 <= sum(task.node_losses for task in tasks) <= 2
        assert all(len(farm.frame_files(job)) == 6 for job in jobs)
        assert early.items() <= {row.sha256: row.attempt_id for row in farm.frame_files(jobs[0])}.items()
        farm.check()


def test_a_node_that_is_lost_four_times_counts_the_fourth(chaos: Settings) -> None:
    with FarmUnderTest(chaos.model_copy(update={"free_node_losses": 1})) as farm:
        job = farm.submit({"frames": 30, "do": {"frame_s": 0.2}, "max_retries": 0})
        [task] = farm.tasks(job)
        for losses in (1, 2):
            farm.wait_said(task.id, "begin", times=losses)
            farm.kill_agent()
            until(lambda: len(farm.processes()) == 1, "the slots are gone with their agent")
            farm.start_agent("one")
            until(lambda n=losses: farm.tasks(job)[0].node_losses == n, "the loss is counted")  # type: ignore[misc]
        farm.wait_job(job, "failed")
        assert (farm.tasks(job)[0].charged, len(farm.attempts(task.id))) == (1, 2)
        farm.check()


def test_database_away_for_a_moment_disturbs_no_work(
    on_postgres: Settings, own_postgres: PostgresServer
) -> None:
    with FarmUnderTest(on_postgres) as farm:
        job = farm.submit({"tasks": 3, "frames": 3, "do": {"frame_s": 0.2}, "max_retries": 0})
        first = farm.tasks(job)[0].id
        farm.wait_said(first, "frame 1")
        own_postgres.halt()
        # the attempt ends while nobody can be told
        farm.wait_said(first, "end")
        time.sleep(1.0)
        own_postgres.start()
        farm.wait_job(job)
        assert [len(farm.attempts(task.id)) for task in farm.tasks(job)] == [1, 1, 1]
        assert len(farm.frame_files(job)) == 9
        farm.check()


def test_database_away_for_long_parks_then_kills_and_costs_no_retry(
    on_postgres: Settings, own_postgres: PostgresServer
) -> None:
    with FarmUnderTest(on_postgres, slots=2) as farm:
        polite = farm.submit({"do": {"count_to": 60, "count_s": 0.1}, "max_retries": 0})
        deaf = farm.submit({"frames": 2, "do": {"deaf_s": 14.0}, "max_retries": 0})
        [parks], [dies] = farm.tasks(polite), farm.tasks(deaf)
        farm.wait_said(parks.id, "begin")
        until(lambda: len(farm.frame_files(deaf)) == 2, "the deaf task has published its frames")
        pid = farm.slot_pid(dies.id)
        until(lambda: farm.tasks(polite)[0].checkpoint, "a checkpoint is saved")
        own_postgres.halt()
        farm.wait_said(parks.id, "interrupted parked")
        until(lambda: not Path(f"/proc/{pid}").exists(), "the deaf slot is killed")
        own_postgres.start()
        farm.wait_job(polite)
        farm.wait_job(deaf)
        for task in (*farm.tasks(polite), *farm.tasks(deaf)):
            assert task.charged == 0
        # the checkpoint that was saved while the database was there is what the work goes on from
        assert int(farm.said(parks.id, "count from")[-1][3].split()[-1]) > 0
        assert [row.attempt_id for row in farm.frame_files(deaf)] == [farm.attempts(dies.id)[0].id] * 2
        farm.check()


def test_a_slot_whose_agent_alone_has_lost_the_database_parks_once_and_claims_nothing(
    chaos: Settings,
) -> None:
    patient = chaos.model_copy(
        update={
            "database_away_park_s": 1.0,
            "database_away_kill_s": 10.0,
            "lease_s": 60.0,
            "node_lost_s": 60.0,
        }
    )
    with FarmUnderTest(patient, agent_code=cut_off.CODE) as farm:
        job = farm.submit({"do": {"count_to": 40, "count_s": 0.1}, "max_retries": 0})
        [task] = farm.tasks(job)
        until(lambda: farm.tasks(job)[0].checkpoint, "a checkpoint is saved")
        (patient.data / "cut").touch()
        farm.wait_slots(1, "held")
        later = farm.submit({"frames": 1, "max_retries": 0})
        [slot] = farm.slot_rows()
        assert slot.hold_reason == "its node's agent cannot reach the database"
        # somebody lets it go by hand: it is asked, and holds itself again
        with farm.db.write() as conn:
            machines.set_slot_state(conn, slot.id, "idle")
        farm.wake("scheduler")
        farm.wait_slots(1, "held")
        assert [attempt.state for attempt in farm.attempts(task.id)] == ["parked"]
        assert {state for name in (job, later) for state in farm.states(name)} == {"ready"}
        (patient.data / "cut").unlink()
        farm.wait_job(job)
        farm.wait_job(later)
        assert [attempt.state for attempt in farm.attempts(task.id)] == ["parked", "done"]
        assert [row.charged for name in (job, later) for row in farm.tasks(name)] == [0, 0]
        farm.check()


def test_reports_of_a_slot_killed_while_the_database_is_away_are_replayed_once(
    on_postgres: Settings, own_postgres: PostgresServer
) -> None:
    with FarmUnderTest(on_postgres) as farm:
        job = farm.submit(
            {"tasks": 3, "frames": 1, "do": {"frame_s": 0.4}, "max_retries": 1, "seconds": 0.01}
        )
        first, second, _ = farm.tasks(job)
        farm.wait_said(first.id, "begin")
        pid = farm.slot_pid(first.id)
        own_postgres.halt()
        spool = on_postgres.data / "spool"
        until(
            lambda: [len(read_unanswered(path).reports) for path in spool.rglob("*.spool")] == [2],
            "two attempts have reported to the spool",
        )
        os.kill(pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pid}").exists(), "the slot is dead")
        own_postgres.start()
        farm.wait_job(job)
        assert [len(farm.said(task.id, "begin")) for task in (first, second)] == [1, 1]
        assert [row.number for row in farm.frame_files(job)] == [1, 2, 3]
        assert not any(read_unanswered(path) for path in spool.rglob("*.spool"))
        farm.check()


def test_tickets_that_arrive_while_the_agent_stops_are_given_out_again(chaos: Settings) -> None:
    from farm.broker.tickets import TicketQueue

    with FarmUnderTest(chaos) as farm:
        job = farm.submit({"tasks": 8, "frames": 1, "do": {"frame_s": 0.05}, "max_retries": 0})
        until(lambda: "running" in farm.states(job), "a task runs")
        queue = TicketQueue(chaos.broker_url)
        [slot] = farm.slot_rows()
        farm.agents["one"].terminate()
        for task in farm.tasks(job):
            queue.send(Ticket(slot.id, (TicketEntry(task.id, task.epoch),)))
        queue.close()
        farm.stop_agent()
        assert set(farm.states(job)) <= {"ready", "done"}
        farm.start_agent("one")
        farm.wait_job(job)
        assert all(task.charged == 0 for task in farm.tasks(job))
        farm.check()


def test_a_second_signal_stops_the_agent_at_once(chaos: Settings) -> None:
    with FarmUnderTest(chaos.model_copy(update={"park_grace_s": 60.0})) as farm:
        job = farm.submit({"do": {"deaf_s": 60}, "max_retries": 0})
        farm.wait_said(farm.tasks(job)[0].id, "begin")
        agent = farm.agents.pop("one")
        agent.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(1.0)
        agent.terminate()
        assert agent.wait(15) == 0
        task = farm.tasks(job)[0]
        assert (task.state, task.charged) == ("ready", 0)
        until(lambda: len(farm.processes()) == 1, "only the scheduler is left")
        farm.check()


def test_a_second_agent_of_the_same_node_is_refused(chaos: Settings) -> None:
    with FarmUnderTest(chaos) as farm:
        first = farm.agents["one"]
        farm.start_agent("one")
        assert farm.agents["one"].wait(30) == 1
        farm.agents["one"] = first
        assert "runs already" in farm.output.read_text()
        farm.check()


def test_a_disk_that_fills_up_under_way_costs_no_retry_and_work_goes_on_when_there_is_room(
    settings: Settings, sqlite_url: str, redis_url: str
) -> None:
    """A real full disk where one can be mounted; ``test_slots`` has the same with the floor of free space."""
    chaos = settings.model_copy(update={"database_url": sqlite_url, "broker_url": redis_url})
    chaos.data.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "chaos", str(chaos.data)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        with FarmUnderTest(chaos, environment={"FARM_FREE_SPACE_FLOOR": str(2**20)}) as farm:
            job = farm.submit({"frames": 6, "do": {"frame_s": 0.3}, "max_retries": 0})
            [task] = farm.tasks(job)
            farm.wait_said(task.id, "frame 1")
            filler = chaos.data / "filler"
            with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(65536))
            farm.wait_slots(1, "held")
            later = farm.submit({"frames": 1, "max_retries": 0})
            [slot] = farm.slot_rows()
            assert slot.hold_reason.startswith("its disk is full: ")
            assert "the floor is 1,048,576" in slot.hold_reason
            with farm.db.read() as conn:
                assert slot.hold_reason in " ".join(r.text for r in why(conn, later, chaos))
            [attempt] = farm.attempts(task.id)
            assert (attempt.state, attempt.error_type) == ("interrupted", "out-of-space")
            assert {state for name in (job, later) for state in farm.states(name)} == {"ready"}
            filler.unlink()
            farm.wait_job(job)
            farm.wait_job(later)
            assert [row.charged for name in (job, later) for row in farm.tasks(name)] == [0, 0]
            store = Path(chaos.resolved_store)
            kept = [path for path in store.rglob("*") if path.is_file()]
            made = [row.sha256 for name in (job, later) for row in farm.frame_files(name)]
            assert sorted(path.name for path in kept) == sorted(set(made))
            farm.check()
    finally:
        subprocess.run(["umount", "-l", str(chaos.data)], check=True)


def test_node_says_what_it_is(farm: FarmUnderTest) -> None:
    with farm.db.read() as conn:
        node = conn.execute(sa.select(t.nodes)).one()
        [slot] = conn.execute(sa.select(t.slots)).all()
    assert (node.name, node.state) == ("one", "up")
    assert node.info["cores"] >= 1
    assert (slot.device["kind"], slot.device["threads"]) == ("cpu", 1)
    assert slot.state == "idle"
