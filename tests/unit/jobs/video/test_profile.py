"""The profile: arithmetic and bytes as counted by hand, and what a stage is bound by."""

from __future__ import annotations

import pytest
import torch

from jobs.video import payload
from jobs.video.profile import Device, _metered, _stage, _Sums
from tests.unit.jobs.video.making import spec, step_of


def test_a_product_is_counted_as_by_hand() -> None:
    """(8, 16) by (16, 32): 2 * 8 * 16 * 32 operations; both factors and the result, four bytes a number."""
    layer = torch.nn.Linear(16, 32, bias=False)
    sums = _Sums()
    with torch.no_grad(), _metered(layer, sums, "cpu", count=True):
        layer(torch.ones(8, 16))
    assert sums.calls == 1
    assert sums.flop == 2 * 8 * 16 * 32
    assert sums.bytes == 4 * (8 * 16 + 16 * 32 + 8 * 32)
    assert "forward" not in vars(layer)


@pytest.mark.parametrize(
    ("flop", "moved", "seconds", "launch_s", "bound", "reached"),
    [
        # ridge 100 operations a byte; 50 are below it, and 1e12 * 50 of 1e14 are possible
        (50e12, 1e12, 2.0, 0.1, "memory", 0.5),
        (400e12, 1e12, 5.0, 0.1, "compute", 0.8),
        (400e12, 1e12, 40.0, 39.0, "host", 0.1),
    ],
)
def test_a_stage_is_bound_by_what_its_roof_says(
    flop: float, moved: float, seconds: float, launch_s: float, bound: str, reached: float
) -> None:
    plain = payload.read_step(step_of(spec("wan")).payload)
    generation = plain.model_copy(update={"device": "cuda"})
    sums = _Sums(calls=4, seconds=seconds, launch_s=launch_s, flop=flop, bytes=moved)
    stage = _stage("denoise", sums, 10.0, Device("a GPU", 1e14, 1e12), generation)
    assert (stage.bound, stage.calls, stage.seconds) == (bound, 40, 10 * seconds)
    assert stage.reached == pytest.approx(reached)
    assert stage.advice
