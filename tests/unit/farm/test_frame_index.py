"""Which tasks a task waits for, frame by frame, against a plain search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farm.frame_index import FrameIndex

FRAMES = st.none() | st.sets(st.integers(1, 12), min_size=1, max_size=5)


@given(st.lists(FRAMES, max_size=8), FRAMES)
def test_a_task_waits_for_those_that_make_its_frames(
    upstream: list[set[int] | None], own: set[int] | None
) -> None:
    index = FrameIndex()
    for place, frames in enumerate(upstream):
        index.add(f"t{place}", sorted(frames) if frames is not None else None)
    expected = [
        f"t{place}" for place, frames in enumerate(upstream) if own is None or frames is None or frames & own
    ]
    assert list(index.needed(sorted(own) if own is not None else None)) == expected
