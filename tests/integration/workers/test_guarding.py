"""The guard's hands on real processes: slots on a neighbour's GPU are frozen, and let go again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farm.settings import Settings
from gpu_pinning import Topology, Wishes, make_plan, procfs
from gpu_pinning.guard.decide import Rung
from gpu_pinning.guard.loop import FarmLoad, Hold
from workers.guarding import Guarding, guard_cpus
from workers.link import View
from workers.load_turn import LOCK_VARIABLE
from workers.node_config import NodeConfig
from workers.node_folders import NodeFolders
from workers.placement import Seating
from workers.processes import SlotProcess

HGX = Path(__file__).parents[2] / "recorded_machines" / "hgx-8gpu.json"
_PARENT = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"


class Link:
    """What the guard tells the database, in a list."""

    registration = SimpleNamespace(node_id="node_1")

    def __init__(self) -> None:
        self.view = View(slot_states={"slot_a": "busy", "slot_b": "busy"})
        self.told: list[str] = []

    def tell(self, what: str, action: Callable[[Any], object], wake: str | None = None) -> None:
        self.told.append(what)


class Slot:
    """A slot that is on an attempt, with a real process."""

    killed, leaving, kill_at = False, "", None

    def __init__(self, seat: Any, folder: Path) -> None:
        self.seat, self.name, self.slot_id = seat, seat.name, f"slot_{seat.name[-1]}"
        self.process = SlotProcess([sys.executable, "-c", _PARENT], {"PATH": "/usr/bin:/bin"}, folder / "out")

    def present_serial(self) -> int:
        return 7

    def keep_still(self, still: bool) -> None:
        """These processes write to no database."""

    def writes(self) -> bool:
        return False

    def has_begun(self) -> bool:
        """Whether the child is a program of its own: stopped before its exec, it would keep its parent."""
        below = procfs.family(self.process.slot_pid or -1)
        return any(procfs.command(pid)[:1] == ["sleep"] for pid in below)

    def states(self) -> set[str]:
        below = procfs.family(self.process.slot_pid or -1)
        return {state.state for pid in below if (state := procfs.process(pid)) is not None}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[tuple[Guarding, dict[str, Slot], Link]]:
    machine = Topology.load(HGX)
    first, second = machine.gpus[0], machine.gpus[1]
    text = (
        f'name = "n"\n[[neighbours]]\nname = "llm"\ngpus = ["{first.uuid}"]\nurl = "http://127.0.0.1:9"\n'
        f'[[slots]]\nname = "on-a"\npools = ["video"]\ngpus = ["{second.uuid}"]\n'
        '[[slots]]\nname = "cpu-b"\npools = ["render"]\ncores = 2\n'
    )
    wishes = Wishes.parse(text)
    plan = make_plan(machine, wishes)
    seats = {slot.name: slot for slot in plan.slots}
    # a slot with a share of the neighbour's own GPU, as MIG and MPS slots have
    shared = seats["on-a"].model_copy(update={"gpus": (first.uuid,), "pci": (first.pci,)})
    link = Link()
    settings = Settings(data=tmp_path)
    seating = Seating(NodeConfig(wishes), machine, plan)
    guard = Guarding(seating, NodeFolders.of(settings, "n", wishes.paths), link, lambda: None, settings)  # type: ignore[arg-type]
    slots = {"slot_a": Slot(shared, tmp_path), "slot_b": Slot(seats["cpu-b"], tmp_path)}
    guard._slots = slots  # type: ignore[assignment]
    for slot in slots.values():
        _until(lambda slot=slot: slot.has_begun())
    yield guard, slots, link
    guard.release()
    for slot in slots.values():
        slot.process.kill()
        slot.process.collect()


def test_only_slots_on_the_neighbours_gpu_are_frozen_and_all_below_them(
    scene: tuple[Guarding, dict[str, Slot], Link],
) -> None:
    guard, slots, link = scene
    guard.hold(Hold(Rung.NO_NEW_WORK, frozenset({"llm"}), "guard: llm: 90 % over"))
    guard.turn(time.monotonic())
    _until(lambda: slots["slot_a"].states() == {"T"})
    assert "T" not in slots["slot_b"].states()
    assert slots["slot_a"].process.frozen, "so that its lease goes on and its limits stand still"
    assert "guard holds" in link.told
    guard.hold(Hold())
    link.view = View(slot_states={"slot_a": "held", "slot_b": "held"})
    guard.turn(time.monotonic() + 2)
    _until(lambda: "T" not in slots["slot_a"].states())
    assert "guard lets go" in link.told


def test_time_frozen_is_told_before_the_slot_goes_on(scene: tuple[Guarding, dict[str, Slot], Link]) -> None:
    guard, slots, _ = scene
    process, told = slots["slot_a"].process, []
    process.before_thaw = lambda seconds: told.append((seconds, slots["slot_a"].states()))
    guard.hold(Hold(Rung.NO_NEW_WORK, frozenset({"llm"}), "guard: llm: 90 % over"))
    guard.turn(time.monotonic())
    _until(lambda: slots["slot_a"].states() == {"T"})
    guard.hold(Hold())
    guard.turn(time.monotonic())
    assert len(told) == 1 and told[0][0] > 0 and told[0][1] == {"T"}


def test_work_that_is_frozen_again_parks_and_its_slot_stays_empty(
    scene: tuple[Guarding, dict[str, Slot], Link],
) -> None:
    guard, slots, link = scene
    slot: Any = slots["slot_a"]
    harm = Hold(Rung.NO_NEW_WORK, frozenset({"llm"}), "guard: llm: 90 % over")
    for hold in (harm, Hold(), harm):
        guard.hold(hold)
        guard.turn(time.monotonic())
    # the second freeze: it is let go at the next turn, to hear that it is to park
    guard.turn(time.monotonic())
    assert not slot.process.frozen
    wish = guard.wish(slot)
    assert wish is not None and wish.rung is Rung.PARK and wish.grace_s is not None
    assert "goes on elsewhere" in wish.reason
    guard.hold(Hold())
    link.told.clear()
    link.view = View(slot_states={"slot_a": "held", "slot_b": "idle"})
    guard.turn(time.monotonic() + 2)
    assert "guard lets go" not in link.told, "the slot stays empty after the breach is over"
    assert guard.wish(slots["slot_b"]) is None, "other slots take work"  # type: ignore[arg-type]
    guard.turn(time.monotonic() + 1e6)
    assert "guard lets go" in link.told


def test_host_work_of_a_gpu_slot_is_slowed_and_its_main_thread_is_not(
    scene: tuple[Guarding, dict[str, Slot], Link],
) -> None:
    guard, slots, _ = scene
    slot, everyone = slots["slot_a"], sorted(os.sched_getaffinity(0))
    slot.seat = slot.seat.model_copy(update={"cpus": tuple(everyone)})
    pid = slot.process.slot_pid or -1
    child = next(one for one in procfs.family(pid) if one != pid)
    guard.hold(Hold(Rung.SLOW_HOST, frozenset(), "guard: x"))
    guard.turn(time.monotonic())
    assert os.sched_getaffinity(child) == {everyone[-1]}
    assert os.sched_getaffinity(pid) == set(everyone)
    guard.hold(Hold())
    guard.turn(time.monotonic())
    assert os.sched_getaffinity(child) == set(everyone)


def test_the_guards_threads_stay_off_the_neighbours_cores() -> None:
    machine = Topology.load(HGX)
    wishes = Wishes.parse(f'[[neighbours]]\nname = "llm"\ngpus = ["{machine.gpus[0].uuid}"]\ncores = 4\n')
    seating = Seating(NodeConfig(wishes), machine, make_plan(machine, wishes))
    theirs = set(seating.plan.neighbours[0].cpus)
    assert theirs and not theirs & set(guard_cpus(seating))
    assert theirs | set(guard_cpus(seating)) == set(machine.allowed_cpus)


def test_the_setting_says_how_far_the_guard_climbs(
    scene: tuple[Guarding, dict[str, Slot], Link], tmp_path: Path
) -> None:
    assert scene[0]._loop._policy.top is Rung.PARK
    wishes = Wishes.parse('name = "m"\n')
    machine = Topology.load(HGX)
    settings = Settings(data=tmp_path / "m", guard_top="kill")
    folders = NodeFolders.of(settings, "m", wishes.paths)
    seating = Seating(NodeConfig(wishes), machine, make_plan(machine, wishes))
    guard = Guarding(seating, folders, Link(), lambda: None, settings)  # type: ignore[arg-type]
    assert guard._loop._policy.top is Rung.KILL


def test_a_frozen_slot_that_is_to_end_is_let_go_to_hear_of_it(
    scene: tuple[Guarding, dict[str, Slot], Link],
) -> None:
    guard, slots, _ = scene
    guard.hold(Hold(Rung.PAUSE, frozenset({"llm"}), "guard: llm: 90 % over"))
    guard.turn(time.monotonic())
    _until(lambda: slots["slot_a"].states() == {"T"})
    slots["slot_a"].kill_at = 1.0  # type: ignore[assignment]
    guard.turn(time.monotonic())
    _until(lambda: "T" not in slots["slot_a"].states())


def test_the_farms_load_names_the_gpus_in_use(scene: tuple[Guarding, dict[str, Slot], Link]) -> None:
    guard, slots, _ = scene
    seat = slots["slot_a"].seat
    assert guard._load() == FarmLoad(True, frozenset({*seat.gpus, *seat.pci}))


def test_slots_stay_the_guards_until_the_database_says_that_they_are_free(
    scene: tuple[Guarding, dict[str, Slot], Link],
) -> None:
    guard, slots, link = scene
    slot: Any = slots["slot_b"]
    assert guard.wish(slot) is None
    guard.hold(Hold(Rung.SLOW_HOST, frozenset(), "guard: x"))
    guard.turn(time.monotonic())
    wish = guard.wish(slot)
    assert wish is not None and wish.rung is Rung.SLOW_HOST and wish.host_work
    link.view = View(slot_states={"slot_a": "held", "slot_b": "held"})
    guard.hold(Hold())
    guard.turn(time.monotonic())
    assert guard.wish(slot) is not None, "else the hold that is still written would pause it"
    link.view = View(slot_states={"slot_a": "busy", "slot_b": "busy"})
    guard.turn(time.monotonic() + 2)
    assert guard.wish(slot) is None


def test_another_plan_is_watched_and_what_the_old_one_held_is_let_go(
    scene: tuple[Guarding, dict[str, Slot], Link], tmp_path: Path
) -> None:
    guard, slots, link = scene
    guard.hold(Hold(Rung.PAUSE, frozenset({"llm"}), "guard: llm: 90 % over"))
    guard.turn(time.monotonic())
    _until(lambda: slots["slot_a"].states() == {"T"})
    link.view = View(slot_states={"slot_a": "held", "slot_b": "held"})
    link.told.clear()
    machine = Topology.load(HGX)
    wishes = Wishes.parse('name = "n"\n[[slots]]\nname = "cpu-b"\npools = ["render"]\ncores = 2\n')
    guard.reseat(Seating(NodeConfig(wishes), machine, make_plan(machine, wishes)))
    assert not guard.active and "guard lets go" in link.told
    _until(lambda: "T" not in slots["slot_a"].states())
    assert LOCK_VARIABLE not in os.environ
    other = Wishes.parse('name = "n"\n[[neighbours]]\nname = "new"\nurl = "http://127.0.0.1:9"\ncores = 2\n')
    guard.reseat(Seating(NodeConfig(other), machine, make_plan(machine, other)))
    assert guard.active and [watch["name"] for watch in guard._loop.describe()] == ["new"]
    _until(lambda: guard._thread.is_alive())
    guard.release()
    _until(lambda: not guard._thread.is_alive())
    os.environ.pop(LOCK_VARIABLE, None)


def _until(condition: Callable[[], Any], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
