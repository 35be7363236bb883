"""A whole farm of real processes for chaos tests: scheduler, node agents and their slots.

Every process of it carries the farm's data folder in its environment, which is how a test sees that none is
left at the end (:meth:`FarmUnderTest.processes`).
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from farm import submission
from farm.db import tables as t
from farm.db.connect import Database
from farm.ids import new_id
from farm.settings import Settings
from jobs import registry
from jobs.kind import ExpandContext

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
EXTRA_KINDS = "probe=tests.kinds.probe"
_SCHEDULER = "from tests.chaos.farm_under_test import run_scheduler; run_scheduler()"
_AGENT = "import sys; from workers.agent import run_agent; from farm.settings import settings; " \
    "sys.exit(run_agent(settings()))"  # fmt: skip


def until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = DEADLINE_S) -> Any:
    """Wait until the condition gives something true, and give that; fails with ``what`` after the time."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain: {what if isinstance(what, str) else what()}")
        time.sleep(0.02)


@dataclass
class FarmUnderTest:
    """One farm. ``start`` and ``close`` it, or use it as a context manager."""

    settings: Settings
    slots: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    pools: tuple[str, ...] = ("render", "encode")
    agent_code: str = _AGENT

    def __post_init__(self) -> None:
        self.db = Database(self.settings.resolved_database_url)
        self.settings.data.mkdir(parents=True, exist_ok=True)
        self.scheduler: subprocess.Popen[bytes] | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.trace = self.settings.data / "trace"
        self.trace.mkdir(exist_ok=True)
        self.output = self.settings.data / "output.txt"
        os.environ["FARM_EXTRA_KINDS"] = EXTRA_KINDS
        with self.db.write() as conn:
            now = time.time()
            self.project_id, self.user_id = new_id("proj"), new_id("user")
            conn.execute(t.projects.insert().values(id=self.project_id, name="chaos", created_at=now))
            conn.execute(t.users.insert().values(id=self.user_id, name="tester", created_at=now))

    def __enter__(self) -> FarmUnderTest:
        try:
            return self.start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is not None and self.output.exists():
                print(self.output.read_text(errors="replace")[-20_000:])
                self.print_rows()
                self.print_slot_logs()
        finally:
            self.close()

    # --- processes -----------------------------------------------------------------------------------

    def start(self) -> FarmUnderTest:
        """Start scheduler and one agent, and wait for the slots."""
        self.start_scheduler()
        self.start_agent("one")
        self.wait_slots(self.slots)
        return self

    def start_scheduler(self) -> None:
        self.scheduler = self._process(_SCHEDULER)

    def start_agent(self, name: str, slots: int | None = None, **settings: Any) -> None:
        config = self.settings.data / f"{name}.toml"
        count = slots or self.slots
        # every slot on all cores: a test farm has more slots than a small machine has cores
        lines = [f'name = "{name}"', "[placement]", "share_cores = true"]
        cores = len(os.sched_getaffinity(0))
        pools = ", ".join(f'"{pool}"' for pool in self.pools)
        for number in range(count):
            lines.append(f'[[slots]]\nname = "s{number}"\npools = [{pools}]\ncores = {cores}\nthreads = 1')
        config.write_text("\n".join(lines) + "\n")
        extra = {f"FARM_{key.upper()}": str(value) for key, value in settings.items()}
        self.agents[name] = self._process(self.agent_code, FARM_CONFIG=str(config), **extra)

    def stop_agent(self, name: str = "one", seconds: float = 30.0) -> int:
        """SIGTERM, and wait for its end."""
        agent = self.agents.pop(name)
        agent.terminate()
        return agent.wait(seconds)

    def kill_agent(self, name: str = "one") -> None:
        agent = self.agents.pop(name)
        agent.kill()
        agent.wait()

    def kill_scheduler(self) -> None:
        assert self.scheduler is not None
        self.scheduler.kill()
        self.scheduler.wait()
        self.scheduler = None

    def processes(self) -> dict[int, str]:
        """Living processes of this farm by id, those of its test aside."""
        mark = f"FARM_DATA={self.settings.data}".encode()
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == os.getpid():
                continue
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def expect_no_stray(self) -> None:
        """Only scheduler, agents, and per slot its keeper and itself are there."""
        expected = (self.scheduler is not None) + len(self.agents) + 2 * self.slots * len(self.agents)
        until(
            lambda: len(self.processes()) == expected, lambda: f"{expected} processes: {self.processes()}", 20
        )

    def close(self) -> None:
        """End everything; fails when a process stays."""
        try:
            for agent in self.agents.values():
                agent.terminate()
            for agent in self.agents.values():
                assert agent.wait(40) == 0
            if self.scheduler is not None:
                self.scheduler.terminate()
                self.scheduler.wait(20)
            until(lambda: not self.processes(), lambda: f"no process is left: {self.processes()}", 10)
        finally:
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            self.db.dispose()

    def _process(self, code: str, **extra: str) -> subprocess.Popen[bytes]:
        values = self.settings.model_dump()
        environment = dict(os.environ)
        environment |= {
            f"FARM_{key.upper()}": str(value) for key, value in values.items() if value is not None
        }
        environment |= {"FARM_EXTRA_KINDS": EXTRA_KINDS, "PYTHONPATH": str(ROOT)}
        environment |= self.environment | extra
        with self.output.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-c", code], env=environment, stdout=output, stderr=output, cwd=ROOT
            )

    def print_rows(self) -> None:
        """Tasks, attempts and slots, for a failed test's report."""
        with self.db.read() as conn:
            for table in (t.tasks, t.attempts, t.slots):
                for row in conn.execute(sa.select(table)).mappings():
                    print(table.name, {name: value for name, value in row.items() if value not in (None, {})})

    def print_slot_logs(self) -> None:
        """What the slots printed, for a failed test's report."""
        for path in sorted(self.settings.run_dir.glob("nodes/*/output/*.log")):
            print(f"--- {path.parent.parent.name}/{path.name}\n{path.read_text(errors='replace')[-5000:]}")

    # --- slots ---------------------------------------------------------------------------------------

    def slot_rows(self, node: str | None = None) -> list[Any]:
        query = sa.select(t.slots, t.nodes.c.name.label("node")).join(t.nodes)
        if node:
            query = query.where(t.nodes.c.name == node)
        with self.db.read() as conn:
            return list(conn.execute(query.order_by(t.slots.c.name)))

    def wait_slots(self, count: int, state: str = "idle", node: str | None = None) -> None:
        until(
            lambda: sum(row.state == state for row in self.slot_rows(node)) >= count,
            lambda: f"{count} slots are {state}: {[(row.name, row.state) for row in self.slot_rows(node)]}",
        )

    def stop_outside_transactions(self, *pids: int) -> None:
        """Stop processes (SIGSTOP) at a moment when none of them holds a lock of the database.

        One that is stopped within a transaction on SQLite shuts everybody out until it goes on: another
        subject than what a stopped process may still do.
        """
        for _ in range(50):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(0.1)
            if not self._somebody_writes():
                return
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.05)
        raise AssertionError(f"processes {pids} were within a transaction at every look")

    def _somebody_writes(self) -> bool:
        if self.db.engine.dialect.name == "sqlite":
            path = self.db.engine.url.database
            assert path is not None
            with closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as own:
                try:
                    own.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    return True
                own.execute("ROLLBACK")
                return False
        idle = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE state LIKE 'idle in%' AND datname = current_database()"
        )
        with self.db.read() as conn:
            return bool(conn.scalar(sa.text(idle)))

    def slot_pid(self, task_id: str) -> int:
        """Process of the slot that the task runs in."""
        return int(until(lambda: self._pid_of(task_id), f"{task_id} runs in a slot"))

    def _pid_of(self, task_id: str) -> int | None:
        query = (
            sa.select(t.slots.c.pid)
            .join(t.tasks, t.tasks.c.slot_id == t.slots.c.id)
            .where(t.tasks.c.id == task_id, t.tasks.c.state == "running")
        )
        with self.db.read() as conn:
            return conn.scalar(query)

    # --- jobs ----------------------------------------------------------------------------------------

    def submit(self, *steps: dict[str, Any], assets: dict[str, str] | None = None, **more: Any) -> str:
        """Submit a probe job of these steps; its id."""
        kind = registry.kind("probe")
        data = {"steps": list(steps), "trace": str(self.trace)}
        spec = kind.parse(data)
        made = submission.Submission(
            "chaos", "probe", self.project_id, self.user_id, spec=data, assets=assets or {}, **more
        )
        with self.db.write() as conn:
            job_id = submission.submit(conn, made, kind.expand(spec, ExpandContext()), self.settings)
        self.wake("scheduler")
        return job_id

    def wake(self, channel: str) -> None:
        from farm.broker.wakes import Wakes

        wakes = Wakes(self.settings.broker_url)
        wakes.wake(channel)
        wakes.close()

    def wake_nodes(self) -> None:
        with self.db.read() as conn:
            for node_id in conn.scalars(sa.select(t.nodes.c.id)):
                self.wake(f"node.{node_id}")

    def tasks(self, job_id: str, step: str | None = None) -> list[Any]:
        query = (
            sa.select(t.tasks, t.steps.c.name.label("step")).join(t.steps).where(t.steps.c.job_id == job_id)
        )
        if step:
            query = query.where(t.steps.c.name == step)
        with self.db.read() as conn:
            return list(conn.execute(query.order_by(t.steps.c.position, t.tasks.c.position)))

    def states(self, job_id: str) -> list[str]:
        return [task.state for task in self.tasks(job_id)]

    def attempts(self, task_id: str) -> list[Any]:
        query = sa.select(t.attempts).where(t.attempts.c.task_id == task_id).order_by(t.attempts.c.number)
        with self.db.read() as conn:
            return list(conn.execute(query))

    def job(self, job_id: str) -> Any:
        with self.db.read() as conn:
            return conn.execute(sa.select(t.jobs).where(t.jobs.c.id == job_id)).one()

    def wait_job(self, job_id: str, state: str = "done", seconds: float = DEADLINE_S) -> None:
        until(
            lambda: self.job(job_id).state == state,
            lambda: f"job is {state}: {[(x.state, x.error) for x in self.tasks(job_id)][:5]}",
            seconds,
        )

    def wait_task(self, task_id: str, state: str, seconds: float = DEADLINE_S) -> Any:
        return until(lambda: self._task_in(task_id, state), f"{task_id} is {state}", seconds)

    def _task_in(self, task_id: str, state: str) -> Any:
        query = sa.select(t.tasks).where(t.tasks.c.id == task_id, t.tasks.c.state == state)
        with self.db.read() as conn:
            return conn.execute(query).one_or_none()

    def frame_files(self, job_id: str) -> list[Any]:
        query = (
            sa.select(t.frame_files, t.frames.c.attempt_id)
            .join(t.frames)
            .where(t.frames.c.job_id == job_id, t.frames.c.state == "published")
            .order_by(t.frame_files.c.number)
        )
        with self.db.read() as conn:
            return list(conn.execute(query))

    def trace_of(self, task_id: str) -> list[tuple[int, int, float, str]]:
        """``(attempt number, pid, monotonic time, what)`` of all that a task's attempts said."""
        path = self.trace / f"{task_id}.txt"
        if not path.exists():
            return []
        lines = []
        for line in path.read_text().splitlines():
            number, pid, at, what = line.split(" ", 3)
            lines.append((int(number), int(pid), float(at), what))
        return lines

    def said(self, task_id: str, what: str) -> list[tuple[int, int, float, str]]:
        return [line for line in self.trace_of(task_id) if line[3].startswith(what)]

    def wait_said(self, task_id: str, what: str, times: int = 1) -> tuple[int, int, float, str]:
        """Wait until the task's attempts have said ``what`` so often; the last such line."""
        until(lambda: len(self.said(task_id, what)) >= times, f"{task_id} says {what!r} {times} times")
        return self.said(task_id, what)[-1]

    # --- invariants ----------------------------------------------------------------------------------

    def check(self) -> None:
        """The invariants of DESIGN section 4, from rows and from the store's bytes."""
        from tests.chaos.checks import check_all

        check_all(self.db, self.settings)


def slowness() -> float:
    """1 on a machine with time to spare; more where importing a slot's libraries takes over half a second.

    The figures of the design hold for a machine of its own; tests also run beside others.
    """
    started = time.monotonic()
    code = "import celery.apps.worker, sqlalchemy, redis, kombu.transport.redis, pydantic_settings"
    subprocess.run([sys.executable, "-c", code], check=True)
    return max(1.0, (time.monotonic() - started) / 0.5)


def sleepers(seconds: str) -> list[int]:
    """Living ``sleep`` processes of that length."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[:2] == [b"sleep", seconds.encode()]:
                found.append(int(folder.name))
    return found


def unique_sleep() -> str:
    """A length of sleep that no other test uses."""
    return f"{300 + os.getpid() % 600}.{time.monotonic_ns() % 1_000_000_000:09d}"


def distinct(values: Iterable[Any]) -> int:
    """How many different values."""
    return len(set(values))


def run_scheduler() -> None:
    """Entry point of the scheduler process."""
    import threading

    from farm.scheduler import service
    from farm.settings import settings

    config = settings()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    service.run(Database(config.resolved_database_url), config.broker_url, config, stop)
