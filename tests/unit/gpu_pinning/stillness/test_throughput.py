"""Farm throughput beside decode against alone: paired, told apart, and counted in parts of units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpu_pinning.stillness.arms import Block
from gpu_pinning.stillness.crew import units_between
from gpu_pinning.stillness.stamps import StampReader, StampWriter
from gpu_pinning.stillness.throughput import Throughput, rates


def block(seconds: float, **work: tuple[float, float]) -> Block:
    return Block(10.0, 10.0 + seconds, np.array([0.01]), None, work=work)


def test_rates_are_per_second_over_all_blocks_of_a_pool() -> None:
    found = rates([block(2.0, encode=(10.0, 4.0)), block(3.0, encode=(20.0, 5.0))])
    assert found == {"encode": (6.0, 1.8)}


def test_the_ratio_is_paired_by_round_so_that_drift_falls_out() -> None:
    # the machine slows to half over the run; beside decode the pool keeps 90 % in each round
    trial = Throughput()
    for speed in (10.0, 8.0, 6.0, 5.0):
        trial.alone.append({"encode": (speed, 2.0)})
        trial.beside.append({"encode": (speed * 0.9, 2.0)})
    found = trial.to_json()
    assert found["ratio"]["encode"] == pytest.approx(0.9)
    assert found["bounds"]["encode"] == pytest.approx([0.9, 0.9])


def test_less_core_time_and_slower_cores_are_told_apart() -> None:
    held = Throughput([{"encode": (8.0, 1.6)}], [{"encode": (10.0, 2.0)}]).to_json()
    assert held["told_apart"]["encode"]["core_time"] == pytest.approx(0.8)
    assert held["told_apart"]["encode"]["core_speed"] == pytest.approx(1.0)
    slow = Throughput([{"encode": (8.0, 2.0)}], [{"encode": (10.0, 2.0)}]).to_json()
    assert slow["told_apart"]["encode"]["core_time"] == pytest.approx(1.0)
    assert slow["told_apart"]["encode"]["core_speed"] == pytest.approx(0.8)


def test_where_decode_is_not_ours_to_stop_nothing_is_claimed() -> None:
    found = Throughput([{"encode": (8.0, 1.6)}]).to_json()
    assert found["ratio"] is None and found["beside"] == {"encode": 8.0}


def test_a_pool_that_did_nothing_has_no_ratio() -> None:
    found = Throughput([{"encode": (0.0, 0.0)}], [{"encode": (1.0, 1.0)}]).to_json()
    assert found["ratio"]["encode"] is None and found["bounds"]["encode"] is None


@pytest.mark.parametrize(
    ("begin", "end", "units"),
    # a unit each half second from 1.0 on: two seconds hold four of them, wherever they begin
    [(1.0, 3.0, 4.0), (1.2, 3.2, 4.0), (1.49, 3.49, 4.0)],
)
def test_units_at_the_edges_count_by_their_time(
    tmp_path: Path, begin: float, end: float, units: float
) -> None:
    writer = StampWriter(tmp_path / "stamps", capacity=100)
    for number in range(12):
        writer.stamp(0.5 * number)
    assert units_between(StampReader(tmp_path / "stamps"), begin, end) == pytest.approx(units)


def test_a_worker_that_stood_still_is_not_credited_for_it(tmp_path: Path) -> None:
    writer = StampWriter(tmp_path / "stamps", capacity=100)
    for number in range(11):
        writer.stamp(0.1 * number)
    # ten units in the first second, then four seconds of nothing: one begun unit at most is added
    assert units_between(StampReader(tmp_path / "stamps"), 0.0, 5.0) <= 11.0
