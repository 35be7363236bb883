"""A nerf job on a running farm: submitted from a folder, watched, its film, splats and curve on the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.farms import Up, environment
from tests.e2e.test_dashboard import Guarded, sign_in
from tests.unit.jobs.nerf.scenes import write_set

pytestmark = pytest.mark.timeout(900)


def test_pictures_with_cameras_become_a_film_and_splats_to_look_at(
    farm_up: Up, browser: Browser, tmp_path: Path
) -> None:
    source = write_set(tmp_path / "set", 8)
    words = [
        "submit", "nerf", str(source), "--frames", "1-2", "--size", "32x24", "--film", "mp4",
        "--set", "method=splat", "--set", "train.iterations=30", "--set", "train.cap=80",
        "--set", 'exports=["ply"]', "--watch", "-o", str(tmp_path / "out"),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "api.cli.main", *words], env=environment(farm_up.folder),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "out").iterdir()
    assert (folder / "film.mp4").stat().st_size > 0
    guarded = Guarded(browser, farm_up)
    sign_in(guarded.page, farm_up)
    guarded.page.goto(f"{farm_up.url}/jobs/{done.stdout.split()[0]}")
    panel = guarded.page.locator("#curve")
    expect(panel).to_contain_text("30 iterations")
    expect(panel).to_contain_text("torch rasteriser for CPUs")
    expect(panel).to_contain_text("dB")
    guarded.page.get_by_role("tab", name="Film").click()
    guarded.page.get_by_role("button", name="Show in 3D").click()
    expect(guarded.page.locator(".splats canvas")).to_have_attribute("data-drawn", "1")
