"""Weights of host work: planned where they can be had, and read back when the fence is put up."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_pinning import FenceError, Wishes, make_plan
from gpu_pinning.fence import Fence
from gpu_pinning.machine import CgroupRight, Topology
from tests.unit.gpu_pinning.trees import RECORDED

SLOTS = (
    '[[slots]]\nname = "gpu"\npools = ["video"]\ngpus = 1\ncores = 2\n'
    '[[slots]]\nname = "cpu"\npools = ["encode"]\ncores = 2\n{}\n'
)


def plan_on(name: str, more: str = ""):  # type: ignore[no-untyped-def]
    machine = Topology.load(RECORDED / f"{name}.json")
    return machine, make_plan(machine, Wishes.parse(SLOTS.format(more)))


def test_host_work_weighs_less_than_slots_that_feed_a_gpu() -> None:
    _, plan = plan_on("virtual-machine")
    assert plan.slot("cpu").limits.cpu_weight == 20
    assert plan.slot("gpu").limits.cpu_weight == 100


def test_without_a_right_the_usual_weight_is_not_planned_and_a_wished_one_is_refused() -> None:
    _, plan = plan_on("one_h200")
    assert plan.slot("cpu").limits.cpu_weight is None
    _, plan = plan_on("one_h200", "cpu_weight = 7")
    assert [slot.name for slot in plan.slots] == ["gpu"]
    assert [refusal.wish for refusal in plan.refusals] == ["slots.cpu.cpu_weight"]


@pytest.mark.parametrize(
    ("field", "value", "controller"),
    [
        ("memory", '"1 GiB"', "memory"),
        ("processes", "100", "pids"),
        ("cpu_weight", "7", "cpu"),
        ("disk_write", '"1 MiB"', "io"),
    ],
)
def test_a_limit_is_planned_where_there_is_a_right_and_refused_where_there_is_none(
    field: str, value: str, controller: str
) -> None:
    # an ordinary user's node, or one whose cgroups are mounted read-only
    machine = Topology.load(RECORDED / "hgx-8gpu.json")
    cgroups = tuple(
        right.model_copy(update={"granted": False, "reason": "Read-only file system"})
        if right.controller == controller
        else right
        for right in machine.cgroups
    )
    bare = machine.model_copy(update={"cgroups": cgroups})
    text = f'[paths]\nwork = "/w"\n[[slots]]\nname = "a"\npools = ["render"]\n{field} = {value}\n'
    assert [slot.name for slot in make_plan(machine, Wishes.parse(text)).slots] == ["a"]
    plan = make_plan(bare, Wishes.parse(text))
    assert plan.slots == ()
    (refusal,) = plan.refusals
    assert refusal.wish == f"slots.a.{field}"
    assert f"controller {controller} (Read-only file system)" in refusal.reason
    assert "farm node install" in refusal.fix and f"leave {field} out" in refusal.fix


@pytest.mark.parametrize("weight", [0, 10_001])
def test_a_weight_out_of_range_is_refused(weight: int) -> None:
    with pytest.raises(Exception, match="cpu_weight"):
        Wishes.parse(SLOTS.format(f"cpu_weight = {weight}"))


def granted(tmp_path: Path, controllers: tuple[str, ...]) -> tuple[CgroupRight, ...]:
    (tmp_path / "cgroup.subtree_control").write_text(" ".join(controllers))
    return tuple(
        CgroupRight(controller=name, version=2, base=str(tmp_path), granted=True)  # type: ignore[arg-type]
        for name in controllers
    )


def fence_of(tmp_path: Path, controllers: tuple[str, ...]) -> Fence:
    machine, plan = plan_on("virtual-machine", "cpu_weight = 7")
    base = tmp_path / "group"
    base.mkdir()
    machine = machine.model_copy(update={"cgroups": granted(base, controllers)})
    slot = plan.slot("cpu").model_copy(update={"deny": ()})
    return Fence.create(machine, slot, tmp_path / "run")


def test_the_weight_is_written_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = fence_of(tmp_path, ("cpu",))
    made = fence.group.make

    def make_with_file() -> None:
        made()
        (fence.group.folders["cpu"] / "cpu.weight").write_text("")

    monkeypatch.setattr(fence.group, "make", make_with_file)
    rows = fence.apply()
    assert [(row.what, row.found, row.ok) for row in rows] == [("cpu.weight", "7", True)]


def test_a_wished_weight_without_a_right_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FenceError, match="cpu: no right"):
        fence_of(tmp_path, ()).apply()
