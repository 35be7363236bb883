"""Ranges, names and ETags of downloads."""

from __future__ import annotations

import pytest

from api.content import byte_range, disposition, matches
from api.problems import HttpProblem


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=0-", (0, 10)),
        ("bytes=4-6", (4, 7)),
        ("bytes=4-600", (4, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        # ignored, as RFC 9110 allows: the whole is sent
        ("bytes=-", None),
        ("bytes=6-4", None),
        ("bytes=0-1,4-5", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        ("nonsense", None),
    ],
)
def test_ranges_of_ten_bytes(header: str | None, expected: tuple[int, int] | None) -> None:
    assert byte_range(header, 10) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=-0"])
def test_a_range_past_the_end_says_how_long_the_file_is(header: str) -> None:
    with pytest.raises(HttpProblem) as caught:
        byte_range(header, 10)
    assert caught.value.status_code == 416
    assert caught.value.headers == {"Content-Range": "bytes */10"}


def test_a_name_cannot_break_out_of_its_header() -> None:
    header = disposition('a"; filename="x\r\nSet-Cookie: y=1.html', inline=False)
    assert "\r" not in header
    assert "\n" not in header
    assert header.count('"') == 2
    assert header.startswith("attachment; ")
    assert disposition("fï.mp4", inline=True).endswith("filename*=UTF-8''f%C3%AF.mp4")


def test_if_none_match_compares_weakly() -> None:
    assert matches('W/"a", "b"', '"a"')
    assert matches("*", '"a"')
    assert not matches('"c"', '"a"')
    assert not matches(None, '"a"')
