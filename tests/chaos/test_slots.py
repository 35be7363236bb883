"""Slots that are killed, stopped, or kill themselves: no frame and no job is lost, and no process left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import sqlalchemy as sa

from farm.attempt_logs import read_range
from farm.db import tables as t
from farm.lifecycle import machines
from farm.settings import Settings
from farm.states import AttemptState
from tests.chaos.farm_under_test import FarmUnderTest, distinct, sleepers, slowness, unique_sleep, until
from workers.keeper import children

SLOW = {"frames": 8, "do": {"frame_s": 0.25}}


def test_slot_killed_mid_frame_has_its_task_running_again_within_three_seconds(farm: FarmUnderTest) -> None:
    job = farm.submit(SLOW)
    [task] = farm.tasks(job)
    farm.wait_said(task.id, "frame 2")
    killed_at = time.monotonic()
    os.kill(farm.slot_pid(task.id), signal.SIGKILL)
    begun = farm.wait_said(task.id, "begin", times=2)
    assert begun[2] - killed_at < 3.0 * slowness()
    farm.wait_job(job)
    first, second = farm.attempts(task.id)
    assert (first.state, first.error_type, first.charged) == (AttemptState.LOST, "slot-died", True)
    assert "SIGKILL" in first.error
    assert second.state == AttemptState.DONE
    # frames that were published before the kill are not made again
    made = [line[3] for line in farm.said(task.id, "frame")]
    assert distinct(made) == 8
    assert len(made) <= 9
    assert len(farm.frame_files(job)) == 8
    farm.check()
    farm.expect_no_stray()


def test_task_that_kills_its_slot_every_time_ends_failed_with_the_reason(farm: FarmUnderTest) -> None:
    job = farm.submit({"do": {"kill_slot_times": -1}, "max_retries": 2})
    other = farm.submit({"tasks": 3, "frames": 1})
    farm.wait_job(job, "failed")
    [task] = farm.tasks(job)
    attempts = farm.attempts(task.id)
    assert [attempt.state for attempt in attempts] == [AttemptState.LOST] * 3
    assert "SIGKILL" in task.error
    assert task.solo
    farm.wait_job(other)
    farm.check()
    farm.expect_no_stray()


def test_a_slot_that_dies_in_a_bundle_charges_only_the_task_it_was_on(farm: FarmUnderTest) -> None:
    farm.wait_slots(1)
    job = farm.submit(
        {
            "tasks": 6,
            "frames": 2,
            "seconds": 0.01,
            "per_task": {2: {"kill_slot_times": 1}},
            "max_retries": 1,
        }
    )
    farm.wait_job(job)
    charged = {task.position: task.charged for task in farm.tasks(job)}
    assert charged == {0: 0, 1: 0, 2: 1, 3: 0, 4: 0, 5: 0}
    tasks = farm.tasks(job)
    # the first two had finished before the kill: their spooled reports count, they never ran again
    assert [len(farm.said(task.id, "begin")) for task in tasks] == [1, 1, 2, 1, 1, 1]
    assert [task.solo for task in tasks] == [False, False, True, False, False, False]
    farm.check()
    farm.expect_no_stray()


def test_stopped_slot_can_neither_publish_nor_finish_after_its_lease(chaos_on_both: Settings) -> None:
    """The agent is stopped too, so that nothing but the database can tell the slot that it is too late."""
    with FarmUnderTest(chaos_on_both) as farm:
        job = farm.submit({"frames": 6, "do": {"frame_s": 0.2}})
        [task] = farm.tasks(job)
        farm.wait_said(task.id, "frame 1")
        pid, agent = farm.slot_pid(task.id), farm.agents["one"].pid
        farm.stop_outside_transactions(agent, pid)
        farm.start_agent("two")
        farm.wait_said(task.id, "begin", times=2)
        farm.wait_job(job)
        before = farm.frame_files(job)
        [winner] = {row.attempt_id for row in before if row.number == 6}
        os.kill(pid, signal.SIGCONT)
        late = until(
            lambda: [line for line in farm.said(task.id, "interrupted") if line[0] == 1],
            "the late attempt is told that it is over",
        )
        assert late[0][3] == "interrupted fenced-off"
        os.kill(agent, signal.SIGCONT)
        first, second = farm.attempts(task.id)
        assert (second.id, second.state) == (winner, AttemptState.DONE)
        assert first.state == AttemptState.LOST
        assert farm.frame_files(job) == before
        farm.wait_slots(2)
        farm.check()


def test_a_slot_that_stays_stopped_is_killed_and_replaced(chaos: Settings) -> None:
    with FarmUnderTest(chaos, slots=2) as farm:
        job = farm.submit({"frames": 6, "do": {"frame_s": 0.2}})
        [task] = farm.tasks(job)
        farm.wait_said(task.id, "frame 1")
        pid = farm.slot_pid(task.id)
        farm.stop_outside_transactions(pid)
        farm.wait_job(job)
        until(lambda: not Path(f"/proc/{pid}").exists(), "the stopped slot is killed")
        farm.wait_slots(2)
        farm.check()
        farm.expect_no_stray()


def test_cancelling_a_queued_job_stops_that_one_only(farm: FarmUnderTest) -> None:
    from farm.lifecycle.commands import cancel_job

    running = farm.submit({"frames": 4, "do": {"frame_s": 0.2}})
    [task] = farm.tasks(running)
    farm.wait_said(task.id, "begin")
    queued = farm.submit({"frames": 1})
    with farm.db.write() as conn:
        cancel_job(conn, queued)
    farm.wait_job(queued, "cancelled")
    farm.wait_job(running)
    assert len(farm.attempts(task.id)) == 1
    farm.check()
    farm.expect_no_stray()


def test_cancelled_work_stops_within_one_step(farm: FarmUnderTest) -> None:
    from farm.lifecycle.commands import cancel_job

    job = farm.submit({"do": {"count_to": 60, "count_s": 0.1}})
    [task] = farm.tasks(job)
    until(lambda: farm.tasks(job)[0].checkpoint, "a step is done")
    with farm.db.write() as conn:
        cancel_job(conn, job)
    farm.wake_nodes()
    asked_at = time.monotonic()
    said = farm.wait_said(task.id, "interrupted cancelled")
    assert said[2] - asked_at < 1.0
    farm.wait_job(job, "cancelled")
    farm.wait_slots(1)
    farm.check()
    farm.expect_no_stray()


def test_deaf_task_is_killed_after_the_grace_and_cancelled(farm: FarmUnderTest) -> None:
    from farm.lifecycle.commands import cancel_job

    job = farm.submit({"do": {"deaf_s": 100}})
    [task] = farm.tasks(job)
    farm.wait_said(task.id, "begin")
    with farm.db.write() as conn:
        cancel_job(conn, job)
    farm.wake_nodes()
    farm.wait_job(job, "cancelled")
    assert [attempt.state for attempt in farm.attempts(task.id)] == [AttemptState.CANCELLED]
    farm.wait_slots(1)
    farm.check()
    farm.expect_no_stray()


def test_paused_work_parks_free_and_resumes_from_its_checkpoint(chaos_on_both: Settings) -> None:
    from farm.lifecycle.commands import pause_job, resume_job

    with FarmUnderTest(chaos_on_both) as farm:
        job = farm.submit({"do": {"count_to": 20, "count_s": 0.05}, "max_retries": 0})
        [task] = farm.tasks(job)
        until(lambda: farm.tasks(job)[0].checkpoint, "a step is done")
        with farm.db.write() as conn:
            pause_job(conn, job)
        farm.wake_nodes()
        parked = farm.wait_task(task.id, "ready")
        assert (parked.charged, parked.checkpoint is not None) == (0, True)
        with farm.db.write() as conn:
            resume_job(conn, job)
        farm.wake("scheduler")
        farm.wait_job(job)
        first, second = farm.attempts(task.id)
        assert (first.state, first.charged, second.state) == (AttemptState.PARKED, False, AttemptState.DONE)
        starts = [int(line[3].split()[-1]) for line in farm.said(task.id, "count from")]
        assert starts[0] == 0
        assert starts[1] > 0
        farm.check()


def test_retries_are_honoured_to_the_letter(farm: FarmUnderTest) -> None:
    always = farm.submit({"do": {"fail_times": -1}, "max_retries": 3})
    never = farm.submit({"do": {"fail_times": -1}, "max_retries": 0})
    twice = farm.submit({"do": {"fail_times": 2}, "max_retries": 2})
    hopeless = farm.submit({"do": {"permanent": True}, "max_retries": 5})
    for job in (always, never, hopeless):
        farm.wait_job(job, "failed")
    farm.wait_job(twice)
    counts = [len(farm.attempts(farm.tasks(job)[0].id)) for job in (always, never, twice, hopeless)]
    assert counts == [4, 1, 3, 1]
    assert farm.tasks(always)[0].error == "told to fail at attempt 4"
    farm.check()
    farm.expect_no_stray()


def test_time_limits_end_attempts_and_stand_still_while_the_slot_is_held(farm: FarmUnderTest) -> None:
    from farm.lifecycle.machines import set_slot_state

    slow = farm.submit({"do": {"count_to": 1000}, "timeout_s": 0.6, "max_retries": 0})
    farm.wait_job(slow, "failed")
    assert farm.tasks(slow)[0].error == "the attempt passed its time limit of 0.6 s"
    idle = farm.submit({"do": {"deaf_s": 100}, "no_progress_s": 0.6, "max_retries": 0})
    farm.wait_job(idle, "failed")
    assert farm.tasks(idle)[0].error == "no progress for 0.6 s"
    held = farm.submit({"frames": 10, "do": {"frame_s": 0.1}, "timeout_s": 3.0, "max_retries": 0})
    [task] = farm.tasks(held)
    farm.wait_said(task.id, "frame 1")
    [slot] = farm.slot_rows()
    with farm.db.write() as conn:
        set_slot_state(conn, slot.id, "held", "a neighbour needs quiet")
    time.sleep(4.0)
    count = len(farm.said(task.id, "frame"))
    time.sleep(0.5)
    assert len(farm.said(task.id, "frame")) == count, "held work stands still"
    with farm.db.write() as conn:
        set_slot_state(conn, slot.id, "busy", None)
    farm.wait_job(held)
    [attempt] = farm.attempts(task.id)
    assert attempt.held_s > 3.5
    assert attempt.work_s < 3.0
    farm.check()
    farm.expect_no_stray()


def test_grandchild_that_left_its_session_is_ended_and_holds_nothing_up(farm: FarmUnderTest) -> None:
    mark = unique_sleep()
    job = farm.submit({"frames": 1, "do": {"grandchild": mark}})
    [task] = farm.tasks(job)
    farm.wait_job(job)
    until(lambda: sleepers(mark) == [], "the grandchild is ended")
    [attempt] = farm.attempts(task.id)
    log = read_range(farm.settings.logs, attempt.id).text()
    assert "ended 1 processes that the task left behind" in log
    assert attempt.slot_s < 10
    killed = farm.submit({"frames": 2, "do": {"grandchild": mark, "kill_slot_times": 1}})
    farm.wait_job(killed)
    until(lambda: sleepers(mark) == [], "the killed slot's grandchild is ended")
    farm.check()
    farm.expect_no_stray()


def test_log_of_broken_bytes_harms_nothing(farm: FarmUnderTest) -> None:
    job = farm.submit({"tasks": 2, "frames": 1, "per_task": {0: {"log": "broken"}, 1: {"log": "flood"}}})
    farm.wait_job(job)
    broken, flood = farm.tasks(job)
    log = read_range(farm.settings.logs, farm.attempts(broken.id)[0].id)
    assert log.data == b"before\n\x82\xff broken\n\x00 nul\n" + b"x" * 1_000_000 + b"\n"
    path = next(farm.settings.logs.glob(f"*/{farm.attempts(flood.id)[0].id}.log"))
    assert path.stat().st_size < 17 * 2**20
    assert path.read_bytes().endswith(b"the last words")
    farm.check()
    farm.expect_no_stray()


def test_a_farm_whose_disk_is_below_the_floor_claims_nothing_and_says_so(chaos: Settings) -> None:
    with FarmUnderTest(chaos, environment={"FARM_FREE_SPACE_FLOOR": str(2**62)}) as farm:
        farm.wait_slots(1, "held")
        job = farm.submit({"frames": 2, "max_retries": 0})
        [slot] = farm.slot_rows()
        assert f"{chaos.data}/" in slot.hold_reason
        assert "the floor is 4,611,686,018,427,387,904" in slot.hold_reason
        # a slot that somebody lets go by hand looks for itself before it claims
        with farm.db.write() as conn:
            machines.set_slot_state(conn, slot.id, "idle")
        farm.wake("scheduler")
        farm.wait_slots(1, "held")
        [task] = farm.tasks(job)
        assert (task.state, task.charged) == ("ready", 0)
        assert farm.attempts(task.id) == []
        store = Path(chaos.resolved_store)
        assert [path for path in store.rglob("*") if path.is_file()] == []
        farm.check()


def test_spoiled_frames_are_refused_with_the_reason(farm: FarmUnderTest) -> None:
    reasons = {
        "truncated": "cut short",
        "wrong_size": "width is 2, declared was 1",
        "empty": "empty",
        "missing": "has not written",
        "foreign": "scratch",
    }
    jobs = {spoil: farm.submit({"frames": 1, "do": {"spoil": spoil}, "max_retries": 0}) for spoil in reasons}
    for spoil, job in jobs.items():
        farm.wait_job(job, "failed")
        assert reasons[spoil] in farm.tasks(job)[0].error
        assert farm.frame_files(job) == []
    farm.check()
    farm.expect_no_stray()


def test_the_same_ticket_delivered_five_times_runs_once(farm: FarmUnderTest) -> None:
    from farm.broker.tickets import TicketQueue
    from farm.records import Ticket, TicketEntry

    job = farm.submit({"frames": 2, "do": {"frame_s": 0.3}})
    [task] = farm.tasks(job)
    farm.wait_said(task.id, "begin")
    running = farm.tasks(job)[0]
    queue = TicketQueue(farm.settings.broker_url)
    for _ in range(4):
        queue.send(Ticket(running.slot_id, (TicketEntry(task.id, running.epoch),)))
    farm.wait_job(job)
    for _ in range(5):
        queue.send(Ticket(running.slot_id, (TicketEntry(task.id, running.epoch),)))
    after = farm.submit({"frames": 1})
    farm.wait_job(after)
    until(lambda: queue.pending(running.slot_id) == 0, "the tickets were taken")
    queue.close()
    assert len(farm.attempts(task.id)) == 1
    assert len(farm.said(task.id, "begin")) == 1
    farm.wait_slots(1)
    farm.check()
    farm.expect_no_stray()


def test_a_stopping_agent_parks_and_leaves_no_process(chaos: Settings) -> None:
    mark = unique_sleep()
    with FarmUnderTest(chaos) as farm:
        job = farm.submit(
            {
                "do": {"count_to": 40, "count_s": 0.1, "grandchild": mark, "child_holds": mark},
                "max_retries": 0,
            }
        )
        [task] = farm.tasks(job)
        until(lambda: farm.tasks(job)[0].checkpoint, "a step is done")
        assert farm.stop_agent() == 0
        assert sleepers(mark) == []
        assert farm.tasks(job)[0].state == "ready"
        with farm.db.read() as conn:
            assert conn.scalar(sa.select(t.nodes.c.state)) == "down"
        assert set(farm.processes()) == {farm.scheduler.pid if farm.scheduler else 0}
        farm.start_agent("one")
        farm.wait_job(job)
        assert [attempt.state for attempt in farm.attempts(task.id)] == [
            AttemptState.PARKED,
            AttemptState.DONE,
        ]
        assert int(farm.said(task.id, "count from")[1][3].split()[-1]) > 0
        farm.check()


def test_a_killed_keeper_is_found_out(farm: FarmUnderTest) -> None:
    mark = unique_sleep()
    job = farm.submit({"frames": 6, "do": {"frame_s": 0.2, "grandchild": mark}})
    [task] = farm.tasks(job)
    farm.wait_said(task.id, "frame 1")
    [keeper] = children(farm.agents["one"].pid)
    os.kill(keeper, signal.SIGKILL)
    farm.wait_job(job)
    until(lambda: sleepers(mark) == [], "the grandchild is ended")
    assert farm.attempts(task.id)[0].state == AttemptState.LOST
    farm.check()
    farm.expect_no_stray()
