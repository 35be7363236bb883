"""A farm whose node has a farm.toml of the test's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from tests.chaos.farm_under_test import FarmUnderTest, until


class PlacedFarm(FarmUnderTest):
    """``node_toml`` is the node's farm.toml, its name aside."""

    node_toml = ""

    @property
    def config(self) -> Path:
        return self.settings.data / "one.toml"

    def write_config(self, text: str) -> None:
        """Write the node's farm.toml."""
        self.config.write_text(f'name = "one"\n{text}')

    def start_agent(self, name: str, slots: int | None = None, **settings: Any) -> None:
        self.write_config(self.node_toml)
        self.agents[name] = self._process(self.agent_code, FARM_CONFIG=str(self.config))

    def apply(self, text: str) -> None:
        """Change farm.toml and tell the agent."""
        self.write_config(text)
        self.agents["one"].send_signal(signal.SIGHUP)

    def reload(self) -> str:
        """Tell the agent by the command; what that says."""
        environment = os.environ | {"FARM_DATA": str(self.settings.data), "FARM_CONFIG": str(self.config)}
        words = [sys.executable, "-m", "api.cli.main", "node", "reload"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        return f"{done.returncode} {done.stderr}"

    def slot(self, name: str) -> Any:
        return next(row for row in self.slot_rows() if row.name == name)

    def wait_slot(self, name: str, state: str = "idle", other_than: int | None = None) -> Any:
        """The slot's row once it is in this state, in a process other than the given one."""

        def found() -> Any:
            rows = [row for row in self.slot_rows() if row.name == name and row.state == state]
            return rows[0] if rows and rows[0].pid != other_than else None

        return until(found, f"slot {name} is {state}: {[(r.name, r.state, r.pid) for r in self.slot_rows()]}")

    def events(self, kind: str) -> list[dict[str, Any]]:
        query = sa.select(t.events.c.data).where(t.events.c.type == kind).order_by(t.events.c.id)
        with self.db.read() as conn:
            return list(conn.scalars(query))

    def kept_plan(self) -> dict[str, Any]:
        path = self.settings.run_dir / "nodes" / "one" / "plan.json"
        plan: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"slots": []}
        return plan
