"""Random lives of a farm: any sequence of operations, with every invariant checked after each."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from farm import ledger
from farm.db.connect import Database
from farm.db.tables import frame_files, frames, jobs, slots, steps, tasks
from farm.errors import Conflict, InvalidInput
from farm.frame_range import FrameRange
from farm.invariants import check_invariants
from farm.lifecycle import commands, leases, machines
from farm.lifecycle.finish import finish_many
from farm.lifecycle.publish import publish_frames
from farm.plan import StepPlan
from farm.records import AttemptReport, ClaimedTask, Split, Ticket
from farm.states import ENDED, FINAL, TRANSITIONS, Actor, AttemptState, TaskState
from tests.integration.farm.world import World, deferred, frame, step

_PLANS = {
    "plain": lambda: [step(frames="1-4", chunk=2, max_retries=1)],
    "film": lambda: [
        step(frames="1-3", max_retries=0),
        step("encode", None, after=[("render", "whole")], max_retries=1),
    ],
    "comp": lambda: [
        step(frames="1-4", chunk=2, max_retries=0),
        step("comp", "1-4", after=[("render", "frames")]),
        step("encode", None, after=[("comp", "whole")]),
    ],
    "chunk": lambda: [
        step(frames="1-6", chunk=6, max_retries=1),
        step("comp", "1-6", chunk=2, after=[("render", "frames")]),
        deferred("views", "render"),
    ],
    "preflight": lambda: [
        step("preflight", None, max_retries=1),
        deferred("render", "preflight", after=[("preflight", "whole")]),
        step("grade", "1-3", after=[("render", "frames")]),
        step("encode", None, after=[("render", "whole")]),
    ],
}
_ENDINGS = [s for s in AttemptState if s != AttemptState.RUNNING]


def expand(kind: str, spec: dict[str, Any], name: str, results: list[Any], assets: Any) -> StepPlan:
    """The deferred step of a plan: refused when what was found says so."""
    if any(result.get("broken") for result in results):
        raise InvalidInput("the scene has no camera")
    return step(name, "1-3", max_retries=0, after=[("preflight", "whole")])


class FarmLife(RuleBasedStateMachine):
    """One farm, any operations."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.db = Database(self.url)
        with self.db.write() as conn:
            for table in reversed(jobs.metadata.sorted_tables):
                conn.execute(table.delete())
        self.world = World(self.db).build(slots=2)
        self.tickets: list[Ticket] = []
        self.attempts: list[tuple[ClaimedTask, str]] = []
        self.reports: list[tuple[AttemptReport, str]] = []
        self.buffers: list[str] = []
        self.seen: dict[str, str] = {}
        self.files: dict[tuple[Any, ...], str] = {}
        self.person = False
        self.submitted = 0
        with self.db.write() as conn:
            ledger.set_budget(conn, self.world.node_id, "shm", 1000)
            ledger.set_budget(conn, self.world.node_id, "vram", 1000)

    def teardown(self) -> None:
        self.db.dispose()

    # --- choices -------------------------------------------------------------------------------------

    def _ids(self, column: Any, *where: Any) -> list[str]:
        with self.db.read() as conn:
            return list(conn.scalars(sa.select(column).where(*where).order_by(column)))

    @rule(plan=st.sampled_from(sorted(_PLANS)), follow=st.booleans())
    @precondition(lambda self: self.submitted < 4)
    def submit(self, plan: str, follow: bool) -> None:
        self.submitted += 1
        earlier = self._ids(jobs.c.id, jobs.c.state != "cancelled")
        self.world.job(*_PLANS[plan](), after=earlier[-1:] if follow else [])

    def _some(self, data: st.DataObject, size: int) -> list[str]:
        """Some ready tasks of one step."""
        with_ready = self._ids(steps.c.id, steps.c.n_ready > 0)
        if not with_ready:
            return []
        step_id = data.draw(st.sampled_from(with_ready))
        return self._ids(tasks.c.id, tasks.c.step_id == step_id, tasks.c.state == "ready")[:size]

    def _work(self, data: st.DataObject, slot: int, *, slow: bool = False) -> None:
        """What a farm does most: a slot takes a bundle and does it.

        ``slow``: it makes the first frame of each chunk, and leaves the rest to new tasks in pairs.
        """
        if self._ids(slots.c.id, slots.c.id == self.world.slot_ids[slot], slots.c.state != "idle"):
            # whatever it is on: let it end well
            mine = [t for t, s in self.attempts if s == self.world.slot_ids[slot]][-3:]
        else:
            ticket = self.world.dispatch(self._some(data, 3), slot)
            mine = self.world.claim(ticket, slot) if ticket is not None else []
            self.attempts += [(task, self.world.slot_ids[slot]) for task in mine]
            if ticket is not None:
                self.tickets.append(ticket)
        if mine:
            reports = [self.world.report(task) for task in mine]
            for report in reports if slow else ():
                report.frames, report.split = report.frames[:1], Split(frame_s=1.0, target_s=2.0)
            self.reports += [(report, self.world.slot_ids[slot]) for report in reports]
            self._send(reports, self.world.slot_ids[slot])

    # several rules that do the same: the usual must be usual, or jobs never get far
    @rule(data=st.data(), slot=st.integers(0, 1), slow=st.booleans())
    def work(self, data: st.DataObject, slot: int, slow: bool) -> None:
        self._work(data, slot, slow=slow)

    @rule(data=st.data(), slot=st.integers(0, 1))
    def work_on(self, data: st.DataObject, slot: int) -> None:
        self._work(data, slot)
        self._work(data, slot)

    @rule(data=st.data(), slot=st.integers(0, 1))
    def work_on_and_on(self, data: st.DataObject, slot: int) -> None:
        for _ in range(4):
            self._work(data, slot)

    @rule(data=st.data(), slot=st.integers(0, 1), size=st.integers(1, 3))
    def begin(self, data: st.DataObject, slot: int, size: int) -> None:
        ticket = self.world.dispatch(self._some(data, size), slot)
        if ticket is not None:
            self.tickets.append(ticket)
            self.attempts += [(task, self.world.slot_ids[slot]) for task in self.world.claim(ticket, slot)]

    @rule(slot=st.integers(0, 1), size=st.integers(1, 3), data=st.data())
    def dispatch(self, slot: int, size: int, data: st.DataObject) -> None:
        ticket = self.world.dispatch(self._some(data, size), slot)
        if ticket is not None:
            self.tickets.append(ticket)

    @rule(data=st.data(), slot=st.integers(0, 1))
    @precondition(lambda self: self.tickets)
    def claim(self, data: st.DataObject, slot: int) -> None:
        """Any ticket ever made, again and again, even at the wrong slot."""
        ticket = data.draw(st.sampled_from(self.tickets[-4:]))
        slot_id = self.world.slot_ids[slot]
        self.attempts += [(task, slot_id) for task in self.world.claim(ticket, slot)]

    @rule(data=st.data())
    @precondition(lambda self: self.attempts)
    def publish(self, data: st.DataObject) -> None:
        task, _ = data.draw(st.sampled_from(self.attempts[-6:]))
        if task.frames:
            number = data.draw(st.sampled_from(list(FrameRange.parse(task.frames))))
            made = frame(number, take=task.take, content=task.attempt_id)
            with self.db.write() as conn:
                publish_frames(conn, task.task_id, task.epoch, task.attempt_id, [made])

    @rule(
        data=st.data(),
        state=st.sampled_from([*_ENDINGS, AttemptState.DONE, AttemptState.DONE, AttemptState.DONE]),
        all_frames=st.booleans() | st.just(True),
        flag=st.booleans(),
    )
    @precondition(lambda self: self.attempts)
    def finish(self, data: st.DataObject, state: AttemptState, all_frames: bool, flag: bool) -> None:
        """A report of any attempt ever begun, however late; several of one ticket together."""
        task, slot_id = data.draw(st.sampled_from(self.attempts[-6:]))
        mates = [t for t, s in self.attempts if s == slot_id and t.step_id == task.step_id][-3:]
        if task not in mates:
            mates.append(task)
        more: dict[str, Any] = {} if all_frames else {"frames": []}
        if state == AttemptState.DONE and task.frames is None:
            more["result"] = {"broken": flag}
        reports = [
            self.world.report(t, state, charged=flag, permanent=flag and not all_frames, **more)
            for t in mates
        ]
        self.reports += [(report, slot_id) for report in reports]
        self._send(reports, slot_id)

    @rule(data=st.data())
    @precondition(lambda self: len(self.reports) > 0)
    def finish_again(self, data: st.DataObject) -> None:
        report, slot_id = data.draw(st.sampled_from(self.reports[-6:]))
        self._send([report], slot_id)

    def _send(self, reports: list[AttemptReport], slot_id: str) -> None:
        with self.db.write() as conn:
            verdicts = finish_many(conn, reports, slot_id, expand, self.world.config)
        with self.db.write() as conn:
            again = finish_many(conn, reports, slot_id, expand, self.world.config)
        for first, second in zip(verdicts, again, strict=True):
            assert second == ("fenced_off" if first == "fenced_off" else "repeated")

    @rule(data=st.data(), node_lost=st.booleans(), charged=st.booleans())
    def lose(self, data: st.DataObject, node_lost: bool, charged: bool) -> None:
        running = self._ids(tasks.c.id, tasks.c.state == "running")
        if running:
            task_id = data.draw(st.sampled_from(running))
            held = [(task_id, self.world.task(task_id).epoch)]
            with self.db.write() as conn:
                leases.lose(
                    conn, held, error="gone", node_lost=node_lost, charged=charged, settings=self.world.config
                )

    @rule(data=st.data())
    @precondition(lambda self: self.tickets)
    def return_unbegun(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets[-4:]))
        held = [(entry.task_id, entry.epoch) for entry in ticket.entries]
        with self.db.write() as conn:
            leases.return_unbegun(conn, ticket.slot_id, held)

    @rule()
    def reconcile(self) -> None:
        with self.db.write() as conn:
            leases.return_unclaimed(conn, -1.0)
            ledger.reconcile_orphans(conn)

    @rule(slot=st.integers(0, 1))
    def slot_dies_and_comes_back(self, slot: int) -> None:
        slot_id = self.world.slot_ids[slot]
        with self.db.write() as conn:
            held = machines.slot_died(conn, slot_id, self.world.incarnation)
            leases.lose(
                conn,
                [(task_id, epoch) for task_id, epoch, _ in held],
                error="killed",
                killed_slot=True,
                settings=self.world.config,
            )
            machines.slot_ready(conn, slot_id, self.world.incarnation, 77)

    @rule(data=st.data(), medium=st.sampled_from(["shm", "vram"]), size=st.integers(0, 600))
    @precondition(lambda self: self.attempts)
    def reserve(self, data: st.DataObject, medium: str, size: int) -> None:
        task, slot_id = data.draw(st.sampled_from(self.attempts[-3:]))
        with self.db.write() as conn:
            buffer_id = ledger.reserve(
                conn,
                self.world.node_id,
                slot_id,
                medium,
                size,
                "frame staging",
                task_id=task.task_id,
                attempt_id=task.attempt_id,
                epoch=task.epoch,
            )
        if buffer_id is not None:
            self.buffers.append(buffer_id)

    @rule(data=st.data())
    @precondition(lambda self: self.buffers)
    def release(self, data: st.DataObject) -> None:
        with self.db.write() as conn:
            ledger.release(conn, data.draw(st.sampled_from(self.buffers[-3:])))

    @rule(
        data=st.data(),
        command=st.sampled_from(
            [
                commands.cancel_job,
                commands.pause_job,
                commands.resume_job,
                commands.resume_job,
                commands.retry_job,
                commands.retry_job,
                commands.delete_job,
            ]
        ),
    )
    def command(self, data: st.DataObject, command: Any) -> None:
        known = self._ids(jobs.c.id)
        if not known:
            return
        self.person = True
        try:
            with self.db.write() as conn:
                command(conn, data.draw(st.sampled_from(known)))
        except Conflict:
            pass

    @rule(data=st.data(), numbers=st.sampled_from(["1", "2-3", "1-4"]))
    def retake(self, data: st.DataObject, numbers: str) -> None:
        known = self._ids(steps.c.id, steps.c.take < 3)
        if not known:
            return
        try:
            with self.db.write() as conn:
                commands.retake(
                    conn,
                    data.draw(st.sampled_from(known)),
                    FrameRange.parse(numbers),
                    settings=self.world.config,
                )
        except (Conflict, InvalidInput):
            pass

    @rule(data=st.data(), take=st.integers(1, 2))
    def choose_take(self, data: st.DataObject, take: int) -> None:
        known = self._ids(steps.c.id, steps.c.frames_done > 0)
        if not known:
            return
        try:
            with self.db.write() as conn:
                commands.set_current_take(
                    conn, data.draw(st.sampled_from(known)), FrameRange.parse("1"), take
                )
        except InvalidInput:
            pass

    # --- what must hold ------------------------------------------------------------------------------

    @invariant()
    def all_invariants_hold(self) -> None:
        with self.db.read() as conn:
            assert check_invariants(conn) == []

    @invariant()
    def tasks_only_move_along_the_table(self) -> None:
        with self.db.read() as conn:
            now = dict(conn.execute(sa.select(tasks.c.id, tasks.c.state)).all())
        for task_id, state in now.items():
            was = self.seen.get(task_id)
            if was is None or was == state:
                continue
            assert TaskState(was) not in FINAL, f"{was} -> {state}"
            if TaskState(was) in ENDED:
                assert self.person, f"{was} -> {state} without a person"
            assert _reachable(TaskState(was), TaskState(state)), f"{was} -> {state}"
        self.seen = now
        self.person = False

    @invariant()
    def published_files_never_change(self) -> None:
        with self.db.read() as conn:
            rows = conn.execute(
                sa.select(
                    frame_files.c.step_id,
                    frame_files.c.take,
                    frame_files.c.number,
                    frame_files.c.output,
                    frame_files.c.sha256,
                )
            ).all()
            living = set(conn.scalars(sa.select(steps.c.id)))
            pending = set(
                conn.execute(
                    sa.select(frames.c.step_id, frames.c.take, frames.c.number).where(
                        frames.c.state == "pending"
                    )
                ).all()
            )
        now = {tuple(row[:4]): row[4] for row in rows}
        for key, sha256 in self.files.items():
            if key[0] in living:
                assert now.get(key) == sha256
                assert key[:3] not in pending
        self.files = now


def _reachable(source: TaskState, target: TaskState) -> bool:
    """Whether moves of the table lead from one state to the other (one rule may make several)."""
    open_, seen = [source], {source}
    while open_:
        here = open_.pop()
        for first, second in TRANSITIONS:
            if first == here and second not in seen:
                seen.add(second)
                open_.append(second)
    return target in seen


@pytest.mark.timeout(600)
def test_any_sequence_of_operations_keeps_every_invariant(db_url: str) -> None:
    machine = type("FarmLifeHere", (FarmLife,), {"url": db_url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            # PostgreSQL is slower; the sequences are of the same kind
            max_examples=15 if db_url.startswith("sqlite") else 5,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_person_is_the_only_one_who_leaves_failed() -> None:
    for (source, target), actors in TRANSITIONS.items():
        if source in ENDED:
            assert source not in FINAL
            assert actors == {Actor.PERSON}, (source, target)
