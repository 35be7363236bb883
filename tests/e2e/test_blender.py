"""A .blend by the command line, and its preflight on the job's page in a real browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from jobs.render.blender import installation
from tests.e2e.farms import Up, environment, until
from tests.e2e.test_dashboard import Guarded, sign_in
from tests.integration.jobs.blender.conftest import HOW, REPOSITORY, run_in_blender

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def home() -> Path:
    """Where `make test` has installed Blender."""
    named = Path(os.environ.get("FARM_BLENDER_HOME") or REPOSITORY / ".blender")
    if installation.LTS not in installation.installed({}, named):
        pytest.skip(f"no Blender {installation.LTS} in {named}: {HOW}")
    return named


@pytest.fixture(scope="module")
def blends(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small .blend files."""
    folder = tmp_path_factory.mktemp("blends")
    run_in_blender(str(home / f"bpy-{installation.LTS}" / "bin" / "python"), "make_files.py", str(folder))
    return folder


@pytest.fixture(scope="module")
def farm_with_blender(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A running `farm up` whose node was given a Blender while it ran."""
    given = tmp_path_factory.mktemp("blenders")
    up = Up(tmp_path_factory.mktemp("farm"), {"FARM_BLENDER_HOME": str(given)})
    try:
        up.start()
        name = f"bpy-{installation.LTS}"
        with up.client() as client:
            assert {tuple(slot.device["blender"]) for slot in client.slots()} == {()}
            (given / name).symlink_to(home / name)
            until(lambda: all(slot.device["blender"] == [installation.LTS] for slot in client.slots()))
        yield up
    finally:
        up.stop()


def farm(up: Up, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `farm` command against ``up``."""
    return subprocess.run(
        [sys.executable, "-m", "api.cli.main", *arguments],
        env=environment(up.folder), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_a_blend_becomes_frames_and_a_film(farm_with_blender: Up, blends: Path, tmp_path: Path) -> None:
    done = farm(
        farm_with_blender,
        "submit",
        str(blends / "linked.blend"),
        "--film",
        "mp4",
        "--watch",
        "-o",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.glob("linked-*")
    names = sorted(path.name for path in (folder / "render").iterdir())
    # the file's own frames
    assert names == [f"beauty.{number:04d}.png" for number in range(1, 6)]
    assert (folder / "film.mp4").stat().st_size > 0


def test_a_refused_file_shows_its_findings(farm_with_blender: Up, blends: Path, browser: Browser) -> None:
    done = farm(farm_with_blender, "submit", str(blends / "missing_image.blend"), "--watch")
    assert done.returncode == 3
    assert "not found, and not sent" in done.stderr
    assert "image 'tex' is missing: '//tex/none.png'" in done.stdout + done.stderr
    job_id = done.stdout.split()[0]
    guarded = Guarded(browser, farm_with_blender)
    sign_in(guarded.page, farm_with_blender)
    guarded.page.goto(f"{farm_with_blender.url}/jobs/{job_id}")
    panel = guarded.page.locator("#preflight")
    expect(panel).to_contain_text("Blender 4.5")
    expect(panel).to_contain_text("1 error")
    expect(panel.locator(".findings li")).to_have_count(1)
    expect(panel.locator(".findings")).to_contain_text("image 'tex' is missing: '//tex/none.png'")
    expect(panel).to_contain_text("cameras Shot (active)")
    guarded.context.close()
    assert guarded.troubles == []


def test_progress_inside_a_frame_stands_on_the_page(
    farm_with_blender: Up, blends: Path, browser: Browser
) -> None:
    options = ("--frames", "1-3", "--samples", "100000", "--size", "96x72")
    done = farm(farm_with_blender, "submit", str(blends / "plain.blend"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    job_id = done.stdout.split()[0]
    guarded = Guarded(browser, farm_with_blender)
    sign_in(guarded.page, farm_with_blender)
    guarded.page.goto(f"{farm_with_blender.url}/jobs/{job_id}")
    # one frame is in work for minutes: what moves is inside it
    running = guarded.page.locator("#running li")
    expect(running).to_contain_text("canary")
    expect(running.locator(".how")).to_have_text(re.compile(r"^(0\.[1-9]|[1-9]\d*\.\d) %$"))
    words = "import('/static/js/parts/running.js').then((m) => m.progressOf({progress: %s, frames: %s}))"
    # five frames, half of the work: in the middle of the third
    assert guarded.page.evaluate(words % (0.5, "'1-9:2'")) == "frame 3 of 5, 50.0 % of it"
    assert guarded.page.evaluate(words % (1, "'-2-0,7'")) == "frame 4 of 4, 99.9 % of it"
    assert farm(farm_with_blender, "cancel", job_id).returncode == 0
    expect(guarded.page.locator("#running li")).to_have_count(0)
    guarded.context.close()
    assert guarded.troubles == []
