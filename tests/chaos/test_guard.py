"""The guard for real: agent, slots, and a server that streams; held work loses nothing.

The server is a process of its own whose token interval a test sets. Budgets are absolute and wide, since a CI
machine is slow and shared: only what a test does on purpose is to count as a breach.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from farm.db import tables as t
from farm.settings import Settings
from tests.chaos.farm_under_test import _AGENT, ROOT, FarmUnderTest, until

QUICK_MS, SLOW_MS, BUDGET_MS = 20, 1200, 500


class Server:
    """The language model server of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.interval(QUICK_MS)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        module = "tests.unit.gpu_pinning.guard.decode_server"
        return [sys.executable, "-m", module, str(self.port), str(self.folder)]

    def start(self) -> None:
        self.process = subprocess.Popen(self.command(), cwd=ROOT)

    def interval(self, milliseconds: float) -> None:
        part = self.folder / "part"
        part.write_text(str(milliseconds))
        part.replace(self.folder / "interval_ms")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class GuardedFarm(FarmUnderTest):
    """One node with a neighbour; ``command`` lets the agent run the server itself."""

    server: Server
    command = False

    def start_agent(self, name: str, slots: int | None = None, **settings: Any) -> None:
        config = self.settings.data / f"{name}.toml"
        lines = [
            f'name = "{name}"',
            '[[slots]]\nname = "s0"\npools = ["render", "encode"]\nthreads = 1\ncores = 1',
            f'[[neighbours]]\nname = "llm"\nurl = "http://127.0.0.1:{self.server.port}"',
            f"budget_ms = {BUDGET_MS}\ncores = 1",
        ]
        if self.command:
            words = ", ".join(f'"{word}"' for word in self.server.command())
            lines.append(f"command = [{words}]")
        config.write_text("\n".join(lines) + "\n")
        extra = {f"FARM_{key.upper()}": str(value) for key, value in settings.items()}
        self.agents[name] = self._process(_AGENT, FARM_CONFIG=str(config), **extra)

    def guard(self) -> dict[str, Any]:
        with self.db.read() as conn:
            info = conn.scalar(sa.select(t.nodes.c.info)) or {}
        found: dict[str, Any] = info.get("guard") or {}
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        with self.db.read() as conn:
            return list(conn.scalars(sa.select(t.events.c.data).where(t.events.c.type == kind)))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server")
    yield made
    made.stop()


@pytest.fixture
def guarded(chaos: Settings, server: Server) -> Iterator[GuardedFarm]:
    server.start()
    farm = GuardedFarm(chaos)
    farm.server = server
    with farm:
        yield farm


def _serving(farm: GuardedFarm) -> bool:
    return any(n["condition"] in ("serving", "idle") for n in farm.guard().get("neighbours", []))


def test_a_breach_holds_the_farm_and_the_work_loses_nothing(guarded: GuardedFarm) -> None:
    farm, server = guarded, guarded.server
    job = farm.submit(
        {"tasks": 1, "frames": 60, "max_retries": 0, "no_progress_s": 3.0, "do": {"frame_s": 0.2}}
    )
    farm.wait_job(job, "running")
    until(lambda: _serving(farm), "the neighbour is seen")
    server.interval(SLOW_MS)
    until(lambda: farm.slot_rows()[0].state == "held", "the slot is held")
    assert farm.slot_rows()[0].hold_reason.startswith("guard: llm: ")
    until(lambda: farm.guard().get("rung") in ("pause", "park"), "the guard has climbed to pause")
    before = len(farm.frame_files(job))
    # longer than the no-progress limit and than a lease: both stand still, or go on, while the farm holds it
    time.sleep(4.0)
    assert len(farm.frame_files(job)) - before <= 1
    server.interval(QUICK_MS)
    until(lambda: farm.guard().get("rung") == "free", "the guard lets go")
    farm.wait_job(job, "done")
    assert len(farm.frame_files(job)) == 60
    with farm.db.read() as conn:
        charged = conn.scalars(sa.select(t.tasks.c.charged)).all()
    assert set(charged) == {0}, "held work spends no retry"
    climbs = until(lambda: farm.events("guard.climb"), "the climb is an event")
    assert climbs[0]["neighbour"] == "llm" and "over budget" in climbs[0]["reason"] and climbs[0]["curve"]
    # the server stayed slow while all was held, so the guard may also have found that it was not us
    assert until(lambda: farm.events("guard.let_go") or farm.events("guard.not_us"), "so is letting go")


def test_a_server_that_falls_silent_pauses_and_one_that_ends_frees(guarded: GuardedFarm) -> None:
    farm, server = guarded, guarded.server
    job = farm.submit({"tasks": 1, "frames": 100, "do": {"frame_s": 0.1}})
    farm.wait_job(job, "running")
    until(lambda: _serving(farm), "the neighbour is seen")
    server.interval(3_600_000)
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    until(lambda: farm.guard().get("rung") == "pause", "lost telemetry pauses")
    os.kill(server.process.pid, signal.SIGCONT)
    server.stop()
    until(lambda: farm.guard().get("rung") == "free", "nobody is left to protect")
    farm.wait_job(job, "done")


def test_the_agent_runs_the_neighbours_own_command(chaos: Settings, server: Server) -> None:
    farm = GuardedFarm(chaos)
    farm.server, farm.command = server, True
    with farm:
        until(lambda: _serving(farm), "the agent has started the server")
        mark = next(chaos.run_dir.glob("nodes/one/neighbours/llm.pid"))
        first = int(mark.read_text().split()[0])
        os.kill(first, signal.SIGKILL)
        until(lambda: mark.exists() and int(mark.read_text().split()[0]) != first, "it is started again")
        until(lambda: _serving(farm), "and serves")
        farm.stop_agent()
        assert not mark.exists(), "it ends with its agent"


def test_a_notice_of_preemption_parks_and_another_node_goes_on(chaos: Settings, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    farm = FarmUnderTest(chaos)
    farm.environment["FARM_PREEMPTION_FILE"] = str(notice)
    with farm:
        job = farm.submit({"tasks": 1, "max_retries": 0, "do": {"count_to": 400, "count_s": 0.05}})
        task_id = farm.tasks(job)[0].id
        farm.wait_said(task_id, "count from 0")
        farm.environment.pop("FARM_PREEMPTION_FILE")
        farm.start_agent("two")
        farm.wait_slots(1, node="two")
        notice.write_text("soon")
        farm.wait_job(job)
        resumed = [line for line in farm.trace_of(task_id) if "count from" in line[3]]
        assert len(resumed) == 2 and not resumed[1][3].endswith("from 0"), "it goes on where it parked"
        with farm.db.read() as conn:
            states = {row.name: row.state for row in conn.execute(sa.select(t.nodes.c.name, t.nodes.c.state))}
            charged = conn.scalars(sa.select(t.tasks.c.charged)).all()
        assert states == {"one": "drained", "two": "up"} and charged == [0]
        notice.unlink()
        farm.stop_agent("one")
        farm.start_agent("one")
        until(lambda: _node_state(farm, "one") == "up", "the next agent takes work without anybody's doing")
        # the other notice: a signal to the agent, whose slot has nothing to park
        farm.wait_slots(1, node="one")
        farm.agents["one"].send_signal(signal.SIGUSR2)
        until(lambda: _node_state(farm, "one") == "drained", "SIGUSR2 drains the node too")


def _node_state(farm: FarmUnderTest, name: str) -> str:
    with farm.db.read() as conn:
        return str(conn.scalar(sa.select(t.nodes.c.state).where(t.nodes.c.name == name)))
