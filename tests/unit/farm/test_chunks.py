"""How long chunks are, and when the rest of one is split off."""

from __future__ import annotations

import pytest

from farm.chunks import chunk_size, runs_over


@pytest.mark.parametrize(
    ("frame_s", "target_s", "frames"),
    [
        (1.0, 20.0, 20),
        # 3 frames would be 19.5 s, under the target
        (6.5, 20.0, 4),
        # as long as a task should be, or longer: alone
        (20.0, 20.0, 1),
        (31.0, 20.0, 1),
        # over a minute: alone, however long a task may be
        (61.0, 400.0, 1),
        # too quick to tell: counted as 0.02 s, and never over 1,000
        (0.0, 2.0, 100),
        (0.001, 86_400.0, 1000),
    ],
)
def test_a_chunk_lasts_about_its_target_and_a_slow_frame_travels_alone(
    frame_s: float, target_s: float, frames: int
) -> None:
    assert chunk_size(frame_s, target_s) == frames


@pytest.mark.parametrize(
    ("times", "left", "over"),
    [
        # 10 frames of 4 s are 40 s: exactly twice the target is not over it
        ([4.0, 4.0], 10, False),
        ([4.0, 4.0], 11, True),
        # a slow frame late in the chunk: 3 more like it would be 90 s
        ([1.0] * 9 + [30.0], 3, True),
        # ... but not when it is past: the last frame tells
        ([30.0, 1.0], 20, False),
        # one frame is left: nobody else would be quicker
        ([1.0, 300.0], 1, False),
        ([1.0, 300.0], 0, False),
        # the first frame warms up: 3 s alone says nothing of the 99 that follow
        ([3.0], 99, False),
        ([40.0], 99, False),
        # one that took more than twice the whole target does
        ([41.0], 2, True),
        ([], 5, False),
    ],
)
def test_the_rest_is_split_off_when_it_would_take_over_twice_the_target(
    times: list[float], left: int, over: bool
) -> None:
    assert runs_over(times, left, 20.0) is over
