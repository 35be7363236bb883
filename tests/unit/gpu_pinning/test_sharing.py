"""What a slot shares with a neighbour, on a machine whose NUMA nodes cut through a cache; by hand."""

from __future__ import annotations

import pytest

from gpu_pinning import Topology, Wishes, make_plan
from gpu_pinning.observed import ObservedNeighbour
from tests.unit.gpu_pinning.trees import recorded

MACHINE = recorded("hgx-8gpu")
NEAR = next(core for core in MACHINE.cores if core.node == 0)
FAR = next(core for core in MACHINE.cores if core.node == 1)


def with_cache_of(machine: Topology, core: int, llc: int | None) -> Topology:
    cores = tuple(each.model_copy(update={"llc": llc}) if each.id == core else each for each in machine.cores)
    return machine.model_copy(update={"cores": cores})


@pytest.mark.parametrize(
    ("llc", "guarantee", "shares"),
    [
        (FAR.llc, "A", ()),
        # one cache under two nodes: another node is not enough
        (NEAR.llc, "B", ("last-level cache",)),
        # a cache of which nothing is known may be any
        (None, "B", ()),
    ],
)
def test_a_cache_that_spans_two_nodes_is_shared_across_them(
    llc: int | None, guarantee: str, shares: tuple[str, ...]
) -> None:
    assert NEAR.llc != FAR.llc
    machine = with_cache_of(MACHINE, FAR.id, llc)
    cpus, own = (",".join(map(str, core.cpus)) for core in (NEAR, FAR))
    text = f'''
[[neighbours]]
name = "d"
cpus = "{cpus}"
url = "http://127.0.0.1:8000"
[[slots]]
name = "s"
pools = ["render"]
cpus = "{own}"
'''
    seen = ObservedNeighbour(
        kind="vllm", pid=7, pids=(7,), model=None, role="both", port=8000, gpus=(), cpus=NEAR.cpus,
        whole_machine=False,
    )  # fmt: skip
    plan = make_plan(machine, Wishes.parse(text), (seen,))
    (pair,) = plan.sharing
    assert (pair.guarantee, pair.shares, plan.slot("s").guarantee) == (guarantee, shares, guarantee)
    if guarantee == "B":
        assert "cache" in pair.reason and "cache" in pair.raise_by
