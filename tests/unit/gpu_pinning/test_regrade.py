"""Classes of a plan once its neighbours run otherwise than they did, worked out by hand."""

from __future__ import annotations

import pytest

from gpu_pinning import Wishes, make_plan
from gpu_pinning.observed import ObservedNeighbour
from gpu_pinning.regrade import below_its_wish, regrade
from tests.unit.gpu_pinning.trees import recorded

# two sockets: CPUs 0-63 and their siblings on node 0, the rest on node 1
MACHINE = recorded("hgx-8gpu")
TEXT = """
[[neighbours]]
name = "d"
gpus = ["{first}"]
cpus = "{cpus}"
url = "http://127.0.0.1:8000"
[[slots]]
name = "far"
pools = ["encode"]
cores = 2
lowest_class = "B"
[[slots]]
name = "any"
pools = ["encode"]
cores = 2
"""
CORES = [core for core in MACHINE.cores if core.node == 0][:4]
CPUS = tuple(sorted(cpu for core in CORES for cpu in core.cpus))
WISHES = Wishes.parse(TEXT.format(first=MACHINE.gpus[0].uuid, cpus=",".join(map(str, CPUS))))


def server(cpus: tuple[int, ...], port: int = 8000) -> ObservedNeighbour:
    return ObservedNeighbour(
        kind="vllm", pid=7, pids=(7, 8), model="m", role="both", port=port, gpus=(), cpus=cpus,
        unit="llm.service", whole_machine=len(cpus) > len(CPUS),
    )  # fmt: skip


EVERYWHERE = tuple(sorted(cpu for core in MACHINE.cores for cpu in core.cpus))


def test_a_server_that_leaves_its_cores_takes_every_slot_to_class_c_and_back() -> None:
    plan = make_plan(MACHINE, WISHES, (server(CPUS),))
    assert [(slot.name, slot.guarantee) for slot in plan.slots] == [("far", "A"), ("any", "A")]
    assert plan.slot("far").guarantee == "A"
    loose = regrade(MACHINE, WISHES, plan, (server(EVERYWHERE),))
    assert [slot.guarantee for slot in loose.slots] == ["C", "C"]
    assert loose.neighbours[0].fence == "none"
    assert "AllowedCPUs" in (loose.neighbours[0].mend or "")
    assert loose.slot("far").guarantee == "C"
    floor, pair = below_its_wish(WISHES, loose, loose.slot("far")) or pytest.fail("it is below")
    assert (floor, pair.neighbour, pair.guarantee) == ("B", "d", "C")
    assert below_its_wish(WISHES, loose, loose.slot("any")) is None, "it wishes no class"
    # where they sit is the same, and held again all is as it was
    assert [slot.cpus for slot in loose.slots] == [slot.cpus for slot in plan.slots]
    assert regrade(MACHINE, WISHES, loose, (server(CPUS),)) == plan


@pytest.mark.parametrize("seen", [(), (server(EVERYWHERE, port=9000),)], ids=["gone", "another server"])
def test_a_server_that_does_not_run_changes_nothing(seen: tuple[ObservedNeighbour, ...]) -> None:
    plan = make_plan(MACHINE, WISHES, (server(CPUS),))
    assert regrade(MACHINE, WISHES, plan, seen) is plan
