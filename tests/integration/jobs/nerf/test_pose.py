"""Cameras found by pycolmap against cameras that are known, and sets of pictures that must be refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from farm.errors import PermanentFailure
from jobs.nerf.inputs.raw import RawPicture, RawScene
from jobs.nerf.pose.solve import solve
from jobs.nerf.spec import PoseSettings
from tests.unit.jobs.local_host import LocalHost
from tests.unit.jobs.nerf.scenes import look_at

pytest.importorskip("pycolmap")
SIZE = (320, 240)
FOCAL = 300.0
QUICK: dict[str, Any] = {"max_features": 1500, "camera_model": "SIMPLE_PINHOLE", "single_camera": True}


def texture(seed: int, side: int = 700) -> Any:
    """A blotched picture with features of all sizes."""
    drawn = np.random.default_rng(seed)
    total = np.zeros((side, side, 3))
    for cells in (20, 60, 170):
        small = Image.fromarray(drawn.integers(0, 255, (cells, cells, 3), np.uint8))
        total += np.asarray(small.resize((side, side), Image.Resampling.BICUBIC), dtype=float) / 3
    return np.asarray(Image.fromarray(total.astype(np.uint8)).filter(ImageFilter.SHARPEN), dtype=float)


def draw(matrix: Any, textures: list[Any]) -> Image.Image:
    """Two textured planes, a floor (z = 0) and a wall (y = 1), through a pinhole; the nearer wins."""
    width, height = SIZE
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    local = np.stack([(x - width / 2) / FOCAL, -(y - height / 2) / FOCAL, -np.ones_like(x)], -1)
    rays, origin = local @ matrix[:3, :3].T, matrix[:3, 3]
    picture, nearest = np.full((height, width, 3), 30.0), np.full((height, width), np.inf)
    for axis, at, (u, v), paint in ((2, 0.0, (0, 1), textures[0]), (1, 1.0, (0, 2), textures[1])):
        t = (at - origin[axis]) / rays[..., axis]
        point = origin + rays * t[..., None]
        side = len(paint)
        a, b = (point[..., u] + 2.5) / 5 * side, (point[..., v] + 2.5) / 5 * side
        hit = (t > 0) & (t < nearest) & (a >= 0) & (b >= 0) & (a < side - 1) & (b < side - 1)
        nearest[hit] = t[hit]
        i, j = b[hit].astype(int), a[hit].astype(int)
        p, q = (b[hit] - i)[:, None], (a[hit] - j)[:, None]
        picture[hit] = (paint[i, j] * (1 - p) + paint[i + 1, j] * p) * (1 - q) + (
            paint[i, j + 1] * (1 - p) + paint[i + 1, j + 1] * p
        ) * q
    return Image.fromarray(picture.astype(np.uint8))


def cameras(count: int) -> list[Any]:
    found = []
    for i in range(count):
        turn = math.radians(-60 + 60 * i / max(count - 1, 1))
        origin = (3 * math.sin(turn) + 0.8, -3 * math.cos(turn), 1.6 + 0.4 * (i % 2))
        found.append(look_at(origin, (0.0, 0.6, 0.3)))
    return found


def write(folder: Path, images: list[Image.Image], start: int = 0) -> list[RawPicture]:
    folder.mkdir(exist_ok=True)
    made = []
    for index, image in enumerate(images, start):
        path = folder / f"p{index:02d}.png"
        image.save(path)
        made.append(RawPicture(path.name, path))
    return made


def run(pictures: list[RawPicture], folder: Path, **more: Any) -> RawScene:
    host = LocalHost(folder / "host", {})
    settings = PoseSettings(**{**QUICK, **more})
    return solve(RawScene(pictures), settings, host, folder / "work", threads=2, seed=0)


def aligned(found: list[Any], known: list[Any]) -> tuple[float, float]:
    """Largest rotation error in degrees and translation error as a share of the rig's size, after a
    similarity
    (Umeyama 1991) over the camera centres and the mean rotation."""
    a, b = np.stack([m[:3, 3] for m in found]), np.stack([m[:3, 3] for m in known])
    ca, cb = a - a.mean(0), b - b.mean(0)
    u, s, vt = np.linalg.svd(cb.T @ ca)
    sign = np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    turn = u @ sign @ vt
    scale = (s * np.diag(sign)).sum() / (ca**2).sum()
    off = np.linalg.norm(scale * ca @ turn.T - cb, axis=1).max() / np.linalg.norm(cb, axis=1).max()
    angles = [
        math.degrees(math.acos(min(1.0, (np.trace((turn @ f[:3, :3]).T @ k[:3, :3]) - 1) / 2)))
        for f, k in zip(found, known, strict=True)
    ]
    return max(angles), float(off)


def test_cameras_come_out_as_they_were_and_blank_pictures_are_named(tmp_path: Path) -> None:
    known = cameras(9)
    textures = [texture(1), texture(2)]
    pictures = write(tmp_path / "set", [draw(matrix, textures) for matrix in known])
    blank = write(tmp_path / "set", [Image.new("RGB", SIZE, (90, 90, 90))] * 2, start=9)
    found = run([*pictures, *blank], tmp_path)
    assert found.about["registered"] == 9 and found.about["dropped"] == ["p09.png", "p10.png"]
    assert found.about["reprojection_error"] < 1.0
    degrees, share = aligned([p.matrix for p in found.pictures], known)
    lens = found.pictures[0].lens
    assert lens is not None
    assert degrees < 0.5 and share < 0.01
    assert abs(lens.value("fl_x") / FOCAL - 1) < 0.02
    with pytest.raises(PermanentFailure, match=r"9 of 11 pictures .* not placed: p09\.png, p10\.png"):
        run([*pictures, *blank], tmp_path / "strict", min_registered=0.9)


def test_incremental_mapping_is_the_other_choice(tmp_path: Path) -> None:
    known = cameras(5)
    textures = [texture(1), texture(2)]
    pictures = write(tmp_path / "set", [draw(matrix, textures) for matrix in known])
    found = run(pictures, tmp_path, mapper="incremental")
    assert found.about["registered"] == 5 and found.about["mapper"] == "incremental"
    degrees, share = aligned([p.matrix for p in found.pictures], known)
    assert degrees < 1.0 and share < 0.02


def test_pictures_of_two_scenes_are_refused_with_what_fits_together(tmp_path: Path) -> None:
    images = [draw(m, [texture(1), texture(2)]) for m in cameras(4)]
    images += [draw(m, [texture(3), texture(4)]) for m in cameras(4)]
    with pytest.raises(PermanentFailure, match=r"of 8 pictures could be placed.*not placed: p0") as error:
        run(write(tmp_path / "set", images), tmp_path)
    assert "Take these out" in error.value.message


def test_too_few_alike_and_blank_pictures_are_refused_before_any_work(tmp_path: Path) -> None:
    one = draw(cameras(1)[0], [texture(1), texture(2)])
    with pytest.raises(PermanentFailure, match=r"2 pictures \(p00\.png, p01\.png\) are too few"):
        run(write(tmp_path / "two", [one, one]), tmp_path / "a")
    with pytest.raises(PermanentFailure, match="6 of 6 pictures are the same"):
        run(write(tmp_path / "same", [one] * 6), tmp_path / "b")
    greys = [Image.new("RGB", SIZE, (40 * n, 40 * n, 40 * n)) for n in range(1, 6)]
    with pytest.raises(PermanentFailure, match="5 of 5 pictures show nothing"):
        run(write(tmp_path / "blank", greys), tmp_path / "c")
