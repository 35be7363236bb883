"""One neighbour's watch: conditions, stalls, learning and what is kept, on scripted probes and pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_pinning.guard.fetch import PageReader, PageTrouble, Reading, fetch
from gpu_pinning.guard.probe import Gap
from gpu_pinning.guard.servers import Histogram, Page, Server
from gpu_pinning.guard.watch import STALL_STEPS, Subject, Watch, served_model
from gpu_pinning.guard.windows import Condition, Window
from tests.unit.gpu_pinning.guard.decode_server import DecodeServer


class ScriptedProbe:
    """A probe that says what the test tells it to."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.refused = False
        self.token_at: float | None = None
        self.started_at = 0.0
        self.gaps: list[Gap] = []
        self.stopped = False

    def start(self) -> None:
        return

    def stop(self) -> None:
        self.stopped = True

    def take(self) -> list[Gap]:
        taken, self.gaps = self.gaps, []
        return taken


class ScriptedPages:
    reading: Reading | None = None

    def start(self) -> None:
        return

    def stop(self) -> None:
        return


class Scene:
    """A watch with its script, and a clock of quarter seconds."""

    def __init__(self, folder: Path | None = None, **subject: object) -> None:
        self.probe = ScriptedProbe()
        self.pages = ScriptedPages()
        self.made = 0
        self.up = True
        self.now = 100.0
        told = Subject("llm", url="http://127.0.0.1:1", **subject)  # type: ignore[arg-type]
        self.watch = Watch(told, folder, probe=self._make, pages=self.pages)

    def _make(self) -> ScriptedProbe:
        self.made += 1
        self.probe.started_at = self.now
        return self.probe

    def page(self, running: float, **more: object) -> None:
        self.pages.reading = Reading(self.now, Page(Server.VLLM, running=running, **more))  # type: ignore[arg-type]

    def tokens(self, count: int, seconds: float) -> None:
        self.probe.gaps += [Gap(self.now, seconds)] * count
        self.probe.token_at = self.now

    def turn(self, *, quiet: bool = False, needed: bool = True) -> Window:
        window = self.watch.window(self.now - 0.25, self.now, quiet=quiet, needed=needed)
        self.now += 0.25
        return window


def test_steps_over_a_fixed_budget_are_counted() -> None:
    scene = Scene(budget_ms=12.0)
    scene.turn()
    scene.page(5)
    scene.tokens(20, 0.010)
    scene.tokens(3, 0.013)
    window = scene.turn()
    assert (window.condition, window.steps, window.over, window.running) == (Condition.SERVING, 23, 3, 5)


def test_a_neighbour_that_decodes_for_our_probe_alone_is_idle() -> None:
    scene = Scene(budget_ms=12.0)
    scene.turn()
    scene.page(1)
    scene.tokens(20, 0.5)
    window = scene.turn()
    assert (window.condition, window.over) == (Condition.IDLE, 0)
    scene.page(1, waiting=2.0)
    scene.tokens(20, 0.5)
    assert scene.turn().condition is Condition.SERVING


def test_a_stream_that_stands_still_is_a_breach_before_the_late_token_comes() -> None:
    scene = Scene(budget_ms=12.0)
    scene.turn()
    scene.page(4)
    scene.tokens(20, 0.010)
    assert scene.turn().over == 0
    scene.now += 0.3
    window = scene.turn()
    assert (window.steps, window.over) == (STALL_STEPS, STALL_STEPS)


def test_refused_is_stopped_and_silence_after_serving_is_lost() -> None:
    scene = Scene(budget_ms=12.0)
    scene.turn()
    scene.tokens(5, 0.01)
    assert scene.turn().condition is Condition.SERVING
    scene.probe.token_at = None
    scene.probe.error = "timed out"
    scene.pages.reading = Reading(scene.now, None, "failed", "timed out")
    assert scene.turn().condition is Condition.LOST
    scene.probe.refused = True
    assert scene.turn().condition is Condition.STOPPED


def test_between_two_streams_a_neighbour_is_not_lost_until_the_first_token_is_long_overdue() -> None:
    scene = Scene(budget_ms=12.0)
    scene.turn()
    scene.now += 60
    scene.tokens(5, 0.01)
    assert scene.turn().condition is Condition.SERVING
    # asked again: nothing wrong, no token yet, and neither a page nor steps on it to go by
    scene.probe.token_at = None
    for _ in range(19):
        window = scene.turn()
        assert (window.condition, window.steps) == (Condition.SERVING, 0)
    assert scene.turn().condition is Condition.LOST, "five seconds"


def test_a_server_that_has_never_answered_is_starting_not_lost() -> None:
    scene = Scene(budget_ms=12.0)
    scene.pages.reading = Reading(scene.now, None, "failed", "503")
    scene.probe.error = "503"
    assert scene.turn().condition is Condition.STARTING


