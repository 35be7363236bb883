"""Frame ranges: ``1-100:2,200`` means frames 1, 3, … 99 and 200.

The grammar follows Open Job Description's integer ranges: items are joined by commas; an item is one
integer, ``start-end`` or ``start-end:step``. Numbers may be negative (``-5--1``). A range is normalised:
sorted, without repeats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from farm.errors import InvalidFrameRange

MAX_FRAMES = 1_000_000
# ASCII digits only: the farm writes ranges back, and others read them
_ITEM = re.compile(r"(?P<start>-?\d{1,10})(?:-(?P<end>-?\d{1,10})(?::(?P<step>-?\d{1,10}))?)?", re.ASCII)
_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FrameRange:
    """A finite set of frame numbers, kept as ascending, disjoint ``range`` pieces."""

    pieces: tuple[range, ...]

    @classmethod
    def parse(cls, text: str, *, max_frames: int = MAX_FRAMES, pointer: str = "") -> FrameRange:
        """Read a range such as ``1-100:2,200``.

        Raises :class:`InvalidFrameRange` with the 0-based position of the fault; ``pointer`` is the JSON
        pointer of the field that the text came from.
        """

        def fault(message: str, position: int) -> InvalidFrameRange:
            return InvalidFrameRange(
                f"frame range {text[:80]!r}: {message} at position {position}; write ranges like 1-100:2,200",
                position,
                pointer,
            )

        if not text.strip():
            raise fault("it is empty", 0)
        ranges: list[range] = []
        total = 0
        position = 0
        while True:
            while position < len(text) and text[position] == " ":
                position += 1
            match = _ITEM.match(text, position)
            if match is None:
                raise fault("expected a frame number", position)
            start = int(match["start"])
            end = int(match["end"]) if match["end"] is not None else start
            step = int(match["step"]) if match["step"] is not None else 1
            if abs(start) > _LIMIT or abs(end) > _LIMIT:
                raise fault(f"frame numbers lie between -{_LIMIT} and {_LIMIT}", position)
            if step < 1:
                raise fault(f"the step is {step}, but must be 1 or more", match.start("step"))
            if end < start:
                raise fault(f"the end {end} comes before the start {start}", match.start("end"))
            piece = range(start, end + 1, step)
            total += len(piece)
            if total > max_frames:
                raise fault(f"it holds more than {max_frames:,} frames, the limit", position)
            ranges.append(piece)
            position = match.end()
            while position < len(text) and text[position] == " ":
                position += 1
            if position == len(text):
                break
            if text[position] != ",":
                raise fault(f"expected a comma, found {text[position]!r}", position)
            position += 1
        return cls._normal(ranges)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> FrameRange:
        """The range that holds exactly these numbers (any order, repeats allowed)."""
        ordered = sorted(set(numbers))
        return cls(tuple(_fold(ordered)))

    @classmethod
    def _normal(cls, ranges: list[range]) -> FrameRange:
        if len(ranges) > 1:
            return cls.of(n for r in ranges for n in r)
        (only,) = ranges
        return cls((range(only[0], only[-1] + 1, only.step if len(only) > 1 else 1),))

    def __iter__(self) -> Iterator[int]:
        for piece in self.pieces:
            yield from piece

    def __len__(self) -> int:
        # most tasks hold one run of frames, and a job may have 100,000 of them
        return len(self.pieces[0]) if len(self.pieces) == 1 else sum(len(piece) for piece in self.pieces)

    def __contains__(self, number: object) -> bool:
        return any(number in piece for piece in self.pieces)

    def __str__(self) -> str:
        return ",".join(_item(piece) for piece in self.pieces)

    @property
    def first(self) -> int:
        """The smallest frame number."""
        return self.pieces[0][0]

    @property
    def last(self) -> int:
        """The largest frame number."""
        return self.pieces[-1][-1]

    def chunks(self, size: int) -> Iterator[FrameRange]:
        """Consecutive parts of ``size`` frames; the last may be shorter.

        Raises :class:`ValueError` for a size below 1.
        """
        if size < 1:
            raise ValueError(f"chunk size {size} is below 1")
        batch: list[int] = []
        for number in self:
            batch.append(number)
            if len(batch) == size:
                yield FrameRange(tuple(_fold(batch)))
                batch = []
        if batch:
            yield FrameRange(tuple(_fold(batch)))

    def without(self, other: FrameRange | Iterable[int]) -> FrameRange | None:
        """The numbers that ``other`` does not hold, or ``None`` when none is left."""
        gone = set(other)
        left = [n for n in self if n not in gone]
        return FrameRange(tuple(_fold(left))) if left else None

    def overlaps(self, other: FrameRange) -> bool:
        """Whether a frame number is in both."""
        if self.last < other.first or other.last < self.first:
            return False
        small, large = (self, other) if len(self) <= len(other) else (other, self)
        return any(n in large for n in small)


def _item(piece: range) -> str:
    if len(piece) == 1:
        return str(piece[0])
    if len(piece) == 2 and piece.step > 1:
        return f"{piece[0]},{piece[1]}"
    head = f"{piece[0]}-{piece[-1]}"
    return head if piece.step == 1 else f"{head}:{piece.step}"


def _fold(ordered: Sequence[int]) -> Iterator[range]:
    """Ascending distinct numbers as few ``range`` pieces, greedily from the left."""
    index = 0
    while index < len(ordered):
        start = ordered[index]
        if index + 1 == len(ordered):
            yield range(start, start + 1)
            return
        step = ordered[index + 1] - start
        end = index + 1
        while end + 1 < len(ordered) and ordered[end + 1] - ordered[end] == step:
            end += 1
        if end == index + 1 and step > 1:
            # two numbers far apart say nothing about a step; the second may begin a run of its own
            yield range(start, start + 1)
            index += 1
            continue
        yield range(start, ordered[end] + 1, step)
        index = end + 1
