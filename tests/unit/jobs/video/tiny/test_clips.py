"""The generator of clips: wishes, held-out split, scenes inside the frame."""

from collections import Counter

import numpy as np

from jobs.video.tiny.clips import (
    ALL_WISHES,
    DIRECTIONS,
    FRAMES,
    HELD_OUT,
    HUES,
    SHAPES,
    SIZE,
    TRAINING,
    draw_prompt,
    draw_scenes,
    make_clips,
)


def test_there_are_72_wishes_with_prompts_of_their_own() -> None:
    assert len({w.prompt for w in ALL_WISHES}) == 6 * 3 * 4 == 72
    assert ALL_WISHES[0].prompt == "a red circle moves left"


def test_twelve_wishes_are_held_out_evenly_and_training_has_the_rest() -> None:
    assert len(HELD_OUT) == 12
    assert len(TRAINING) == 60
    assert HELD_OUT.isdisjoint(TRAINING)
    assert set(Counter(w.colour for w in HELD_OUT).values()) == {2}
    assert set(Counter(w.shape for w in HELD_OUT).values()) == {4}
    assert set(Counter(w.direction for w in HELD_OUT).values()) == {3}


def test_training_sees_every_pair_of_attributes() -> None:
    assert {(w.colour, w.shape) for w in TRAINING} == {(c, s) for c in HUES for s in SHAPES}
    assert {(w.colour, w.direction) for w in TRAINING} == {(c, d) for c in HUES for d in DIRECTIONS}
    assert {(w.shape, w.direction) for w in TRAINING} == {(s, d) for s in SHAPES for d in DIRECTIONS}


def test_a_seed_gives_the_same_clips_and_another_seed_others() -> None:
    wishes = ALL_WISHES[:3]
    first = make_clips(wishes, 5)
    assert first.shape == (3, FRAMES, SIZE, SIZE, 3)
    assert first.dtype == np.float32
    assert np.array_equal(first, make_clips(wishes, 5))
    assert not np.array_equal(first, make_clips(wishes, 6))


def test_pixels_stay_in_range_and_the_object_never_touches_the_border() -> None:
    clips = make_clips(ALL_WISHES, 11)
    assert clips.min() >= 0.0
    assert clips.max() <= 1.0
    ground = clips[:, :, 0, 0, 0][:, :, None]
    for edge in (clips[..., 0, :, :], clips[..., -1, :, :], clips[..., :, 0, :], clips[..., :, -1, :]):
        assert np.allclose(edge, ground[..., None], atol=1e-6)


def test_the_three_shapes_cover_the_area_of_the_circle_of_their_radius() -> None:
    wishes = ALL_WISHES[:12]
    scenes = draw_scenes(wishes, np.random.default_rng(3))
    clips = make_clips(wishes, 3)
    for i, clip in enumerate(clips):
        cover = (clip[8, :, :, 0] - scenes.ground[i]) / (scenes.rgb[i, 0] - scenes.ground[i])
        assert abs(cover.sum() / (np.pi * scenes.radius[i] ** 2) - 1) < 0.02


def test_prompts_for_training_name_all_three_attributes() -> None:
    rng = np.random.default_rng(0)
    for wish in TRAINING:
        words = draw_prompt(wish, rng).split()
        assert {wish.colour, wish.shape, wish.direction} <= set(words)