def test_our_own_command_tells_starting_from_stopped() -> None:
    subject = Subject("llm", url="http://127.0.0.1:1")
    alive = [True]
    pages = ScriptedPages()
    pages.reading = Reading(0.0, None, "refused", "nobody listens")
    watch = Watch(subject, None, pages=pages, alive=lambda: alive[0])
    assert watch.window(0, 0.25, quiet=False, needed=True).condition is Condition.STARTING
    alive[0] = False
    assert watch.window(0.25, 0.5, quiet=False, needed=True).condition is Condition.STOPPED


def test_a_page_that_is_lost_does_not_matter_while_tokens_come() -> None:
    scene = Scene(budget_ms=12.0)
    scene.turn()
    scene.page(4)
    scene.tokens(5, 0.01)
    scene.turn()
    scene.pages.reading = Reading(scene.now, None, "failed", "timed out")
    scene.tokens(5, 0.01)
    window = scene.turn()
    assert (window.condition, window.running) == (Condition.SERVING, 4)


def test_without_a_stream_the_histogram_counts_what_is_over_for_certain() -> None:
    scene = Scene(budget_ms=30.0)
    scene.turn()
    scene.probe.error = "403"
    scene.now += 11
    bounds = (0.01, 0.05, 0.1, float("inf"))
    scene.page(4, steps=Histogram("itl", bounds, (100, 100, 100, 100), 1.0))
    scene.turn()
    # 50 more: 20 up to 10 ms, 20 up to 50 ms (which may be under 30), 10 up to 100 ms
    scene.page(4, steps=Histogram("itl", bounds, (120, 140, 150, 150), 3.0))
    window = scene.turn()
    assert (window.condition, window.steps, window.over) == (Condition.SERVING, 50, 10)


def test_it_learns_only_while_the_farm_is_quiet_and_stops_asking_when_it_knows_enough() -> None:
    scene = Scene()
    scene.page(4)
    for _ in range(30):
        scene.page(4)
        scene.tokens(50, 0.02)
        scene.turn(quiet=False)
    assert scene.watch.budgets.at(4) is None
    for _ in range(60):
        scene.page(4)
        scene.tokens(50, 0.01)
        scene.turn(quiet=True, needed=False)
    budget = scene.watch.budgets.at(4)
    assert budget is not None and budget.seconds == pytest.approx(0.011)
    assert scene.probe.stopped, "what is known needs no stream while the farm is quiet"


def test_new_work_waits_for_the_baseline_but_not_for_ever() -> None:
    scene = Scene()
    scene.page(4)
    scene.turn()
    scene.page(4)
    scene.tokens(5, 0.01)
    scene.turn()
    assert scene.watch.learning(scene.now)
    assert not scene.watch.learning(scene.now + 31)
    assert not Scene(budget_ms=10.0).watch.learning(100.0)


def test_what_was_learnt_is_kept_for_the_same_server_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path, model="m")
    for _ in range(20):
        scene.page(4)
        scene.tokens(50, 0.01)
        scene.turn(quiet=True)
    scene.watch.stop()
    again = Scene(tmp_path, model="m", budget_ratio=1.5)
    budget = again.watch.budgets.at(4)
    assert budget is not None and budget.seconds == pytest.approx(0.015), "the ratio is today's"
    assert Scene(tmp_path, model="another").watch.budgets.at(4) is None
    (tmp_path / "baseline-llm.json").write_text('{"of"')
    assert Scene(tmp_path, model="m").watch.budgets.at(4) is None


def test_a_prefill_service_is_shown_and_not_judged() -> None:
    assert not Subject("p", role="prefill", url="http://127.0.0.1:1").judged
    assert not Subject("d").judged


def test_what_people_see_is_json() -> None:
    scene = Scene(budget_ms=12.0)
    scene.turn()
    scene.page(4, waiting=1.0, kv_usage=0.5)
    scene.tokens(20, 0.010)
    scene.turn()
    shown = json.loads(json.dumps(scene.watch.describe(scene.now)))
    assert (shown["itl_p50_ms"], shown["budget_ms"], shown["running"], shown["kv_usage"]) == (10, 12, 4, 0.5)


@pytest.fixture
def server() -> Iterator[DecodeServer]:
    running = DecodeServer().start()
    yield running
    running.stop()


def test_a_real_page_is_read_within_bounds(server: DecodeServer) -> None:
    reading = PageReader(server.url).look()
    assert reading.page is not None and reading.page.running == 1 and reading.page.kv_usage == 0.25
    with pytest.raises(PageTrouble) as absent:
        fetch(server.url, "/nothing")
    assert absent.value.kind == "absent"
    with pytest.raises(PageTrouble, match="bytes") as large:
        fetch(server.url, "/metrics", max_bytes=1000)
    assert large.value.kind == "failed"
    with pytest.raises(PageTrouble) as refused:
        fetch("http://127.0.0.1:9", "/metrics")
    assert refused.value.kind == "refused"


def test_the_server_is_asked_for_its_model(server: DecodeServer) -> None:
    assert served_model(server.url) == "tiny"
    assert served_model("http://127.0.0.1:9") is None
