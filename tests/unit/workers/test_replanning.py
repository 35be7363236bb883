"""A farm.toml that is read again: what may be applied, and what is refused with its reason."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from farm.errors import InvalidInput
from gpu_pinning import Wishes, make_plan
from gpu_pinning.machine import Topology
from tests.unit.gpu_pinning.trees import recorded
from workers import placement
from workers.node_config import NodeConfig, read_node_config
from workers.placement import Seating, refuse_impossible
from workers.replanning import Replanning

SLOT = '[[slots]]\nname = "{}"\npools = ["render"]\ncpus = "{}"\n'
LEFT = 'name = "n"\n' + SLOT.format("a", "0-3")


def seating(text: str, machine: str = "laptop") -> Seating:
    wishes = Wishes.parse(text)
    found = recorded(machine)
    return Seating(NodeConfig(wishes), found, make_plan(found, wishes))


@pytest.mark.parametrize(
    ("text", "pointer", "reason"),
    [
        ('[[neighbours]]\nname = "d"\ncpus = "90-91"\n', "/neighbours/d/cpus", "CPUs 90-91 are not"),
        ('[[neighbours]]\nname = "d"\ngpus = ["01:00.0"]\n', "/neighbours/d/gpus", "fits no GPU"),
        (SLOT.format("a", "90"), "/slots/a/cpus", "CPUs 90 are not this machine's"),
        ("[placement]\nsystem_cores = 99\n", "/slots", "no slot has a place"),
    ],
)
def test_a_node_that_cannot_be_is_refused_with_field_and_reason(text: str, pointer: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        refuse_impossible(seating(text))
    assert caught.value.faults[0].pointer == pointer
    assert reason in caught.value.faults[0].message


def test_a_node_starts_with_the_slots_that_have_a_place() -> None:
    # a GPU that is missing this morning does not keep the other slots from working
    text = SLOT.format("a", "0-3") + SLOT.format("b", "90")
    refuse_impossible(seating(text))
    # but a running node is not changed to one that lacks a slot, unless it lacks it already
    with pytest.raises(InvalidInput, match=r"slots\.b\.cpus"):
        refuse_impossible(seating(text), seating(LEFT).plan)
    refuse_impossible(seating(text), seating(text).plan)


class Reread:
    """The farm.toml of a node that runs, changed and read again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "farm.toml"
        self.path.write_text(LEFT)
        self.running = read_node_config(self.path)
        self.present = Seating(self.running, recorded("laptop"), seating(LEFT).plan)
        monkeypatch.setattr(placement, "read_topology", lambda: recorded("laptop"))
        monkeypatch.setattr(placement, "discover_neighbours", lambda machine: ())

    def read(self, text: str) -> tuple[Seating | None, list[str]]:
        self.path.write_text(text)
        told = threading.Event()
        replanning = Replanning(self.running, told.set)
        with capture_logs() as logs:
            replanning.begin(self.present, self.present.plan.by_name, set())
            assert replanning._thread is not None
            replanning._thread.join(30)
        found = replanning.take()
        assert (found is not None) == told.is_set()
        assert replanning.take() is None and not replanning.busy
        return found, [str(entry.get("error")) for entry in logs]


@pytest.fixture
def reread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reread:
    return Reread(tmp_path, monkeypatch)


def test_what_may_change_comes_back(reread: Reread) -> None:
    more = 'labels = { row = "7" }\npreemptible = true\n[budgets]\nspool = "1 GiB"\n'
    found, _ = reread.read('name = "n"\n' + more + SLOT.format("a", "4-7"))
    assert found is not None
    assert found.plan.slot("a").cpus == (4, 5, 6, 7)
    assert found.config.wishes.labels == {"row": "7"} and found.config.wishes.preemptible
    assert found.config.budgets == {"spool": 1 << 30}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("name = ", "TOML"),
        (LEFT.replace('"n"', '"m"'), "/name: 'm': the agent that runs has 'n'; restart it"),
        (LEFT + '[paths]\nwork = "/fast"\n', "/paths/work: '/fast': the agent that runs has None"),
        (
            LEFT + '[[mig]]\ngpu = "GPU-5a1f7c1e"\nprofiles = ["1g.5gb"]\n',
            "/mig: [{'gpu': 'GPU-5a1f7c1e', 'profiles': ['1g.5gb']}]: the agent that runs has []; restart it",
        ),
        (LEFT + '[[neighbours]]\nname = "d"\ncpus = "90"\n', "neighbours.d.cpus: CPUs 90 are not"),
        (LEFT + SLOT.format("b", "0-3"), "slots.b.cpus: CPUs 0-3 are taken"),
        (
            LEFT + '[[neighbours]]\nname = "d"\ncpus = "0-3"\n',
            "slots.a.cpus: CPUs 0-3 are taken by a neighbour",
        ),
    ],
)
def test_what_may_not_is_told_and_changes_nothing(reread: Reread, text: str, reason: str) -> None:
    found, told = reread.read(text)
    assert found is None
    assert reason in told[0]


def test_a_machine_that_cannot_be_read_changes_nothing(
    reread: Reread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying() -> Topology:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(placement, "read_topology", dying)
    found, told = reread.read(LEFT)
    assert (found, told) == (None, ["[Errno 5] Input/output error"])
