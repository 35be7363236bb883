"""Plans as text, and the way from one to the next."""

from __future__ import annotations

import pytest

from gpu_pinning.diff import diff_plans
from gpu_pinning.draw import render_diff, render_drawing, render_plan
from gpu_pinning.placement import make_plan
from gpu_pinning.wishes import Wishes
from tests.unit.gpu_pinning.trees import RECORDED, recorded

SLOTS = '[[slots]]\nname = "a"\npools = ["render"]\n[[slots]]\nname = "b"\npools = ["encode"]\n'


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.json")))
def test_every_machine_can_be_drawn(name: str) -> None:
    machine = recorded(name)
    plan = make_plan(machine)
    text = render_plan(plan, machine)
    assert all(slot.name in text for slot in plan.slots[:36])
    assert all(gpu.pci in text for gpu in machine.gpus)
    assert max(len(line) for line in render_drawing(machine, plan).splitlines()) <= 120


def test_the_drawing_shows_each_core_once() -> None:
    machine = recorded("container")
    drawing = render_drawing(machine, make_plan(machine))
    # Node 0 has 24 cores, of which 4 to 15 are ours, two a slot; node 1 is not ours at all.
    assert "socket 0 |----aabbccddeeff--------|" in drawing
    assert "socket 1 |------------------------|" in drawing


def test_the_drawing_shows_everybody_on_a_shared_gpu() -> None:
    machine = recorded("mig-box")
    text = """
        [[neighbours]]
        name = "llm"
        mig = ["MIG-424874fb-7239-5747-8665-bcd3a3d42419"]
        [[slots]]
        name = "m"
        pools = ["render"]
        mig = "1g.5gb"
        share_with = "llm"
        count = 2
    """
    drawn = render_drawing(machine, make_plan(machine, Wishes.parse(text)))
    assert "[A llm, a m-0, b m-1] 0000:07:00.0" in drawn
    assert "[.] 0000:87:00.0" in drawn


def test_nothing_changes() -> None:
    plan = make_plan(recorded("laptop"), Wishes.parse(SLOTS))
    assert render_diff(diff_plans(plan, plan)) == "Nothing changes.\n"


def test_moves_drain_and_labels_do_not() -> None:
    machine = recorded("laptop")
    before = make_plan(machine, Wishes.parse(SLOTS))
    more = Wishes.parse(SLOTS.replace('["encode"]', '["encode", "render"]'))
    (label,) = diff_plans(before, make_plan(machine, more))
    assert (label.name, label.how, label.drains) == ("b", "relabelled", False)
    moved = Wishes.parse(SLOTS.replace('["render"]', '["render"]\ncores = 3'))
    changes = diff_plans(before, make_plan(machine, moved))
    assert [(c.name, c.how, c.drains) for c in changes] == [("a", "moved", True), ("b", "moved", True)]
    assert "~ slot a  (drains first)" in render_diff(changes)


def test_removals_come_before_additions() -> None:
    machine = recorded("laptop")
    before = make_plan(machine, Wishes.parse(SLOTS))
    after = make_plan(machine, Wishes.parse(SLOTS.replace('"a"', '"c"')))
    assert [(c.name, c.how) for c in diff_plans(before, after)] == [("a", "removed"), ("c", "added")]
