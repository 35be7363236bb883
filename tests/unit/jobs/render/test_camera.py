"""Cameras against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from farm.frame_range import FrameRange
from jobs.render.camera import (
    Bounds,
    KeyframeCamera,
    OrbitCamera,
    Pose,
    fit_distance,
    intrinsics,
    keyframe_pose,
    orbit_pose,
)

FRAMES = FrameRange.parse("1-4")
BOUNDS = Bounds((1.0, 2.0, 3.0), 0.5)


def orbit(**fields: object) -> OrbitCamera:
    return OrbitCamera.model_validate({"distance": 10.0, "target": [0, 0, 0], "elevation": 0, **fields})


@pytest.mark.parametrize(
    ("frame", "origin"), [(1, (0, 0, 10)), (2, (10, 0, 0)), (3, (0, 0, -10)), (4, (-10, 0, 0))]
)
def test_a_turn_over_four_frames_stands_at_the_four_sides(frame: int, origin: tuple[float, ...]) -> None:
    pose = orbit_pose(orbit(), frame, FRAMES, BOUNDS, (100, 100))
    assert pose.origin == pytest.approx(origin, abs=1e-12)
    assert pose.target == (0, 0, 0)


def test_the_frame_after_the_last_would_be_the_first_again() -> None:
    first = orbit_pose(orbit(), 1, FRAMES, BOUNDS, (100, 100))
    after = orbit_pose(orbit(), 5, FRAMES, BOUNDS, (100, 100))
    assert after.origin == pytest.approx(first.origin, abs=1e-12)


def test_negative_turns_run_the_other_way() -> None:
    pose = orbit_pose(orbit(turns=-1), 2, FRAMES, BOUNDS, (100, 100))
    assert pose.origin == pytest.approx((-10, 0, 0), abs=1e-12)


def test_elevation_lifts_the_camera_at_the_same_distance() -> None:
    pose = orbit_pose(orbit(elevation=30), 1, FRAMES, BOUNDS, (100, 100))
    assert pose.origin == pytest.approx((0, 5.0, 10 * math.sqrt(3) / 2))


def test_with_z_up_the_front_is_minus_y_and_the_turn_stays_counterclockwise() -> None:
    front = orbit_pose(orbit(up="z"), 1, FRAMES, BOUNDS, (100, 100))
    quarter = orbit_pose(orbit(up="z"), 2, FRAMES, BOUNDS, (100, 100))
    assert front.origin == pytest.approx((0, -10, 0), abs=1e-12)
    assert quarter.origin == pytest.approx((10, 0, 0), abs=1e-12)
    assert front.up == (0, 0, 1)


def test_what_the_camera_leaves_out_comes_from_the_scene() -> None:
    camera = OrbitCamera(elevation=0, fov=60, fit=1.0)
    pose = orbit_pose(camera, 1, FRAMES, BOUNDS, (100, 100))
    # a sphere of radius 0.5 touches the edge of a 60 degree picture at 0.5 / sin(30) = 1
    assert pose.target == BOUNDS.center
    assert pose.origin == pytest.approx((1.0, 2.0, 4.0))


def test_fitting_uses_the_narrower_side_of_the_picture() -> None:
    # fov 90 across a 2:1 picture: half height angle is atan(1/2), sin of it 1/sqrt(5)
    assert fit_distance(1.0, 90.0, (200, 100), 1.0) == pytest.approx(math.sqrt(5))
    assert fit_distance(1.0, 90.0, (100, 200), 1.0) == pytest.approx(math.sqrt(2))


def test_the_matrix_looks_along_minus_z_with_y_up() -> None:
    matrix = Pose((0, 0, 10), (0, 0, 0), (0, 1, 0), 40).camera_to_world()
    assert matrix == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 10], [0, 0, 0, 1]]
    # from +x looking to the origin: right is -z, up is y, backwards is +x
    matrix = Pose((7, 0, 0), (0, 0, 0), (0, 1, 0), 40).camera_to_world()
    assert [row[0] for row in matrix[:3]] == pytest.approx([0, 0, -1])
    assert [row[1] for row in matrix[:3]] == pytest.approx([0, 1, 0])
    assert [row[2] for row in matrix[:3]] == pytest.approx([1, 0, 0])


def test_intrinsics_of_a_ninety_degree_camera() -> None:
    assert intrinsics(90.0, (200, 100)) == pytest.approx(
        {"fl_x": 100.0, "fl_y": 100.0, "cx": 100.0, "cy": 50.0, "w": 200, "h": 100}
    )


def key(frame: int, x: float, **fields: object) -> dict[str, object]:
    return {"frame": frame, "origin": [x, 0, 10], "target": [0, 0, 0], **fields}


def path(interpolation: str, *keys: dict[str, object]) -> KeyframeCamera:
    return KeyframeCamera.model_validate({"keyframes": list(keys), "interpolation": interpolation})


def test_linear_keyframes_lie_on_the_line() -> None:
    camera = path("linear", key(0, 0, fov=40), key(10, 5, fov=60))
    pose = keyframe_pose(camera, 4)
    assert pose.origin == pytest.approx((2.0, 0, 10))
    assert pose.fov == pytest.approx(48.0)


def test_hold_jumps_at_the_keyframe() -> None:
    camera = path("hold", key(0, 0), key(10, 5))
    assert keyframe_pose(camera, 9).origin[0] == 0
    assert keyframe_pose(camera, 10).origin[0] == 5


def test_before_and_after_the_keyframes_the_camera_stands_still() -> None:
    for interpolation in ("linear", "smooth", "hold"):
        camera = path(interpolation, key(0, 1), key(10, 5))
        assert keyframe_pose(camera, -7).origin[0] == 1
        assert keyframe_pose(camera, 99).origin[0] == 5


def test_smooth_passes_through_every_keyframe_and_keeps_a_straight_line_straight() -> None:
    camera = path("smooth", key(0, 0), key(10, 5), key(30, 15))
    for frame in range(31):
        assert keyframe_pose(camera, frame).origin[0] == pytest.approx(frame / 2)


def test_smooth_is_the_hermite_cubic_with_catmull_rom_tangents() -> None:
    # x = 0, 4, 0 at frames 0, 10, 20: tangents 4/10, 0, -4/10 a frame; at frame 5, s = 1/2:
    # h00 = 1/2, h10 = 1/8, h01 = 1/2, h11 = -1/8, so 0 + 10 * 0.4 / 8 + 2 - 0 = 2.5
    camera = path("smooth", key(0, 0), key(10, 4), key(20, 0))
    assert keyframe_pose(camera, 5).origin[0] == pytest.approx(2.5)
    assert keyframe_pose(camera, 15).origin[0] == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([key(5, 0), key(5, 1)], "once, in order"),
        ([key(5, 0), key(4, 1)], "once, in order"),
        ([{"frame": 1, "origin": [0, 0, 0], "target": [0, 0, 0]}], "one point"),
        ([{"frame": 1, "origin": [0, 5, 0], "target": [0, 0, 0]}], "along the view"),
        ([{"frame": 1, "origin": [0, 0, 5], "target": [0, 0, 0], "up": [0, 0, 0]}], "up is zero"),
        ([{"frame": 1, "origin": [0, 0, float("nan")], "target": [0, 0, 0]}], "finite"),
    ],
)
def test_keyframes_that_make_no_camera_are_refused(keys: list[dict[str, object]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        KeyframeCamera.model_validate({"keyframes": keys})


def test_a_path_that_passes_its_target_is_an_error_of_that_frame() -> None:
    with pytest.raises(ValueError, match="up direction"):
        Pose((0, 5, 0), (0, 0, 0), (0, 1, 0), 40).camera_to_world()
