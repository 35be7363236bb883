"""Where a scene lies, which way is up, what is held out, and the camera paths through it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farm.frame_range import FrameRange
from jobs.nerf.cameras import path_views
from jobs.nerf.methods.rays import contract, expand_out, spacing, view_rays
from jobs.nerf.rendering import normals_of
from jobs.nerf.scene import CONTRACTED, Scene, View, hold_out, looked_at, normalise, up_direction
from jobs.nerf.spec import Spec
from tests.unit.jobs.local_host import LocalHost
from tests.unit.jobs.nerf.scenes import FOCAL, look_at, ring


def views(matrices: list[Any]) -> list[View]:
    return [View(f"{i}", 32, 24, FOCAL, FOCAL, 16.0, 12.0, m) for i, m in enumerate(matrices)]


def turned(matrix: Any) -> Any:
    """The same camera in a world whose y points up, moved and three times as large."""
    world = np.array([[3.0, 0, 0, 5], [0, 0, 3, -2], [0, -3, 0, 1], [0, 0, 0, 1]])
    out = world @ matrix
    out[:3, :3] /= 3.0
    return out


def test_the_world_is_put_upright_and_what_is_looked_at_into_the_unit_ball() -> None:
    scene = normalise(views([turned(m) for m in ring(8)]), np.zeros((0, 6)), bounded=True)
    assert np.allclose(up_direction(views([turned(m) for m in ring(8)])), [0, 1, 0])
    # the ring looked at the origin, which went to (5, -2, 1)
    centre, radius = looked_at(views([turned(m) for m in ring(8)]), np.zeros((0, 6)))
    assert np.allclose(centre, [5, -2, 1])
    distances = [3 * np.linalg.norm(m[:3, 3]) for m in ring(8)]
    assert np.isclose(radius, np.median(distances) * 16 / FOCAL)
    for view in scene.views:
        assert np.allclose(view.matrix[:3, :3] @ view.matrix[:3, :3].T, np.eye(3))
        assert view.matrix[2, 3] > 0
        to_middle = -view.matrix[:3, 3] / np.linalg.norm(view.matrix[:3, 3])
        assert np.allclose(-view.matrix[:3, 2], to_middle)
    assert np.allclose(scene.world @ [5, -2, 1, 1], [0, 0, 0, 1])


def test_a_scene_survives_its_file(tmp_path: Path) -> None:
    points = np.random.default_rng(0).random((5, 6))
    scene = normalise(views(ring(5)), points, bounded=False, about={"note": "x"})
    scene.save(tmp_path)
    again = Scene.load(tmp_path)
    assert again.about == scene.about and not again.bounded
    assert all(np.array_equal(a.matrix, b.matrix) for a, b in zip(again.views, scene.views, strict=True))
    assert np.allclose(again.points, scene.points, atol=1e-6)


def test_every_nth_picture_is_held_out_and_never_the_first() -> None:
    names = [f"{i:02d}" for i in range(20)]
    assert hold_out(names, 8) == {"04", "12"}
    assert hold_out(names, 0) == set() and hold_out(names[:3], 8) == set()


def test_contraction_keeps_the_ball_and_brings_all_of_space_into_its_shell() -> None:
    points = torch.tensor([[0.3, 0.1, 0.2], [5.0, 0, 0], [0, -1e6, 0]], dtype=torch.float64)
    found = contract(points)
    assert torch.equal(found[0], points[0])
    # 1 + shell - shell / length
    assert torch.isclose(found[1, 0], torch.tensor(CONTRACTED - (CONTRACTED - 1) / 5.0, dtype=torch.float64))
    assert found[2].norm() < CONTRACTED
    assert torch.allclose(expand_out(found[:2]), points[:2])


@pytest.mark.parametrize("bounded", [True, False])
def test_samples_run_forward_and_cover_the_ball(bounded: bool) -> None:
    origins = torch.tensor([[0.0, 0, 3], [0, 2.5, 3], [0.1, 0, 0]])
    directions = torch.nn.functional.normalize(
        torch.tensor([[0.0, 0, -1], [0, 0, -1.0], [1, 1, 0.0]]), dim=-1
    )
    edges, near, far = spacing(origins, directions, bounded=bounded, extent=1.0, count=30)
    assert edges.shape == (3, 31) and bool((torch.diff(edges, dim=-1) >= 0).all())
    assert torch.isclose(near[0], torch.tensor(2.0)) and float(far[0]) >= 4.0 - 1e-5
    if bounded:
        # the second ray misses the ball: nothing is looked at along it
        assert float((far - near)[1]) == 0.0
    else:
        assert float(far[0]) > 60.0


def test_rays_of_a_view_go_through_its_pixels() -> None:
    view = views([look_at((3.0, 1.0, 2.0))])[0]
    origins, directions, along = view_rays(view, range(4, 6), torch.device("cpu"))
    assert directions.shape == (64, 3)
    point = origins[7].numpy() + 5.0 * directions[7].numpy()
    local = np.linalg.inv(view.matrix) @ [*point, 1.0]
    assert np.allclose(
        [FOCAL * local[0] / -local[2] + 16, -FOCAL * local[1] / -local[2] + 12], [7.5, 4.5], atol=1e-4
    )
    assert np.isclose(-local[2], 5.0 * float(along[7]), atol=1e-5)


def test_normals_of_a_slanted_plane_are_the_planes() -> None:
    view = views([look_at((0.0, -3.0, 2.0))])[0]
    origins, directions, along = view_rays(view, range(24), torch.device("cpu"))
    normal = np.array([0.3, -0.2, 1.0]) / np.linalg.norm([0.3, -0.2, 1.0])
    o, d = origins.numpy().astype(float), directions.numpy().astype(float)
    t = -(o @ normal) / (d @ normal)
    depth = (t * along.numpy()).reshape(24, 32)
    found = normals_of(depth.astype(np.float32), np.ones((24, 32), np.float32), view)
    assert np.abs(found[4:-4, 4:-4] - normal).max() < 0.01


def spec(**path: Any) -> Spec:
    return Spec.model_validate({"source": "p", "path": path})


def path(tmp_path: Path, numbers: list[int], every: str = "1-8", **asked: Any) -> tuple[Scene, list[View]]:
    scene = normalise(views(ring(8)), np.zeros((0, 6)), bounded=True)
    host = LocalHost(tmp_path / "host", {})
    return scene, path_views(spec(**asked), scene, FrameRange.parse(every), numbers, (64, 48), host)


def test_the_turntable_turns_once_and_looks_at_the_middle(tmp_path: Path) -> None:
    scene, found = path(tmp_path, list(range(1, 9)), type="orbit", elevation=30.0)
    distance = np.median([np.linalg.norm(v.matrix[:3, 3]) for v in scene.views])
    places = np.stack([v.matrix[:3, 3] for v in found])
    assert np.allclose(np.linalg.norm(places, axis=1), distance)
    assert np.allclose(places[:, 2], distance / 2)
    turns = np.unwrap(np.arctan2(places[:, 0], -places[:, 1]))
    assert np.allclose(np.diff(turns), math.radians(45))
    assert all(np.allclose(np.cross(v.matrix[:3, 2], v.matrix[:3, 3]), 0, atol=1e-9) for v in found)
    # a view of another size sees as wide as the pictures did
    assert np.isclose(found[0].fx / 64, FOCAL / 32)


def test_interpolation_goes_through_the_cameras_themselves(tmp_path: Path) -> None:
    scene, found = path(tmp_path, [1, 2, 8], type="interpolate")
    train = scene.of("train")
    assert np.allclose(found[0].matrix, train[0].matrix)
    assert np.allclose(found[1].matrix, train[1].matrix)
    assert np.allclose(found[2].matrix, train[-1].matrix)
    _, (half,) = path(tmp_path, [2], every="1-15", type="interpolate")
    turn = train[0].matrix[:3, :3].T @ half.matrix[:3, :3]
    whole = train[0].matrix[:3, :3].T @ train[1].matrix[:3, :3]
    angle = [math.acos((np.trace(m) - 1) / 2) for m in (turn, whole)]
    assert np.isclose(angle[0], angle[1] / 2)


def test_keyframes_stand_in_the_sources_coordinates(tmp_path: Path) -> None:
    keyframe = {"frame": 1, "origin": [3, 0, 1], "target": [0, 0, 0], "up": [0, 0, 1], "fov": 60}
    scene, (found,) = path(tmp_path, [1], type="keyframes", keyframes=[keyframe])
    wanted = scene.world @ np.array([3, 0, 1, 1.0])
    assert np.allclose(found.matrix[:3, 3], wanted[:3])
    assert np.isclose(found.fx, 32 / math.tan(math.radians(30)))


def test_the_spiral_stays_on_the_cameras_side(tmp_path: Path) -> None:
    front = [look_at((0.4 * math.sin(i), -3.0, 1 + 0.3 * math.cos(i))) for i in range(8)]
    scene = normalise(views(front), np.zeros((0, 6)), bounded=True)
    host = LocalHost(tmp_path / "host", {})
    found = path_views(
        spec(type="spiral"), scene, FrameRange.parse("1-20"), list(range(1, 21)), (64, 48), host
    )
    places = np.stack([v.matrix[:3, 3] for v in found])
    middle = np.mean([v.matrix[:3, 3] for v in scene.views], axis=0)
    assert (places @ middle > 0).all() and len(np.unique(places.round(6), axis=0)) > 15
