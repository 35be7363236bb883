"""A gang in a slot: a rank that is killed costs an attempt, and neither the lease nor the film."""

from __future__ import annotations

import os
import signal

import pytest
import sqlalchemy as sa

from farm import submission
from farm.db import tables as t
from farm.plan import JobPlan
from farm.settings import Settings
from farm.states import AttemptState
from jobs.video import payload
from tests.chaos.farm_under_test import FarmUnderTest, until
from tests.unit.jobs.video.making import spec, step_of

pytestmark = pytest.mark.timeout(900)

STEPS = 300
PATIENT_S = 240.0
"""Two processes import torch before the first step, on cores that others may use."""


def submit(farm: FarmUnderTest, name: str) -> str:
    """A film by two ranks; a spec may not ask for two CPUs, so the step says it."""
    given = spec("wan", steps=STEPS, checkpoint_every=5, preview=False)
    step = step_of(given)
    step.payload[payload.KEY].update(gpus=2, gang="ulysses")  # type: ignore[index]
    made = submission.Submission(name, "video", farm.project_id, farm.user_id, spec=given)
    with farm.db.write() as conn:
        job_id = submission.submit(conn, made, JobPlan([step]), farm.settings)
    farm.wake("scheduler")
    return job_id


def ranks(farm: FarmUnderTest) -> list[int]:
    """Processes of ranks other than the first."""
    return [pid for pid, command in farm.processes().items() if "jobs.video.gang_child" in command]


def checkpoints(farm: FarmUnderTest, task_id: str) -> int:
    """Checkpoints that the task's buffers hold."""
    query = sa.select(sa.func.count()).where(
        t.buffers.c.task_id == task_id, t.buffers.c.purpose == "checkpoint"
    )
    with farm.db.read() as conn:
        return int(conn.scalar(query) or 0)


def hashes(farm: FarmUnderTest, job_id: str) -> list[str]:
    """Artifact of each frame, in order."""
    return [row.sha256 for row in farm.frame_files(job_id)]


def test_a_killed_rank_gives_the_lease_back_whole_and_the_film_goes_on_from_its_checkpoint(
    chaos: Settings,
) -> None:
    with FarmUnderTest(chaos, pools=("video",)) as farm:
        killed = submit(farm, "killed")
        [task] = farm.tasks(killed)
        slot = farm.slot_pid(task.id)
        until(lambda: checkpoints(farm, task.id), "a checkpoint is kept", PATIENT_S)
        [rank] = ranks(farm)
        os.kill(rank, signal.SIGKILL)
        farm.wait_job(killed, seconds=PATIENT_S)
        first, second = farm.attempts(task.id)
        assert first.state == AttemptState.FAILED
        assert "rank 1 of the gang: it has died (exit code -9)" in first.error
        assert second.state == AttemptState.DONE
        assert rank not in ranks(farm)
        # the first rank came out of it: the slot, which owns all of the gang's devices, is the same process
        whole = submit(farm, "whole")
        assert farm.slot_pid(farm.tasks(whole)[0].id) == slot
        farm.wait_job(whole, seconds=PATIENT_S)
        assert len(hashes(farm, whole)) == 5
        assert hashes(farm, killed) == hashes(farm, whole)
        farm.wait_slots(1)
        farm.check()
