"""What a step requires against what a slot offers."""

from __future__ import annotations

from typing import Any

import pytest

from farm.scheduler.fit import fits

H200 = {"device": "cuda", "vram": 143_000_000_000, "compute": 9.0, "features": ["fp8", "av1"]}


@pytest.mark.parametrize(
    ("requires", "device", "expected"),
    [
        ({}, {}, True),
        ({"device": "cpu"}, {}, True),
        ({"device": "cuda"}, {}, False),
        ({"device": "cuda"}, H200, True),
        ({"device": "cuda"}, {"kind": "cuda"}, True),
        ({"device": "cpu"}, H200, False),
        ({"device": None}, H200, True),
        ({"min_vram": 143_000_000_000}, H200, True),
        ({"min_vram": 143_000_000_001}, H200, False),
        ({"min_vram": 1}, {}, False),
        ({"min_vram": 1}, {"vram": True}, False),
        ({"features": "fp8"}, H200, True),
        ({"features": "fp4"}, H200, False),
        ({"compute": 9.0, "device": "cuda"}, H200, True),
        ({"unheard_of": True}, H200, False),
    ],
)
def test_fits(requires: dict[str, Any], device: dict[str, Any], expected: bool) -> None:
    assert fits(requires, device) is expected
