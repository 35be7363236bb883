from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from api.cli.text import ago, duration, percent, size


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 * 1024, "1.5 MiB"),
        (2**40, "1.0 TiB"),
        (150 * 2**20, "150 MiB"),
    ],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.4 s"), (42, "42 s"), (59.6, "1:00"), (187, "3:07"), (7391, "2:03:11")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_hundred_per_cent_is_said_only_when_it_is_all() -> None:
    assert [percent(0), percent(0.999999), percent(1)] == ["0 %", "99 %", "100 %"]


def test_moments_are_told_relative_to_now() -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert [ago(now - timedelta(seconds=s), now) for s in (-5, 12, 60, 7200)] == [
        "0 s ago",
        "12 s ago",
        "1 min ago",
        "2 h ago",
    ]
