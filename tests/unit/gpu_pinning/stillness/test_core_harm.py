"""What busy cores do to one: measured without a trace left behind, and told in words."""

from __future__ import annotations

import os

import pytest

from gpu_pinning.stillness import seating
from gpu_pinning.stillness.core_harm import in_words, measure, with_real_cores
from tests.unit.gpu_pinning.trees import recorded


def test_a_core_is_measured_beside_each_other_one_and_affinity_is_put_back() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    found = measure(cpus[:1], cpus[1:] or cpus, 0.02)
    assert sorted(os.sched_getaffinity(0)) == cpus
    assert list(found["beside_one"]) == [str(cpu) for cpu in cpus[1:]]
    assert found["cpu"] == cpus[0] and found["loop_us"] > 0
    assert found["farm_on_arithmetic"] > 0 and found["farm_on_memory"] > 0


def test_a_core_that_slows_the_loop_is_named_as_a_thread_of_the_same_core() -> None:
    found = {
        "cpu": 0, "beside_one": {"1": 1.01, "8": 1.62}, "same_real_core": [8],
        "farm_on_arithmetic": 1.6, "farm_on_memory": 1.8,
    }  # fmt: skip
    assert "CPU 8, 1.62 x; threads of the same real core: [8]" in in_words(found)


@pytest.mark.parametrize(("stride", "decode"), [(8, {0, 1, 2, 3, 8, 9, 10, 11}), (1, set(range(8)))])
def test_hidden_threads_of_one_core_go_to_one_side(
    monkeypatch: pytest.MonkeyPatch, stride: int, decode: set[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    machine = with_real_cores(recorded("one_h200"), stride)
    seats = seating.seat(machine, None, decode_gpu=True)
    assert set(seats.decode) == decode
    assert set(seats.farm) == set(range(16)) - decode


@pytest.mark.parametrize(("name", "stride"), [("one_h200", 5), ("one_h200", 16), ("hgx-8gpu", 1)])
def test_a_pairing_that_cannot_be_is_refused(name: str, stride: int) -> None:
    with pytest.raises(ValueError, match=r"stride|itself"):
        with_real_cores(recorded(name), stride)
