"""How the engine goes from one child to the next."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.errors import PermanentFailure
from jobs.engine import TaskContext
from jobs.render.engine import RenderEngine
from tests.unit.jobs.local_host import LocalHost


class Script:
    """A driver whose children only note what is done to them."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def start(self, key: str, *_: Any) -> Any:
        self.said.append(f"start {key}")
        if key == "broken":
            raise PermanentFailure("it cannot be started")
        child = SimpleNamespace(alive=lambda: True, pid=1 << 22, kill=lambda: self.said.append(f"kill {key}"))
        return SimpleNamespace(
            child=child, key=key, idle=True, end=lambda politely: self.said.append(f"end {key}")
        )

    def load(self, held: Any, *_: Any) -> None:
        self.said.append(f"load {held.key}")

    def work(self, held: Any, *_: Any) -> None:
        self.said.append(f"work {held.key}")


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def run(script: Script, tmp_path: Path) -> Any:
    """Runs a task whose step has a warm key, in one engine."""
    scene = tmp_path / "a.blend"
    scene.write_bytes(b"BLENDER")
    host = LocalHost(tmp_path / "host", {scene.name: scene})
    parsed, plan = host.plan("render", {"scene": scene.name})
    task: TaskContext = next(host.tasks(parsed, plan.steps[0]))
    engine = RenderEngine()
    engine._drivers = {"blender": script}  # type: ignore[dict-item]

    def do(key: str) -> None:
        engine.run(dataclasses.replace(task, step={**task.step, "warm_key": key}), host)

    return do


def test_the_next_child_starts_while_the_last_one_is_cleared_away(script: Script, run: Any) -> None:
    run("a")
    run("a")
    run("b")
    assert script.said == [
        "start a", "load a", "work a", "work a",
        # its memory goes before the next one wants some
        "kill a", "start b", "end a", "load b", "work b",
    ]  # fmt: skip


def test_a_child_is_cleared_away_also_where_the_next_one_does_not_start(script: Script, run: Any) -> None:
    run("a")
    with pytest.raises(PermanentFailure, match="it cannot be started"):
        run("broken")
    run("a")
    assert script.said[3:] == ["kill a", "start broken", "end a", "start a", "load a", "work a"]
