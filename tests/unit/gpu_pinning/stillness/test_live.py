"""A run shown as it happens: whole files, decode's steps and the farm's work side by side."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpu_pinning.stillness.live import Live, write_png


class Decode:
    """Steps of 8 ms, one of them 20 ms."""

    def durations(self, begin: float, end: float) -> Any:
        return np.array([0.008] * 99 + [0.020])


def worker(pool: str, units: float) -> Any:
    return SimpleNamespace(work=SimpleNamespace(pool=pool), units=lambda begin, end: units)


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "live.json").read_text())
    return found


def until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_steps_and_units_appear_while_it_runs_and_the_verdict_at_its_end(tmp_path: Path) -> None:
    live = Live(tmp_path / "live", {"decode": "numpy", "loads": ["encode: 1 x 1"], "hurt": True})
    assert read(live.folder)["points"] == [] and read(live.folder)["over"] is None
    live.watch(Decode(), [worker("encode", 2.0), worker("encode", 1.0), worker("render", 0.5)])  # type: ignore[arg-type]
    live.now("control", True, False)
    live.say("round 1")
    until(lambda: len(read(live.folder)["points"]) >= 2)
    found = read(live.folder)
    at, p50, p99, arm, working = found["points"][-1]
    assert (p50, arm, working) == (8.0, "control", True) and p99 > 8.0 and at > 0
    assert (found["isolation"], found["note"]) == (False, "round 1")
    assert found["units"]["encode"] >= 3 and found["rates"]["encode"] > found["rates"]["render"] > 0
    live.end("disturbed", ["p99 is over"])
    assert read(live.folder)["over"] == {"verdict": "disturbed", "reasons": ["p99 is over"]}


def test_an_earlier_run_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "picture-render.png").write_bytes(b"old")
    (tmp_path / "live.json").write_text("{}")
    live = Live(tmp_path, {"decode": "x", "loads": [], "hurt": False})
    assert read(tmp_path)["pictures"] == [] and not live.picture("render").exists()


@pytest.mark.parametrize(("height", "width"), [(1, 1), (5, 7), (120, 208)])
def test_pictures_are_pngs_that_others_can_read(tmp_path: Path, height: int, width: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    write_png(tmp_path / "a.png", pixels)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), pixels)
