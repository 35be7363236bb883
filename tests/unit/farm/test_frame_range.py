"""Frame ranges: what they hold, how they are written, and where a bad one is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.errors import InvalidFrameRange
from farm.frame_range import FrameRange

NUMBERS = st.sets(st.integers(-50, 200), min_size=1, max_size=60)


@st.composite
def items(draw: st.DrawFn) -> tuple[str, set[int]]:
    """One item of a range and the numbers that it means, worked out without the parser."""
    start = draw(st.integers(-100, 100))
    if draw(st.booleans()):
        return str(start), {start}
    end = start + draw(st.integers(0, 60))
    if draw(st.booleans()):
        return f"{start}-{end}", set(range(start, end + 1))
    every = draw(st.integers(1, 9))
    meant = set()
    number = start
    while number <= end:
        meant.add(number)
        number += every
    return f"{start}-{end}:{every}", meant


@given(st.lists(items(), min_size=1, max_size=6))
def test_a_range_holds_the_union_of_its_items(parts: list[tuple[str, set[int]]]) -> None:
    parsed = FrameRange.parse(",".join(text for text, _ in parts))
    expected = sorted(set().union(*(meant for _, meant in parts)))
    assert list(parsed) == expected
    assert len(parsed) == len(expected)
    assert (parsed.first, parsed.last) == (expected[0], expected[-1])


@given(NUMBERS)
def test_text_and_numbers_say_the_same(numbers: set[int]) -> None:
    made = FrameRange.of(numbers)
    assert list(FrameRange.parse(str(made))) == sorted(numbers)
    assert all(n in made for n in numbers)
    assert not any(n in made for n in range(-60, 210) if n not in numbers)


@given(NUMBERS, st.integers(1, 70))
def test_chunks_are_a_partition_in_order(numbers: set[int], size: int) -> None:
    parts = [list(chunk) for chunk in FrameRange.of(numbers).chunks(size)]
    assert [n for part in parts for n in part] == sorted(numbers)
    assert all(len(part) == size for part in parts[:-1])
    assert 1 <= len(parts[-1]) <= size


@given(NUMBERS, NUMBERS)
def test_without_and_overlaps_are_those_of_sets(one: set[int], other: set[int]) -> None:
    left = FrameRange.of(one).without(FrameRange.of(other))
    assert (set(left) if left is not None else set()) == one - other
    assert FrameRange.of(one).overlaps(FrameRange.of(other)) == bool(one & other)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("1-100:2,200", "1-99:2,200"),
        ("3,1,2", "1-3"),
        (" 1 , 2 ", "1-2"),
        ("-5--1", "-5--1"),
        ("1-3,2-5", "1-5"),
        ("7-7", "7"),
        ("1-5:9", "1"),
    ],
)
def test_ranges_are_normalised(text: str, written: str) -> None:
    assert str(FrameRange.parse(text)) == written


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("1 10", 2, "expected a comma, found '1'"),
        ("5-1", 2, "the end 1 comes before the start 5"),
        ("1-5:0", 4, "the step is 0, but must be 1 or more"),
        ("1-5:-2", 4, "the step is -2"),
        ("", 0, "it is empty"),
        ("   ", 0, "it is empty"),
        ("1-1000000000", 0, "more than 1,000,000 frames"),
        ("1,2,1-1000000000", 4, "more than 1,000,000 frames"),
        ("1,,2", 2, "expected a frame number"),
        ("1,", 2, "expected a frame number"),
        ("a", 0, "expected a frame number"),
        ("1-3x", 3, "expected a comma, found 'x'"),
        ("1.5", 1, "expected a comma, found '.'"),
        ("99999999999", 0, "frame numbers lie between"),
        ("9999999999", 0, "frame numbers lie between"),
        ("1:2", 1, "expected a comma, found ':'"),
        ("\u0661", 0, "expected a frame number"),
        ("1-5\n", 3, "expected a comma"),
    ],
)
def test_a_bad_range_names_the_position_and_the_way_out(text: str, position: int, words: str) -> None:
    with pytest.raises(InvalidFrameRange) as caught:
        FrameRange.parse(text, pointer="/spec/frames")
    assert words in caught.value.message
    assert caught.value.position == position
    assert f"at position {position}" in caught.value.message
    assert "write ranges like 1-100:2,200" in caught.value.message
    assert [fault.pointer for fault in caught.value.faults] == ["/spec/frames"]


def test_a_range_of_a_billion_frames_is_refused_without_being_made() -> None:
    with pytest.raises(InvalidFrameRange):
        FrameRange.parse("1-1000000000")
    with pytest.raises(InvalidFrameRange):
        FrameRange.parse(",".join(["1-1000000"] * 5000))


def test_five_thousand_frames_are_fine() -> None:
    assert len(FrameRange.parse("1-5000")) == 5000


def test_a_long_range_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidFrameRange) as caught:
        FrameRange.parse("x" * 100_000)
    assert len(caught.value.message) < 300
