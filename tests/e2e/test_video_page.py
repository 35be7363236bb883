"""A video job in the browser: prompt, settings, a picture while it denoises, its middle frame once done."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from api.cli.running.children import farm_command
from tests.e2e.farms import Up, environment
from tests.e2e.test_dashboard import WAIT_MS, Guarded, sign_in

pytest.importorskip("diffusers", reason="needs stillframe[video]")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def guarded(browser: Browser, farm_up: Up) -> Iterator[Guarded]:
    """A signed-in page that may report no trouble."""
    one = Guarded(browser, farm_up)
    sign_in(one.page, farm_up)
    yield one
    one.context.close()
    assert one.troubles == []


def farm(up: Up, *words: str) -> str:
    """A `farm` command against the running farm; what it printed."""
    env = environment(up.folder) | {"FARM_URL": up.url, "FARM_KEY": up.key}
    done = subprocess.run(
        farm_command(*words), env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_sample_is_seen_while_it_is_made_and_when_it_is_done(guarded: Guarded, farm_up: Up) -> None:
    page = guarded.page
    page.goto("/submit/video")
    expect(page.get_by_text("No model yet")).to_be_visible()
    from tests.kinds.tiny_pipelines import folder

    farm(farm_up, "models", "add", "tiny-wan", str(folder("wan")))
    words = (
        "submit",
        "video",
        "a red cat runs <b>",
        "--model",
        "tiny-wan",
        "--size",
        "64x64",
        "--frames",
        "5",
    )
    endless = farm(farm_up, *words, "--seed", "3", "--set", "steps=1000", "--set", "negative_prompt=blurry")
    page.goto(f"/jobs/{endless}")
    video = page.locator("#video")
    expect(video.locator(".prompt")).to_contain_text("a red cat runs <b>")
    expect(video.locator(".prompt")).to_contain_text("not: blurry")
    for chip in ("model tiny-wan", "size 64\u00d764", "frames 5", "steps 1000"):
        expect(video.locator(".chip", has_text=chip)).to_be_visible()
    still = page.get_by_role("img", name="Preview of seed 3")
    expect(still).to_be_visible(timeout=WAIT_MS)
    assert still.evaluate("image => image.naturalWidth") > 0
    farm(farm_up, "cancel", endless)
    expect(page.locator(".overall .state")).to_have_text("cancelled")

    quick = farm(farm_up, *words, "--seed", "3", "--set", "steps=2", "--film", "mp4", "--film", "mkv")
    page.goto(f"/jobs/{quick}")
    expect(page.get_by_role("img", name="Frame 3 of seed 3")).to_be_visible()
    expect(page.locator(".overall .state")).to_have_text("done")
    page.get_by_role("tab", name="Film").click()
    # the MP4 plays, the lossless master is a file to fetch
    expect(page.locator("video")).to_have_count(1)
    expect(page.locator(".files li", has_text="film.mkv")).to_be_visible()

    guarded.allowed = re.compile("422")
    page.goto("/submit")
    page.get_by_role("link", name="Video").click()
    expect(page.get_by_label("Model")).to_have_value("tiny-wan")
    # an image model's inputs are not offered for this one
    expect(page.get_by_label("First picture")).to_be_hidden()
    expect(page.get_by_label("Video to make over")).to_be_visible()
    page.get_by_label("Prompt").fill("a blue dog")
    page.get_by_label("Size").fill("65x64")
    frames = page.get_by_label("Frames")
    frames.fill("6")
    page.get_by_label("Steps").fill("2")
    page.get_by_label("Seeds").fill("4, 5")
    page.get_by_role("button", name="Submit job").click()
    expect(frames).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".wrong", has_text="nearest: 5 and 9")).to_be_visible()
    expect(page.locator(".wrong", has_text="nearest: 64x64 and 80x64")).to_be_visible()
    page.get_by_label("Size").fill("64x64")
    frames.fill("5")
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(re.compile("/jobs/job_"))
    expect(page.get_by_role("heading", name="a blue dog")).to_be_visible()
    expect(page.locator(".overall .state")).to_have_text("done")
    expect(page.get_by_role("img", name="Frame 3 of seed 5")).to_be_visible()
