"""The judge: perfect on the generator's clips, chance on shuffled prompts, blind to nothing obvious."""

import numpy as np
import pytest

from jobs.video.tiny.clips import ALL_WISHES, FRAMES, SIZE, Wish, make_clips
from jobs.video.tiny.judge import Verdict, judge

RED_CIRCLE_LEFT = Wish("red", "circle", "left")


def one_clip(wish: Wish = RED_CIRCLE_LEFT) -> np.ndarray:
    return make_clips([wish], 1)[0]


@pytest.fixture(scope="module")
def verdicts() -> list[list[Verdict]]:
    return [[judge(clip) for clip in make_clips(ALL_WISHES, seed)] for seed in (101, 102)]


def test_generator_clips_are_judged_right_without_exception(verdicts: list[list[Verdict]]) -> None:
    for round_ in verdicts:
        assert [Wish(v.colour, v.shape, v.direction) for v in round_] == list(ALL_WISHES)


def test_shuffled_prompts_score_chance(verdicts: list[list[Verdict]]) -> None:
    """40 shuffles of 72: chance within four standard deviations of 2,880 independent draws."""
    rng = np.random.default_rng(0)
    hits = {"colour": 0, "shape": 0, "direction": 0}
    draws = 0
    for _ in range(20):
        for round_ in verdicts:
            for verdict, place in zip(round_, rng.permutation(len(ALL_WISHES)), strict=True):
                for attribute, good in verdict.obeys(ALL_WISHES[place]).items():
                    hits[attribute] += good
                draws += 1
    for attribute, chance in {"colour": 1 / 6, "shape": 1 / 3, "direction": 1 / 4}.items():
        assert abs(hits[attribute] / draws - chance) < 4 * (chance * (1 - chance) / draws) ** 0.5


def test_eight_bit_pixels_are_judged_alike() -> None:
    clip = one_clip()
    assert judge((clip * 255).round().astype(np.uint8)) == judge(clip) == Verdict("red", "circle", "left")


def test_a_film_with_blur_and_noise_is_still_read() -> None:
    clip = one_clip(Wish("blue", "triangle", "up"))
    soft = sum(np.roll(clip, (i, j), axis=(1, 2)) for i in (-1, 0, 1) for j in (-1, 0, 1)) / 9
    noisy = soft + np.random.default_rng(0).normal(0, 0.02, clip.shape)
    assert judge(noisy.clip(0, 1)) == Verdict("blue", "triangle", "up")


def test_an_empty_film_has_nothing() -> None:
    assert judge(np.full((FRAMES, SIZE, SIZE, 3), 0.2, dtype=np.float32)) == Verdict(None, None, None)


def test_noise_has_no_shape_and_no_direction() -> None:
    verdict = judge(np.random.default_rng(0).random((FRAMES, SIZE, SIZE, 3)))
    assert verdict.shape is None
    assert verdict.direction is None


def test_a_still_film_has_no_direction() -> None:
    clip = one_clip()
    assert judge(np.repeat(clip[:1], FRAMES, axis=0)) == Verdict("red", "circle", None)


def test_a_film_played_backwards_moves_the_other_way() -> None:
    assert judge(one_clip()[::-1]).direction == "right"


def test_a_diagonal_path_has_no_direction() -> None:
    still = one_clip()[8]
    diagonal = np.stack([np.roll(still, (i - 8, i - 8), axis=(0, 1)) for i in range(FRAMES)])
    assert judge(diagonal).direction is None


def test_frames_in_random_order_have_no_direction() -> None:
    order = np.random.default_rng(4).permutation(FRAMES)
    assert judge(one_clip()[order]).direction is None


def test_an_object_seen_in_half_of_the_frames_is_not_enough() -> None:
    clip = one_clip()
    clip[::2] = 0.2
    assert judge(clip) == Verdict(None, None, None)


def test_two_objects_at_once_have_no_shape() -> None:
    clip = np.maximum(one_clip(), one_clip()[:, ::-1, ::-1])
    assert judge(clip).shape is None


def test_a_colour_between_two_names_has_none() -> None:
    clip = one_clip()
    grey = clip.min(axis=-1, keepdims=True)
    orange = grey + (clip.max(axis=-1, keepdims=True) - grey) * np.array([1.0, 0.5, 0.0])  # hue 30
    assert judge(orange).colour is None


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        (np.zeros((4, 8, 8)), "must be"),
        (np.zeros((1, 8, 8, 3)), "must be"),
        (np.full((4, 8, 8, 3), np.nan), "non-finite"),
    ],
)
def test_what_is_no_clip_is_refused(clip: np.ndarray, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        judge(clip)
