"""A slot's runner in this process, on a real database and a real store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import Database
from farm.records import Ticket
from farm.settings import Settings
from farm.stores import Store, open_store
from farm.submission import Submission, submit
from jobs import registry
from jobs.kind import ExpandContext
from tests.integration.farm.world import PROJECT, USER, World
from workers.bench import Bench, SlotIdentity
from workers.control import AgentControl, SlotControl
from workers.runner import Runner
from workers.spool import Spool


@dataclass
class Shop:
    """One slot. ``stop`` makes it begin no further task; ``woken`` lists the channels that it woke."""

    world: World
    bench: Bench
    agent: AgentControl
    store: Store
    runner: Runner
    trace: Path
    stop: list[bool] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)

    @property
    def db(self) -> Database:
        return self.world.db

    def submit(
        self, *steps: dict[str, Any], assets: dict[str, str] | None = None, after: Sequence[str] = ()
    ) -> str:
        """Submit a probe job."""
        data = {"steps": list(steps), "trace": str(self.trace)}
        kind = registry.kind("probe")
        plan = kind.expand(kind.parse(data), ExpandContext())
        made = Submission("job", "probe", PROJECT, USER, spec=data, assets=assets or {}, after=list(after))
        with self.db.write() as conn:
            return submit(conn, made, plan, self.bench.settings)

    def ticket(self, job_id: str, step: str = "probe") -> Ticket:
        """Dispatch all ready tasks of a step to the slot, as one ticket."""
        ready = [task.id for task in self.tasks(job_id, step) if task.state == "ready"]
        ticket = self.world.dispatch(ready)
        assert ticket is not None
        return ticket

    def run(self, job_id: str, step: str = "probe") -> None:
        """Run all ready tasks of a step."""
        self.runner.run_ticket(self.ticket(job_id, step).to_json())

    def tasks(self, job_id: str, step: str = "probe") -> list[Any]:
        query = sa.select(t.tasks).join(t.steps).where(t.steps.c.job_id == job_id, t.steps.c.name == step)
        with self.db.read() as conn:
            return list(conn.execute(query.order_by(t.tasks.c.position)))

    def attempt(self, task_id: str) -> Any:
        query = sa.select(t.attempts).where(t.attempts.c.task_id == task_id).order_by(t.attempts.c.number)
        with self.db.read() as conn:
            return conn.execute(query).all()[-1]

    def rows(self, table: sa.Table) -> list[Any]:
        with self.db.read() as conn:
            return list(conn.execute(sa.select(table)))

    def said(self, task_id: str) -> list[str]:
        """What a task's attempts said, without attempt number, process and time."""
        path = self.trace / f"{task_id}.txt"
        return [line.split(" ", 3)[3] for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain: {what}"
            time.sleep(0.01)


@pytest.fixture(name="shop")
def make_shop(
    db: Database, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """A running slot of a node with budgets, on SQLite and on PostgreSQL."""
    from farm import ledger

    monkeypatch.setenv("FARM_EXTRA_KINDS", "probe=tests.kinds.probe")
    world = World(db, settings).build(slots=1)
    with db.write() as conn:
        for medium in ("spool", "store"):
            ledger.set_budget(conn, world.node_id, medium, 1000)
    agent = AgentControl.create(tmp_path / "control")
    identity = SlotIdentity(
        slot_id=world.slot_ids[0],
        slot_name="cpu0",
        node_id=world.node_id,
        node_name="node-1",
        incarnation=world.incarnation,
        control=str(tmp_path / "control"),
        spool=str(tmp_path / "spool"),
        scratch=str(settings.data / "scratch"),
        device={"kind": "cpu", "threads": 1},
    )
    store = open_store(settings.resolved_store)
    stop: list[bool] = []
    woken: list[str] = []
    bench = Bench(
        identity=identity,
        settings=settings,
        db=db,
        store=store,
        control=SlotControl(tmp_path / "control"),
        spool=Spool(tmp_path / "spool"),
        wake=woken.append,
        stopping=lambda: bool(stop),
    )
    trace = tmp_path / "trace"
    trace.mkdir()
    made = Shop(world, bench, agent, store, Runner(bench), trace, stop, woken)
    yield made
    made.runner.close()
    world.check()
