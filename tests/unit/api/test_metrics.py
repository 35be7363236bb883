"""Quantiles by nearest rank."""

from __future__ import annotations

import pytest

from api.metrics import nearest_rank


@pytest.mark.parametrize(
    ("quantile", "expected"), [(0.5, 3.0), (0.95, 5.0), (0.2, 1.0), (0.21, 2.0), (0.0, 1.0), (1.0, 5.0)]
)
def test_nearest_rank_of_five_values(quantile: float, expected: float) -> None:
    assert nearest_rank([5.0, 1.0, 4.0, 2.0, 3.0], quantile) == expected
