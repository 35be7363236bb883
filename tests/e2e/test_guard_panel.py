"""Neighbours as people see them: the machines page in a browser, and ``farm neighbours``, on a real farm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from api.cli.running.children import farm_command
from gpu_pinning.stillness.live import Live, write_png
from tests.e2e.farms import Up, environment
from tests.e2e.test_dashboard import WAIT_MS, Guarded, sign_in
from tests.unit.gpu_pinning.guard.decode_server import DecodeServer

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def neighbour() -> Iterator[DecodeServer]:
    """A server that streams."""
    server = DecodeServer().start()
    yield server
    server.stop()


@pytest.fixture
def farm(tmp_path: Path, neighbour: DecodeServer) -> Iterator[Up]:
    """A `farm up` beside it; a wide budget, since only what the test does is to count."""
    config = tmp_path / "farm.toml"
    config.write_text(
        '[[slots]]\nname = "s0"\npools = ["render"]\ncores = 1\n'
        f'[[neighbours]]\nname = "llm"\ncores = 1\nbudget_ms = 500\nurl = "{neighbour.url}"\n'
    )
    up = Up(tmp_path, {"FARM_CONFIG": str(config)})
    try:
        yield up.start()
    finally:
        up.stop()


def test_the_machines_page_and_the_command_show_neighbours_and_the_hold(
    browser: Browser, farm: Up, neighbour: DecodeServer
) -> None:
    seen = Guarded(browser, farm)
    page = seen.page
    sign_in(page, farm)
    page.goto("/machines")
    panel = page.get_by_role("region", name="Neighbours and guard")
    expect(panel).to_contain_text("llm", timeout=WAIT_MS)
    expect(panel).to_contain_text("budget 500.0 ms")
    env = environment(farm.folder) | {"FARM_URL": farm.url, "FARM_KEY": farm.key}
    told = subprocess.run(
        [*farm_command(), "neighbours", "--json"], env=env, capture_output=True, text=True, timeout=120
    )
    assert told.returncode == 0, told.stderr
    guard = next(iter(json.loads(told.stdout).values()))
    assert [n["name"] for n in guard["neighbours"]] == ["llm"]
    # nobody can read it any more: new work is held, and the page says so
    neighbour.page_works = False
    neighbour.hold.set()
    expect(panel).to_contain_text("paused")
    expect(panel.locator(".hint")).not_to_be_empty()
    table = subprocess.run(
        [*farm_command(), "neighbours"], env=env, capture_output=True, text=True, timeout=120
    )
    assert table.returncode == 0 and "NEIGHBOUR" in table.stdout and "pause" in table.stdout
    _a_live_run_is_seen(seen, farm)
    seen.context.close()
    assert seen.troubles == []


def _a_live_run_is_seen(seen: Guarded, farm: Up) -> None:
    """The page of `farm bench stillness --live`, on the same farm: a second one would cost half a minute."""
    page = seen.page
    live = Live(
        farm.data / "stillness", {"decode": "numpy, CPU form", "loads": ["render: 1 x 1"], "hurt": True}
    )
    live.watch(_Decode(), [SimpleNamespace(work=SimpleNamespace(pool="render"), units=lambda *_: 1.0)])  # type: ignore[arg-type, list-item]
    write_png(live.picture("render"), np.full((8, 8, 3), 200, np.uint8))
    live.now("farm", True, True)
    page.goto("/stillness")
    expect(page.get_by_role("status").filter(has_text="isolation on")).to_be_visible()
    neighbour, frames = (
        page.get_by_label("The neighbour's decode steps"),
        page.get_by_label("Frames arriving"),
    )
    expect(neighbour).to_contain_text("p50 8.00 ms")
    expect(frames).to_contain_text("render:")
    expect(frames.get_by_role("img")).to_have_js_property("naturalWidth", 8)
    write_png(live.picture("render"), np.full((8, 16, 3), 200, np.uint8))
    expect(frames.get_by_role("img")).to_have_js_property("naturalWidth", 16)
    live.now("control", True, False)
    expect(page.get_by_role("status").filter(has_text="isolation OFF")).to_be_visible()
    expect(page.locator("#trace rect.loose").first).to_be_attached()
    live.end("disturbed", ["p99 is twice what it was"])
    expect(page.get_by_text("p99 is twice what it was")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Disturbed")).to_be_visible()


class _Decode:
    """Steps of 8 ms."""

    def durations(self, begin: float, end: float) -> np.ndarray:
        return np.full(30, 0.008)
