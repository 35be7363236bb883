"""A small farm for tests: a project, a node with slots, jobs of plain plans, attempts run by hand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from farm.db.connect import Database, db_now
from farm.db.tables import jobs, projects, steps, tasks, users
from farm.frame_range import FrameRange
from farm.lifecycle import machines
from farm.lifecycle.claim import claim
from farm.lifecycle.dispatch import dispatch
from farm.lifecycle.finish import Expander, finish
from farm.plan import DependencyPlan, JobPlan, OutputDecl, StepPlan, TaskPlan
from farm.records import (
    AttemptReport,
    ClaimedTask,
    Cost,
    FinishVerdict,
    FrameFileRecord,
    FrameRecord,
    Ticket,
)
from farm.settings import Settings
from farm.states import AttemptState
from farm.submission import Submission, submit

OUTPUT = OutputDecl("beauty.png", "png", 1, 1, ("R", "G", "B"), "uint8", "srgb")
PROJECT = "proj_test"
USER = "user_test"


def settings(**values: Any) -> Settings:
    """Settings with no back-off, so that a failed task can be dispatched at once."""
    return Settings(**({"retry_backoff_s": 0.0, "retry_backoff_max_s": 0.0} | values))


def step(
    name: str = "render",
    frames: str | None = "1-3",
    *,
    chunk: int = 1,
    tasks: Iterable[TaskPlan] | None = None,
    after: Sequence[tuple[str, str]] = (),
    **values: Any,
) -> StepPlan:
    """A step with one task per ``chunk`` frames, or one task without frames."""
    if tasks is None and frames is not None:
        tasks = [TaskPlan(part) for part in FrameRange.parse(frames).chunks(chunk)]
    if tasks is None:
        tasks = [TaskPlan()]
    makes_frames = frames is not None
    defaults: dict[str, Any] = {
        "engine": "probe",
        "pool": "render",
        "outputs": (OUTPUT,) if makes_frames else (),
        "depends_on": tuple(DependencyPlan(on, mode) for on, mode in after),  # type: ignore[arg-type]
    }
    return StepPlan(name, tasks=tasks, **(defaults | values))


def deferred(name: str, on: str, **values: Any) -> StepPlan:
    """A step whose tasks are made when ``on`` is done."""
    return step(name, tasks=(), deferred=True, deferred_on=on, **values)


def frame(
    number: int, *, take: int = 1, content: str | None = None, output: str = "beauty.png"
) -> FrameRecord:
    """A verified one-pixel frame."""
    sha256 = hashlib.sha256((content or f"{take}/{number}").encode()).hexdigest()
    file = FrameFileRecord(output, sha256, 70, 1, 1, ["R", "G", "B"], "uint8", "srgb", "png")
    return FrameRecord(number, take, [file], time.time(), 0.01)


@dataclass
class World:
    """One farm in one database. ``slot_ids`` are idle slots of one node."""

    db: Database
    config: Settings = field(default_factory=settings)
    node_id: str = ""
    slot_ids: list[str] = field(default_factory=list)
    incarnation: str = "inc"

    def build(self, slots: int = 2) -> World:
        """Make project, user, node and slots."""
        with self.db.write() as conn:
            conn.execute(projects.insert().values(id=PROJECT, name="test", created_at=db_now()))
            conn.execute(users.insert().values(id=USER, name="test", created_at=db_now()))
            self.node_id = machines.register_node(conn, "node-1", {}, "agent-1")
            for index in range(slots):
                slot_id = machines.register_slot(
                    conn, self.node_id, f"cpu{index}", ["render"], {"kind": "cpu"}
                )
                machines.slot_ready(conn, slot_id, self.incarnation, 1000 + index)
                self.slot_ids.append(slot_id)
        return self

    def job(self, *plan: StepPlan, **values: Any) -> str:
        """Submit a job made of these steps."""
        request = Submission(
            **({"name": "job", "kind": "probe", "project_id": PROJECT, "user_id": USER} | values)
        )
        with self.db.write() as conn:
            return submit(conn, request, JobPlan(list(plan) or [step()]), self.config)

    # --- running -------------------------------------------------------------------------------------

    def dispatch(self, task_ids: Sequence[str], slot: int = 0) -> Ticket | None:
        """Give tasks to a slot."""
        with self.db.write() as conn:
            return dispatch(conn, self.slot_ids[slot], list(task_ids))

    def claim(self, ticket: Ticket, slot: int = 0, lease_s: float = 30.0) -> list[ClaimedTask]:
        """Claim a ticket."""
        with self.db.write() as conn:
            return claim(conn, ticket, self.slot_ids[slot], self.incarnation, lease_s)

    def begin(self, *task_ids: str, slot: int = 0) -> list[ClaimedTask]:
        """Dispatch and claim tasks."""
        ticket = self.dispatch(task_ids, slot)
        assert ticket is not None
        return self.claim(ticket, slot)

    def report(
        self, task: ClaimedTask, state: AttemptState = AttemptState.DONE, **values: Any
    ) -> AttemptReport:
        """A report of an attempt; one that is done has made all its frames, unless ``frames`` says which."""
        made = []
        if state == AttemptState.DONE and task.frames:
            made = [frame(number, take=task.take) for number in FrameRange.parse(task.frames)]
        defaults = {"ended_at": time.time(), "frames": made, "cost": Cost(slot_s=0.5)}
        return AttemptReport(task.task_id, task.epoch, task.attempt_id, state, **(defaults | values))

    def end(
        self,
        task: ClaimedTask,
        state: AttemptState = AttemptState.DONE,
        *,
        slot: int = 0,
        expander: Expander | None = None,
        **values: Any,
    ) -> FinishVerdict:
        """Finish an attempt."""
        report = self.report(task, state, **values)
        with self.db.write() as conn:
            return finish(conn, report, self.slot_ids[slot], expander, self.config)

    def run(
        self, task_id: str, state: AttemptState = AttemptState.DONE, *, slot: int = 0, **values: Any
    ) -> FinishVerdict:
        """Dispatch, claim and finish one task."""
        (task,) = self.begin(task_id, slot=slot)
        return self.end(task, state, slot=slot, **values)

    # --- looking -------------------------------------------------------------------------------------

    def tasks(self, job_id: str, step_name: str | None = None) -> list[str]:
        """Ids of a job's tasks (of one step), in order."""
        query = (
            sa.select(tasks.c.id)
            .join(steps, steps.c.id == tasks.c.step_id)
            .where(steps.c.job_id == job_id)
            .order_by(steps.c.position, tasks.c.take, tasks.c.position)
        )
        if step_name is not None:
            query = query.where(steps.c.name == step_name)
        with self.db.read() as conn:
            return list(conn.scalars(query))

    def task(self, task_id: str) -> Any:
        """A task's row."""
        with self.db.read() as conn:
            return conn.execute(sa.select(tasks).where(tasks.c.id == task_id)).one()

    def states(self, job_id: str, step_name: str | None = None) -> list[str]:
        """States of a job's tasks, in order."""
        return [self.task(task_id).state for task_id in self.tasks(job_id, step_name)]

    def state(self, job_id: str) -> str:
        """State of a job."""
        with self.db.read() as conn:
            return str(conn.scalar(sa.select(jobs.c.state).where(jobs.c.id == job_id)))

    def step(self, job_id: str, name: str) -> Any:
        """A step's row."""
        with self.db.read() as conn:
            return conn.execute(sa.select(steps).where(steps.c.job_id == job_id, steps.c.name == name)).one()

    def check(self) -> None:
        """No invariant is broken."""
        from farm.invariants import check_invariants

        with self.db.read() as conn:
            assert check_invariants(conn) == []
