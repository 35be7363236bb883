"""The dashboard in a real browser, on a real farm that renders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from farm.client.models import Job
from tests.e2e.farms import SCENE, SPEC, Up, until

pytestmark = pytest.mark.timeout(900)

WAIT_MS = 180_000
expect.set_options(timeout=WAIT_MS)


class Guarded:
    """A page that fails its test when it reports an error, breaks its policy, or asks another origin."""

    def __init__(self, browser: Browser, up: Up, **options: Any) -> None:
        self.context = browser.new_context(base_url=up.url, **options)
        self.context.set_default_timeout(WAIT_MS)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.allowed = re.compile(r"^$")
        self.page.on("pageerror", lambda error: self.troubles.append(f"page error: {error}"))
        self.page.on("console", self._console)
        self.page.on("request", lambda r: self._request(r.url, up.url))

    def _console(self, message: Any) -> None:
        if message.type == "error" and not self.allowed.search(message.text):
            self.troubles.append(message.text)

    def _request(self, url: str, base: str) -> None:
        if not url.startswith((base + "/", "data:", "blob:")):
            self.troubles.append(f"asked another origin: {url}")
        if "sfk_" in url:
            self.troubles.append("a key stands in a URL")


@pytest.fixture
def guarded(browser: Browser, farm_up: Up) -> Iterator[Guarded]:
    """A guarded page, not signed in."""
    one = Guarded(browser, farm_up)
    yield one
    one.context.close()
    assert one.troubles == []


@pytest.fixture
def page(guarded: Guarded, farm_up: Up) -> Page:
    """A guarded page, signed in, at the job list."""
    sign_in(guarded.page, farm_up)
    return guarded.page


def sign_in(page: Page, up: Up) -> None:
    page.goto("/signin")
    page.get_by_label("Key").fill(up.key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/jobs")


def submit(up: Up, folder: Path, name: str, *, paused: bool = False, **spec: Any) -> Job:
    (folder / "scene.xml").write_text(SCENE)
    with up.client() as farm:
        assets = farm.upload({"scene.xml": folder / "scene.xml"})
        return farm.submit(
            name=name, kind="render", project="default", spec={**SPEC, **spec}, assets=assets, paused=paused
        )


def test_a_key_is_asked_for_once_and_kept_nowhere(guarded: Guarded, farm_up: Up) -> None:
    guarded.allowed = re.compile("401")
    page = guarded.page
    page.goto("/buffers")
    page.wait_for_url("**/signin?next=%2Fbuffers")
    page.get_by_label("Key").fill("sfk_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not know that key")
    page.get_by_label("Key").fill(farm_up.key)
    page.keyboard.press("Enter")
    page.wait_for_url("**/buffers")
    [cookie] = guarded.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    assert kept == '[{},{},""]'
    assert farm_up.key not in page.content()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/signin")
    page.goto("/jobs")
    page.wait_for_url("**/signin?next=%2Fjobs")


def test_sign_in_never_leads_to_another_site(guarded: Guarded, farm_up: Up) -> None:
    page = guarded.page
    page.goto("/signin?next=//evil.example/jobs")
    page.get_by_label("Key").fill(farm_up.key)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(re.escape(farm_up.url) + "/jobs$"))


def test_a_job_appears_fills_and_ends_without_a_reload(page: Page, farm_up: Up, tmp_path: Path) -> None:
    expect(page.get_by_role("status").first).to_have_text("Live")
    job = submit(farm_up, tmp_path, "live orbit", film={"formats": ["mp4"]})
    row = page.get_by_role("row").filter(has_text="live orbit")
    expect(row).to_be_visible()
    row.get_by_role("link", name="live orbit").click()
    page.wait_for_url(f"**/jobs/{job.id}")
    expect(page.get_by_role("heading", name="live orbit")).to_be_visible()
    expect(page.locator(".cell")).to_have_count(4)
    expect(page.locator(".cell[data-state=published] img.here")).to_have_count(4)
    expect(page.locator(".overall .state")).to_have_text("done")

    page.get_by_role("button", name="Frame 2, finished").click()
    viewer = page.get_by_role("dialog")
    expect(viewer).to_contain_text("Frame 2")
    page.keyboard.press("ArrowRight")
    expect(viewer).to_contain_text("Frame 3")
    expect(viewer.get_by_role("img")).to_have_js_property("naturalWidth", 64)
    page.keyboard.press("Escape")
    expect(viewer).to_have_count(0)

    page.get_by_role("tab", name="Film").click()
    expect(page.locator("video")).to_have_js_property("videoWidth", 64)
    page.get_by_role("tab", name="Attempts").click()
    expect(page.get_by_role("cell", name="done").first).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Log")).to_have_attribute("aria-selected", "true")
    expect(page.locator("sf-log select")).to_be_visible()
    page.get_by_role("tab", name="Spec").click()
    expect(page.locator("pre").last).to_contain_text('"resolution"')


def test_five_thousand_frames_are_never_all_in_the_page(page: Page, farm_up: Up, tmp_path: Path) -> None:
    job = submit(farm_up, tmp_path, "long shot", paused=True, frames="1-5000", chunk_frames=500)
    page.goto(f"/jobs/{job.id}")
    expect(page.locator(".cell b").first).to_have_text("1")
    height = page.locator(".stage").evaluate("stage => stage.offsetHeight")
    assert height > 20_000
    assert page.locator(".cell").count() < 150
    page.get_by_label("Go to frame number").fill("4990")
    page.keyboard.press("Enter")
    cell = page.locator(".cell").filter(has=page.locator("b", has_text=re.compile("^4990$")))
    expect(cell).to_be_in_viewport()
    assert page.locator(".cell").count() < 150
    with farm_up.client() as farm:
        farm.cancel(job.id)


def test_a_job_is_commanded_from_its_page(page: Page, farm_up: Up, tmp_path: Path) -> None:
    job = submit(farm_up, tmp_path, "to command", paused=True)
    page.goto(f"/jobs/{job.id}")
    expect(page.locator(".overall .state")).to_have_text("paused")
    priority = page.get_by_label("Priority")
    priority.fill("77")
    priority.press("Enter")
    with farm_up.client() as farm:
        until(lambda: farm.job(job.id).priority == 77)
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Keep it").click()
        assert farm.job(job.id).state == "waiting"
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Cancel the job").click()
        expect(page.locator(".overall .state")).to_have_text("cancelled")
        assert farm.job(job.id).state == "cancelled"
        page.get_by_role("button", name="Delete", exact=True).click()
        page.get_by_role("button", name="Delete the job").click()
        page.wait_for_url("**/jobs")
    expect(page.get_by_role("link", name="to command")).to_have_count(0)


def test_a_name_is_text_whatever_it_looks_like(page: Page, farm_up: Up, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    job = submit(farm_up, tmp_path, name, paused=True)
    page.goto("/jobs")
    expect(page.get_by_role("link", name=name)).to_be_visible()
    page.goto(f"/jobs/{job.id}")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    with farm_up.client() as farm:
        farm.cancel(job.id)


def test_the_list_is_filtered_and_says_when_nothing_matches(page: Page, farm_up: Up, tmp_path: Path) -> None:
    job = submit(farm_up, tmp_path, "needle", paused=True)
    page.get_by_placeholder("Name").fill("needle")
    expect(page.locator("#rows tr")).to_have_count(1)
    page.get_by_role("radio", name="Failed").check()
    expect(page.get_by_text("No job matches")).to_be_visible()
    assert "state=failed" in page.url
    with farm_up.client() as farm:
        farm.cancel(job.id)


def test_a_scene_is_submitted_from_the_page_and_bad_fields_are_marked(
    guarded: Guarded, farm_up: Up, tmp_path: Path
) -> None:
    guarded.allowed = re.compile("422")
    page = guarded.page
    sign_in(page, farm_up)
    page.goto("/submit")
    page.get_by_role("button", name="Submit job").click()
    expect(page.get_by_role("alert")).to_have_text("Choose a scene first.")
    (tmp_path / "ball.xml").write_text(SCENE)
    page.locator("#files").set_input_files(tmp_path / "ball.xml")
    expect(page.get_by_label("Name", exact=True)).to_have_value("ball")
    frames = page.get_by_label("Frames", exact=False).first
    frames.fill("5-1")
    page.get_by_label("Resolution").fill("64x36")
    page.get_by_label("Samples per pixel").fill("2")
    page.get_by_role("button", name="Submit job").click()
    expect(frames).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".wrong")).to_contain_text("5-1")
    frames.fill("1-2")
    page.get_by_role("button", name="Submit job").click()
    page.wait_for_url(re.compile("/jobs/job_"))
    expect(page.locator(".overall .state")).to_have_text("done")


def test_time_left_is_the_farms_own_estimate(page: Page) -> None:
    page.goto("/jobs")
    shown = page.evaluate(
        """async (jobs) => {
            const script = document.querySelector("script[type=module][src]").src;
            const { secondsLeft } = await import(new URL("/static/js/work.js", script).href);
            return jobs.map(secondsLeft);
        }""",
        [
            {"state": "running", "eta_s": 7200.0, "frames_total": 10, "frames_done": 9, **_begun()},
            {"state": "running", "eta_s": None, "frames_total": 10, "frames_done": 9, **_begun()},
            {"state": "running", "eta_s": 60.0, "paused": True, **_begun()},
            {"state": "done", "eta_s": 60.0, **_begun()},
        ],
    )
    assert shown == [7200.0, None, None, None]


def _begun() -> dict[str, Any]:
    return {"started_at": "2026-01-01T00:00:00Z", "tasks": {"done": 0, "ready": 1}}


def test_machines_and_buffers_are_shown(page: Page) -> None:
    page.goto("/machines")
    expect(page.get_by_role("cell", name="cpu-0")).to_be_visible()
    expect(page.locator(".seat").first).to_contain_text("cores")
    expect(page.get_by_role("heading", level=2)).to_have_count(1)
    page.goto("/buffers")
    expect(page.get_by_text("Spool").first).to_be_visible()
    expect(page.get_by_role("progressbar").first).to_be_visible()


def test_an_unknown_job_is_said_to_be_unknown(guarded: Guarded, farm_up: Up) -> None:
    guarded.allowed = re.compile("404")
    sign_in(guarded.page, farm_up)
    guarded.page.goto("/jobs/job_00000000000000000000000000000000")
    expect(guarded.page.get_by_text("There is no such job")).to_be_visible()
    # nothing here is alive: it does not say for ever that it connects
    expect(guarded.page.locator("#live")).to_be_hidden()


def test_a_job_without_a_film_has_no_tab_for_one_and_a_job_nobody_can_run_says_so(
    page: Page, farm_up: Up, tmp_path: Path
) -> None:
    job = submit(farm_up, tmp_path, "for a gpu", device="cuda", frames="15")
    page.goto(f"/jobs/{job.id}")
    expect(page.get_by_role("tab", name="Frames")).to_be_visible()
    expect(page.get_by_role("tab", name="Film")).to_have_count(0)
    expect(page.locator("#why")).to_contain_text("device = 'cuda'")
    expect(page.locator("#why")).not_to_contain_text("`")
    with farm_up.client() as farm:
        farm.cancel(job.id)


def test_every_page_fits_a_phone(browser: Browser, farm_up: Up, tmp_path: Path) -> None:
    job = submit(
        farm_up, tmp_path, "on a phone, with a rather long name_that_does_not_break_anywhere", paused=True
    )
    phone = Guarded(browser, farm_up, viewport={"width": 360, "height": 740})
    sign_in(phone.page, farm_up)
    for path in (
        "/jobs",
        f"/jobs/{job.id}",
        f"/jobs/{job.id}#spec",
        "/machines",
        "/buffers",
        "/submit",
        "/submit/video",
    ):
        phone.page.goto("about:blank")
        phone.page.goto(farm_up.url + path)
        phone.page.wait_for_selector("[aria-busy=true]", state="detached")
        width = phone.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, f"{path} is {width} pixels wide"
    phone.page.goto(farm_up.url + "/machines")
    slot = phone.page.get_by_role("cell", name="cpu-0")
    expect(slot).to_be_visible()
    for cell in slot.locator("xpath=..").locator("td:visible").all():
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] >= 0, "a slot is shown whole"
        assert box["x"] + box["width"] <= 360, "a slot is shown whole"
    phone.page.get_by_role("button", name="Sign out").click()
    phone.page.wait_for_url("**/signin")
    phone.context.close()
    assert phone.troubles == []
    with farm_up.client() as farm:
        farm.cancel(job.id)


def test_pages_carry_a_strict_policy_and_no_inline_script_or_style(page: Page) -> None:
    for path in ("/signin", "/jobs", "/machines", "/buffers", "/submit", "/submit/video", "/jobs/job_1"):
        answer = page.request.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "script-src 'self'" in policy or "default-src 'self'" in policy
        text = answer.text()
        assert re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text) is None
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
