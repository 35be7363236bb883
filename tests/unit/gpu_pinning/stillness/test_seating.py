"""Who sits where in a run: out of the plan, never on decode's CPUs, and everywhere with isolation off."""

from __future__ import annotations

import os

import pytest

from gpu_pinning.machine import Topology
from gpu_pinning.stillness import seating
from gpu_pinning.wishes import Wishes
from tests.unit.gpu_pinning.trees import RECORDED


def load(name: str) -> Topology:
    return Topology.parse((RECORDED / f"{name}.json").read_text(), name)


@pytest.fixture
def all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench runs where every CPU of the recorded machines may be used."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1024)))


@pytest.mark.usefixtures("all_cpus")
def test_without_neighbours_decode_gets_half_of_the_cores_and_the_farm_the_rest() -> None:
    machine = load("one_h200")
    seats = seating.seat(machine, None, decode_gpu=True)
    assert seats.decode and seats.farm
    assert not set(seats.decode) & set(seats.farm)
    cores = len(machine.cores)
    assert len({core.id for core in machine.cores if set(core.cpus) & set(seats.decode)}) == cores // 2
    assert {work.pool for work in seats.works} >= {"encode", "render"}
    assert set(seats.decode) == set(range(8)) and set(seats.farm) == set(range(8, 16))
    # decode sits on the first GPU, so that no slot of the farm does
    first = machine.gpus[0].uuid
    assert all(first not in work.slot.gpus for work in seats.works if work.slot)


@pytest.mark.usefixtures("all_cpus")
def test_a_second_gpu_is_the_farms() -> None:
    machine = load("two_h200")
    seats = seating.seat(machine, None, decode_gpu=True)
    on_gpu = [work for work in seats.works if work.pool == "gpu"]
    assert [work.slot.gpus for work in on_gpu if work.slot] == [(machine.gpus[1].uuid,)]


@pytest.mark.usefixtures("all_cpus")
def test_the_neighbours_and_slots_of_farm_toml_are_tried_where_they_are_named() -> None:
    machine = load("laptop")
    wishes = Wishes.parse(
        '[[neighbours]]\nname = "llm"\nrole = "decode"\ncpus = "0-1"\n'
        '[[slots]]\nname = "film"\npools = ["encode"]\ncores = 1\n'
    )
    seats = seating.seat(machine, wishes, decode_gpu=False)
    assert set(seats.decode) == {0, 1}
    assert [work.slot.name for work in seats.works if work.slot] == ["film"]


@pytest.mark.usefixtures("all_cpus")
def test_with_isolation_off_work_is_on_every_cpu_unfenced_and_more_than_it_can_run() -> None:
    machine = load("one_h200")
    seats = seating.seat(machine, None, decode_gpu=True)
    loose = seating.everywhere(seats)
    assert {work.pool for work in loose} == {"encode", "render"}
    for work in loose:
        assert work.slot is None and work.cpus == seats.everyone and work.threads == 1
    assert set(seats.decode) <= set(loose[0].cpus)
    assert sum(work.copies for work in loose) == 4 * len(seats.everyone)


def test_a_machine_that_cannot_be_read_is_halved_and_says_so() -> None:
    seats = seating.seat(None, None, decode_gpu=False)
    assert seats.guarantee in ("B", "C") and "could not be read" in seats.reason
    assert set(seats.decode) | set(seats.farm) <= os.sched_getaffinity(0)


@pytest.mark.usefixtures("all_cpus")
def test_a_plan_without_room_for_slots_is_halved_with_the_reason() -> None:
    machine = load("laptop")
    every = ",".join(str(cpu) for core in machine.cores for cpu in core.cpus)
    wishes = Wishes.parse(f'[[neighbours]]\nname = "llm"\nrole = "decode"\ncpus = "{every}"\n')
    seats = seating.seat(machine, wishes, decode_gpu=False)
    assert "no slot beside a decode neighbour" in seats.reason
