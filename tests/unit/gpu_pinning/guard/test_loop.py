"""The loop: neighbours combined, events with their curves, and a real server that the farm disturbs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from gpu_pinning.guard.decide import Policy, Rung
from gpu_pinning.guard.loop import FarmLoad, GuardEvent, GuardLoop, Hold, same_gpu
from gpu_pinning.guard.watch import Subject, Watch
from tests.unit.gpu_pinning.guard.decode_server import DecodeServer
from tests.unit.gpu_pinning.guard.test_watch import ScriptedPages, ScriptedProbe


class Hands:
    def __init__(self) -> None:
        self.holds: list[Hold] = []

    def hold(self, hold: Hold) -> None:
        self.holds.append(hold)


class Scene:
    """A loop over scripted neighbours with budgets of 12 ms."""

    def __init__(self, *names: str, gpus: tuple[str, ...] = (), load: FarmLoad | None = None) -> None:
        self.now = 0.0
        self.probes = {name: ScriptedProbe() for name in names}
        self.pages = {name: ScriptedPages() for name in names}
        watches = [
            Watch(
                Subject(name, url="http://127.0.0.1:1", gpus=gpus, budget_ms=12.0),
                None,
                probe=lambda name=name: self.probes[name],
                pages=self.pages[name],
            )
            for name in names
        ]
        self.hands = Hands()
        self.events: list[GuardEvent] = []
        self.load = load or FarmLoad(busy=True)
        self.loop = GuardLoop(
            watches, self.hands, lambda: self.load, self.events.append, clock=lambda: self.now
        )

    def turn(self, window_s: float = 0.25, **latency_s: float) -> Hold:
        from gpu_pinning.guard.probe import Gap

        begin, self.now = self.now, self.now + window_s
        for name, seconds in latency_s.items():
            self.probes[name].gaps = [Gap(self.now, seconds)] * 25
            self.probes[name].token_at = self.now
        return self.loop.turn(begin, self.now)


def test_the_harshest_hold_of_all_neighbours_stands() -> None:
    scene = Scene("calm", "hurt")
    for _ in range(12):
        hold = scene.turn(calm=0.01, hurt=0.05)
    assert hold.rung is Rung.PAUSE
    assert hold.reason.startswith("guard: hurt: ") and "over budget" in hold.reason
    assert [h.rung for h in scene.hands.holds] == [Rung.NO_NEW_WORK, Rung.SLOW_HOST, Rung.PAUSE]


def test_a_breach_on_a_shared_gpu_freezes_in_its_first_window() -> None:
    load = FarmLoad(True, frozenset({"GPU-aaaa-1", "0000:01:00.0"}))
    scene = Scene("llm", gpus=("GPU-aaaa",), load=load)
    scene.turn(llm=0.01)
    scene.turn(llm=0.01)
    hold = scene.turn(llm=0.03)
    assert hold.frozen == {"llm"} and hold.rung is Rung.NO_NEW_WORK
    other = Scene("llm", gpus=("GPU-bbbb",), load=load)
    other.turn(llm=0.01)
    assert not other.turn(llm=0.03).frozen


def test_windows_are_short_while_work_moves_on_the_neighbours_gpu() -> None:
    load = FarmLoad(True, frozenset({"GPU-aaaa-1"}))
    scene = Scene("llm", gpus=("GPU-aaaa",), load=load)
    assert scene.loop.pace_s() == 0.05
    scene.load = FarmLoad(True, frozenset({"GPU-cccc-1"}))
    assert scene.loop.pace_s() == 0.25, "another GPU"
    scene.load = load
    for _ in range(4):
        scene.turn(llm=0.03)
    assert scene.loop.hold.frozen and scene.loop.pace_s() == 0.25, "what is frozen does not move"


def test_the_curve_keeps_its_step_through_short_windows() -> None:
    scene = Scene("llm", gpus=("GPU-aaaa",))
    watch = scene.loop._guarded[0].watch
    for _ in range(20):
        scene.turn(0.05, llm=0.01)
    assert [round(point.at, 2) for point in watch.curve] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert {point.steps for point in watch.curve} == {100}


def test_the_loops_thread_stays_on_the_cpus_that_it_is_given() -> None:
    import os

    cpu = max(os.sched_getaffinity(0))
    seen: list[set[int]] = []

    def load() -> FarmLoad:
        seen.append(os.sched_getaffinity(0))
        return FarmLoad()

    loop = GuardLoop([], Hands(), load, lambda event: None, cpus=[cpu])
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        _until(lambda: seen, "the loop has turned")
    finally:
        stop.set()
        thread.join(10)
    assert seen[0] == {cpu}


def test_events_carry_the_curve_around_them() -> None:
    scene = Scene("llm")
    for _ in range(8):
        scene.turn(llm=0.01)
    scene.turn(llm=0.05)
    assert scene.events == [], "the two seconds after it are still to come"
    for _ in range(8):
        scene.turn(llm=0.05)
    event = scene.events[0]
    assert (event.kind, event.rung, event.at) == ("climb", Rung.NO_NEW_WORK, 2.25)
    assert [point.at for point in event.curve] == [0.25 * n for n in range(1, 18)]
    assert event.curve[7].p50 == 0.01 and event.curve[8].p50 == 0.05
    assert "2.0% allowed" in event.reason


def test_the_whole_way_up_and_down_again() -> None:
    scene = Scene("llm")
    for _ in range(10):
        scene.turn(llm=0.05)
    for _ in range(120):
        hold = scene.turn(llm=0.01)
    assert hold == Hold() and scene.hands.holds[-1] == Hold()
    kinds = [event.kind for event in scene.events]
    assert kinds.count("climb") == 3 and kinds.count("let_go") >= 1


@pytest.mark.parametrize(
    ("named", "known", "same"),
    [
        ("GPU-5a1f", "GPU-5a1f7c1e-0000", True),
        ("GPU-5a1f", "GPU-6a1f7c1e-0000", False),
        ("0000:3b:00.0", "0000:3B:00.0", True),
        ("3b:00.0", "0000:3b:00.0", True),
        ("3b:00.0", "0000:3c:00.0", False),
        ("3b:00.0", "GPU-5a1f7c1e-0000", False),
    ],
)
def test_gpus_are_compared_by_uuid_or_address(named: str, known: str, same: bool) -> None:
    assert same_gpu(named, known) is same


def test_a_real_server_is_learnt_guarded_and_let_go(tmp_path: Path) -> None:
    """Learn while quiet; work makes steps longer; the hold stops it; the breach ends; all is let go."""
    server = DecodeServer().start()
    working = threading.Event()
    hands, events = Hands(), []
    subject = Subject("llm", url=server.url)
    watch = Watch.of(subject, tmp_path)
    # a shared machine: only gross harm is to count here
    watch.budgets.margin = 4.0  # type: ignore[union-attr]
    policy = Policy(allowed_share=0.2, dwell=1.0, climb_after=(0.0, 0.25, 0.25, 60.0, 60.0))
    loop = GuardLoop([watch], hands, lambda: FarmLoad(busy=working.is_set()), events.append, policy=policy)
    stop = threading.Event()
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        _until(lambda: watch.budgets.at(2) is not None, "the baseline is learnt")
        working.set()
        _until(lambda: loop.hold == Hold(), "work may start")
        server.interval_s = 0.25
        _until(lambda: loop.hold.rung >= Rung.PAUSE, "the farm is paused")
        server.interval_s = 0.01
        _until(lambda: loop.hold == Hold(), "the farm is let go")
        _until(lambda: any(event.kind == "let_go" for event in events), "it is on record")
        shown = loop.describe()[0]
        assert shown["server"] == "vllm" and shown["curve"] and shown["rung"] == "free"
    finally:
        stop.set()
        thread.join(10)
        server.stop()
    assert (tmp_path / "baseline-llm.json").exists()
    assert hands.holds[-1] == Hold()


def _until(condition: object, what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)
