"""What guard and agent cost together while slots work: ``python -m tests.benchmarks.agent_cost [SECONDS]``.

A real node on SQLite and Redis: the agent with its usual settings, its keepers, and the guard on a neighbour
that streams a token every 8 ms and has a metrics page of a thousand lines (a server in a process of its own).
Two slots are on tasks of many short frames, so that leases, progress and reports flow. Measured is the
processor time of the agent's process and of its keepers, not that of slots, scheduler, broker or server.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from farm.db import migrate
from farm.db import tables as t
from farm.settings import Settings
from tests.benchmarks.machine import Figure, judge
from tests.chaos.farm_under_test import _AGENT, FarmUnderTest, until
from tests.chaos.test_guard import Server
from tests.servers import RedisServer

SECONDS = 30.0
SLOTS = 2
INTERVAL_MS = 8
MOST_SHARE = 0.03
_SETTLE_S = 5.0


class GuardedNode(FarmUnderTest):
    """One node with a neighbour whose budget no step passes: a guard that holds would make the farm idle."""

    server: Server

    def start_agent(self, name: str, slots: int | None = None, **settings: Any) -> None:
        config = self.settings.data / f"{name}.toml"
        lines = [f'name = "{name}"', "[placement]", "share_cores = true"]
        for number in range(SLOTS):
            lines.append(
                f'[[slots]]\nname = "s{number}"\npools = ["render", "encode"]\nthreads = 1\ncores = 1'
            )
        url = f"http://127.0.0.1:{self.server.port}"
        lines.append(f'[[neighbours]]\nname = "llm"\nurl = "{url}"\nbudget_ms = 10000\ncores = 1')
        config.write_text("\n".join(lines) + "\n")
        self.agents[name] = self._process(_AGENT, FARM_CONFIG=str(config))

    def spent_s(self) -> dict[str, float]:
        """Processor seconds so far of the agent and of all its keepers."""
        agent = psutil.Process(self.agents["one"].pid)
        spent = {"agent": sum(agent.cpu_times()[:2])}
        spent["keepers"] = sum(sum(child.cpu_times()[:2]) for child in agent.children())
        return spent

    def sees(self) -> bool:
        """Whether the guard sees the neighbour stream, as the node's row tells."""
        with self.db.read() as conn:
            info = conn.scalar(sa.select(t.nodes.c.info)) or {}
        watched = (info.get("guard") or {}).get("neighbours", [])
        return any(neighbour["condition"] == "serving" for neighbour in watched)


def measure(folder: Path, seconds: float) -> list[Figure]:
    """Shares of a core while both slots are at work and the neighbour streams."""
    url = f"sqlite:///{folder / 'farm.sqlite3'}"
    migrate.upgrade(url)
    redis = RedisServer()
    redis.start()
    server = Server(folder / "server")
    server.interval(INTERVAL_MS)
    server.start()
    try:
        settings = Settings(data=folder / "farm", database_url=url, broker_url=redis.url)
        farm = GuardedNode(settings, slots=SLOTS)
        farm.server = server
        with farm:
            job = farm.submit({"tasks": SLOTS, "frames": 100_000, "do": {"frame_s": 0.5}})
            until(lambda: sum(row.state == "busy" for row in farm.slot_rows()) == SLOTS, "both slots work")
            until(farm.sees, "the neighbour is seen to stream")
            time.sleep(_SETTLE_S)
            before, began = farm.spent_s(), time.monotonic()
            time.sleep(seconds)
            after, lasted = farm.spent_s(), time.monotonic() - began
            assert farm.sees() and all(row.state == "busy" for row in farm.slot_rows())
            assert job
    finally:
        server.stop()
        redis.stop()
    share = {name: (after[name] - before[name]) / lasted for name in after}
    return [
        Figure("agent with its guard: share of one core", share["agent"], ""),
        Figure(f"keepers of {SLOTS} slots: share of one core", share["keepers"], ""),
        Figure("together", sum(share.values()), "", bound=MOST_SHARE),
    ]


def main(arguments: list[str]) -> int:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        return judge(measure(Path(folder), float(arguments[0]) if arguments else SECONDS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
