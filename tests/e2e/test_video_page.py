"""A video job in the browser: prompt, settings, a picture while it denoises, its middle frame once done."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from api.cli.running.children import farm_command
from tests.e2e.farms import Up, environment
from tests.e2e.test_dashboard import WAIT_MS, Guarded, sign_in

pytest.importorskip("diffusers", reason="needs stillframe[video]")

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def page(browser: Browser, farm_up: Up) -> Iterator[Page]:
    """A signed-in page that may report no trouble."""
    guarded = Guarded(browser, farm_up)
    sign_in(guarded.page, farm_up)
    yield guarded.page
    guarded.context.close()
    assert guarded.troubles == []


def farm(up: Up, *words: str) -> str:
    """A `farm` command against the running farm; what it printed."""
    env = environment(up.folder) | {"FARM_URL": up.url, "FARM_KEY": up.key}
    done = subprocess.run(
        farm_command(*words), env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_sample_is_seen_while_it_is_made_and_when_it_is_done(page: Page, farm_up: Up) -> None:
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
