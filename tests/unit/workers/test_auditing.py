"""What the auditor tells of GPUs, from NVML's answers for a recorded machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_pinning import Fence, Wishes, make_plan
from tests.unit.gpu_pinning.trees import RecordedNvml, recorded
from workers import auditing
from workers.auditing import Auditor, News, Subject
from workers.gpu_look import GpuLook
from workers.node_config import NodeConfig
from workers.placement import Seating, device_of

GIB = 1 << 30
MACHINE = recorded("permuted-minors")
WISHES = Wishes.parse('[[slots]]\nname = "g"\npools = ["video"]\ngpus = 1\ncount = 2')
SEATING = Seating(NodeConfig(WISHES), MACHINE, make_plan(MACHINE, WISHES))
SEAT = SEATING.plan.slot("g-0")
GPU = SEAT.gpus[0]


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


class Watched:
    """An auditor of one GPU slot whose process is said to be ``pid``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nvml = RecordedNvml(MACHINE)
        # no process of ours stands behind this fence: what it says of members is the test's
        fence = Fence.create(MACHINE, SEAT, folder)
        monkeypatch.setattr(fence, "pids", lambda pid=None: [] if pid is None else [pid])
        self.subject = Subject("slot", fence, None, True)
        self.heard: list[News] = []
        self.auditor = Auditor(lambda: SEATING, lambda: [self.subject], lambda: None, 0.05, self.nvml)

    def hear(self, fits: Callable[[News], Any]) -> News:
        def look() -> News | None:
            self.heard += self.auditor.take_news()
            return next((news for news in self.heard if fits(news)), None)

        news: News = until(look)
        return news


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(auditing, "_LOOK_S", 0.02)
    monkeypatch.setattr(auditing, "_STUCK_S", 0.1)
    made = Watched(tmp_path, monkeypatch)
    made.auditor.expect_free("slot", SEAT)
    yield made
    made.auditor.stop()


def test_a_free_gpu_may_be_leased_at_once(watched: Watched) -> None:
    watched.auditor.start()
    watched.hear(lambda news: news.freed)
    assert watched.auditor.why_wait("slot") is None


def test_video_memory_that_a_stranger_holds_is_told_and_keeps_the_slot_from_starting(
    watched: Watched,
) -> None:
    watched.nvml.running = {GPU: [(4711, "compute", 2 * GIB)]}
    watched.nvml.used = {GPU: 2 * GIB}
    watched.auditor.start()
    news = watched.hear(lambda news: news.stuck)
    assert news.stuck == (f"{GPU} is held by compute process 4711", 2 * GIB)
    assert "4711" in str(watched.auditor.why_wait("slot"))
    watched.nvml.running, watched.nvml.used = {}, {}
    watched.hear(lambda news: news.freed)
    assert watched.auditor.why_wait("slot") is None


def test_a_gpu_that_fell_off_the_bus_is_named_and_its_slot_waits_until_it_is_back(watched: Watched) -> None:
    watched.nvml.lost = {GPU}
    watched.auditor.start()
    news = watched.hear(lambda news: news.findings)
    assert [(row.kind, row.drains, row.found) for row in news.findings or ()] == [
        ("gpu-lost", True, "GPU is lost")
    ]
    assert (watched.hear(lambda news: news.stuck).stuck or ("", 0))[0] == f"GPU {GPU} is gone: GPU is lost"
    watched.nvml.lost = set()
    watched.hear(lambda news: news.freed)


def test_a_stranger_on_an_idle_slots_gpu_is_told_and_so_is_its_leaving(watched: Watched) -> None:
    watched.subject = Subject("slot", watched.subject.fence, 10, True)
    watched.nvml.running = {GPU: [(10, "compute", GIB), (99, "graphics", GIB)]}
    watched.auditor.start()
    assert watched.hear(lambda news: news.busy).busy == "used by a process (pid 99)"
    watched.nvml.running = {GPU: [(10, "compute", GIB)]}
    watched.hear(lambda news: news.busy == "")


def test_a_slot_looks_at_its_gpu_before_it_claims() -> None:
    nvml = RecordedNvml(MACHINE)
    look = GpuLook(device_of(SEATING, SEAT), nvml)
    assert look.why_busy() is None
    nvml.running = {GPU: [(99, "compute", GIB)]}
    assert look.why_busy() == "used by a process (pid 99)"
    nvml.running, nvml.used = {}, {GPU: MACHINE.gpu(GPU).memory_bytes // 2}
    assert look.why_busy() == "50% of its memory is in use by processes that are not listed here"
    look.close()


def test_a_cpu_slot_has_nothing_to_look_at() -> None:
    assert GpuLook({"kind": "cpu", "threads": 2}, nvml_module=object()).why_busy() is None
