"""Small posed scenes whose pictures are drawn here, by formula, for tests of the kind nerf."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

FOCAL = 40.0
SIZE = (32, 24)


def look_at(origin: Any, target: Any = (0.0, 0.0, 0.0)) -> Any:
    """Camera-to-world, OpenGL axes, z up."""
    origin, target = np.asarray(origin, float), np.asarray(target, float)
    back = (origin - target) / np.linalg.norm(origin - target)
    right = np.cross([0, 0, 1.0], back)
    right /= np.linalg.norm(right)
    matrix = np.eye(4)
    matrix[:3, 0], matrix[:3, 1], matrix[:3, 2], matrix[:3, 3] = right, np.cross(back, right), back, origin
    return matrix


def ring(count: int, radius: float = 3.0, lift: float = 1.0) -> list[Any]:
    """Cameras around the z axis that look at the origin, at two heights."""
    turns = [2 * math.pi * i / count for i in range(count)]
    return [
        look_at((radius * math.cos(a), radius * math.sin(a), lift if i % 2 else 2 * lift))
        for i, a in enumerate(turns)
    ]


def draw(matrix: Any, size: tuple[int, int] = SIZE, focal: float = FOCAL) -> Any:
    """RGBA of three coloured balls, seen through a pinhole: ray against sphere, nearest wins."""
    width, height = size
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    local = np.stack([(x - width / 2) / focal, -(y - height / 2) / focal, -np.ones_like(x)], -1)
    rays = local @ matrix[:3, :3].T
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    picture = np.zeros((height, width, 4), np.uint8)
    nearest = np.full((height, width), np.inf)
    balls = [
        ((0.0, 0.0, 0.0), 0.45, (220, 60, 40)), ((0.6, 0.1, 0.2), 0.3, (40, 190, 70)),
        ((-0.3, -0.5, 0.3), 0.3, (50, 80, 220)),
    ]  # fmt: skip
    for centre, radius, colour in balls:
        apart = matrix[:3, 3] - np.asarray(centre)
        b = rays @ apart
        under = b * b - (apart @ apart - radius * radius)
        t = -b - np.sqrt(np.maximum(under, 0))
        hit = (under > 0) & (t > 0) & (t < nearest)
        nearest[hit] = t[hit]
        picture[hit] = (*colour, 255)
    return picture


def write_set(folder: Path, count: int = 12, size: tuple[int, int] = SIZE) -> Path:
    """Pictures and a transforms.json in ``folder``; the json's path."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = []
    focal = FOCAL * size[0] / SIZE[0]
    for index, matrix in enumerate(ring(count)):
        name = f"images/{index:03d}.png"
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(draw(matrix, size, focal)).save(folder / name)
        frames.append({"file_path": name, "transform_matrix": matrix.tolist()})
    path = folder / "transforms.json"
    path.write_text(
        json.dumps(
            {
                "fl_x": focal, "fl_y": focal, "cx": size[0] / 2, "cy": size[1] / 2, "w": size[0],
                "h": size[1], "frames": frames,
            }
        )
    )  # fmt: skip
    return path


def assets_of(folder: Path, prefix: str = "set") -> dict[str, Path]:
    """Job paths of everything below ``folder``."""
    return {
        f"{prefix}/{path.relative_to(folder).as_posix()}": path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
