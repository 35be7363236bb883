"""Slots that share a PCIe switch with a decode neighbour are told to pace their copies; others are not."""

from __future__ import annotations

import pytest

from gpu_pinning import Wishes, make_plan
from gpu_pinning.machine import Topology
from gpu_pinning.placement import COPY_RATE
from tests.unit.gpu_pinning.trees import RECORDED


def plan(role: str, more: str = ""):  # type: ignore[no-untyped-def]
    machine = Topology.load(RECORDED / "hgx-8gpu.json")
    llm = machine.gpus[0].uuid
    text = (
        f'{more}\n[[neighbours]]\nname = "llm"\nrole = "{role}"\ngpus = ["{llm}"]\ncores = 4\n'
        '[[slots]]\nname = "gpu"\npools = ["video"]\ngpus = 1\ncores = 2\ncount = "all"\n'
        '[[slots]]\nname = "cpu"\npools = ["encode"]\ncores = 2\n'
    )
    return make_plan(machine, Wishes.parse(text))


def paced(found) -> dict[str, str | None]:  # type: ignore[no-untyped-def]
    return {slot.name: slot.environment.get(COPY_RATE) for slot in found.slots}


def test_exactly_the_slots_behind_the_same_switch_are_paced() -> None:
    found = plan("decode")
    behind = {pair.slot for pair in found.sharing if any("PCIe switch" in share for share in pair.shares)}
    assert behind and behind < set(found.by_name)
    assert {name for name, rate in paced(found).items() if rate is not None} == behind
    assert {paced(found)[name] for name in behind} == {str(4 * 2**30)}


def test_a_prefill_neighbour_is_not_disturbed_by_copies() -> None:
    assert set(paced(plan("prefill")).values()) == {None}


@pytest.mark.parametrize(("rate", "told"), [("0", {None}), ('"1 GiB"', {None, str(2**30)})])
def test_the_rate_can_be_set_and_lifted(rate: str, told: set[str | None]) -> None:
    assert set(paced(plan("decode", f"[placement]\ncopy_rate = {rate}")).values()) == told
