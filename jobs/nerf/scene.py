"""A posed scene as the steps of a job hand it on: pinhole views and the space they look into.

Cameras are in the convention of OpenGL and of NeRF datasets: x right, y up, looking along -z; matrices are
camera-to-world, 4x4, float64. Lengths are normalised: what the cameras look at fills the unit ball around the
origin and z is up. ``world`` is the similarity that takes the source's coordinates to these.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from farm.errors import PermanentFailure

Array = npt.NDArray[np.float64]
Split = Literal["train", "test"]
FORMAT: Final = "stillframe scene 1"
CONTRACTED: Final = 1.4
"""Radius of the ball into which a scene without bounds is contracted."""


@dataclass(frozen=True, slots=True)
class View:
    """One undistorted picture and the pinhole camera that took it; focal lengths and centre in pixels."""

    name: str
    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    matrix: Array
    split: Split = "train"
    file: str = ""
    frame: int = 0
    mask: str = ""
    """File of a mask: what is black there is not learnt from, nor judged. Empty: there is none."""

    def scaled(self, width: int, height: int) -> View:
        """The same camera with another number of pixels."""
        x, y = width / self.width, height / self.height
        return replace(
            self, width=width, height=height,
            fx=self.fx * x, fy=self.fy * y, cx=self.cx * x, cy=self.cy * y,
        )  # fmt: skip

    def moved(self, similarity: Array) -> View:
        """The camera after a similarity of the world (4x4: rotation, scale, translation)."""
        return replace(self, matrix=apply_similarity(similarity, self.matrix))


@dataclass(frozen=True, slots=True)
class Scene:
    """Views, where the scene lies, and how its coordinates came about.

    ``bounded``: nothing but the given background lies outside the ball of ``extent``, so that rays need
    not go further. ``points`` are sparse points, (n, 6): position and colour 0 to 1.
    """

    views: tuple[View, ...]
    world: Array
    bounded: bool
    extent: float = 1.0
    points: Array = field(default_factory=lambda: np.zeros((0, 6)))
    about: Mapping[str, Any] = field(default_factory=dict)

    def of(self, split: Split) -> list[View]:
        """The views of a split, in order."""
        return [view for view in self.views if view.split == split]

    def to_json(self) -> dict[str, Any]:
        """The scene in nerfstudio's ``transforms.json`` form, with what is ours beside it."""
        return {
            "format": FORMAT,
            "camera_model": "PINHOLE",
            "world": self.world.tolist(),
            "applied_transform": self.world[:3].tolist(),
            "bounded": self.bounded,
            "extent": self.extent,
            "about": dict(self.about),
            "frames": [
                {
                    "file_path": view.file, "name": view.name, "split": view.split, "frame": view.frame,
                    "w": view.width, "h": view.height,
                    "fl_x": view.fx, "fl_y": view.fy, "cx": view.cx, "cy": view.cy,
                    "transform_matrix": view.matrix.tolist(),
                    **({"mask_path": view.mask} if view.mask else {}),
                }
                for view in self.views
            ],
        }  # fmt: skip

    def save(self, folder: Path) -> None:
        """Write ``transforms.json`` and, where there are any, ``points.npy`` into ``folder``."""
        (folder / "transforms.json").write_text(json.dumps(self.to_json(), indent=1), "utf-8")
        if len(self.points):
            np.save(folder / "points.npy", self.points.astype(np.float32), allow_pickle=False)

    @staticmethod
    def load(folder: Path) -> Scene:
        """Read what :meth:`save` wrote. Raises :class:`PermanentFailure` for anything else."""
        data = json.loads((folder / "transforms.json").read_text("utf-8"))
        if data.get("format") != FORMAT:
            raise PermanentFailure(
                f"the scene is of format {data.get('format')!r}, not {FORMAT!r}; run the step `pose` again"
            )
        views = tuple(
            View(
                name=item["name"], width=item["w"], height=item["h"], fx=item["fl_x"], fy=item["fl_y"],
                cx=item["cx"], cy=item["cy"], matrix=np.array(item["transform_matrix"], dtype=np.float64),
                split=item["split"], file=item["file_path"], frame=item["frame"],
                mask=item.get("mask_path", ""),
            )
            for item in data["frames"]
        )  # fmt: skip
        path = folder / "points.npy"
        points = np.load(path, allow_pickle=False).astype(np.float64) if path.exists() else np.zeros((0, 6))
        return Scene(
            views,
            np.array(data["world"]),
            bool(data["bounded"]),
            float(data["extent"]),
            points,
            data["about"],
        )


def apply_similarity(similarity: Array, matrix: Array) -> Array:
    """A camera-to-world matrix after a similarity of the world; its rotation stays a rotation."""
    scale = float(np.cbrt(np.linalg.det(similarity[:3, :3])))
    moved = np.eye(4)
    moved[:3, :3] = similarity[:3, :3] @ matrix[:3, :3] / scale
    moved[:3, 3] = similarity[:3, :3] @ matrix[:3, 3] + similarity[:3, 3]
    return moved


def normalise(
    views: Sequence[View], points: Array, *, bounded: bool, about: Mapping[str, Any] | None = None
) -> Scene:
    """Turn up to +z, put what the cameras look at into the unit ball, and move views and points along."""
    rotation = _upright(up_direction(views))
    centre, radius = looked_at(views, points)
    world = np.eye(4)
    world[:3, :3] = rotation / radius
    world[:3, 3] = -rotation @ centre / radius
    moved = points.copy()
    if len(points):
        moved[:, :3] = points[:, :3] @ world[:3, :3].T + world[:3, 3]
    return Scene(
        tuple(view.moved(world) for view in views), world, bounded, 1.2 if bounded else 1.0, moved,
        {"centre": centre.tolist(), "radius": radius, **(about or {})},
    )  # fmt: skip


def up_direction(views: Sequence[View]) -> Array:
    """Gravity's opposite, from cameras held level: the direction across all of their x axes.

    Where the x axes do not tell (they are parallel), the mean of the cameras' own up.
    """
    sideways = np.stack([view.matrix[:3, 0] for view in views])
    mean = np.mean([view.matrix[:3, 1] for view in views], axis=0)
    values, vectors = np.linalg.eigh(sideways.T @ sideways)
    level = vectors[:, 0] * (1.0 if vectors[:, 0] @ mean >= 0 else -1.0)
    told = values[1] > 4.0 * max(values[0], 1e-12) and level @ mean > 0.3 * np.linalg.norm(mean)
    up = level if told else mean
    length = float(np.linalg.norm(up))
    return np.asarray(up / length if length > 1e-9 else np.array([0.0, 0.0, 1.0]))


def looked_at(views: Sequence[View], points: Array) -> tuple[Array, float]:
    """Centre and radius of what the cameras look at.

    The point nearest to all optical axes where they meet in front of the cameras, else the middle of the
    sparse points, else of the cameras; the radius is half of the median picture's width there.
    """
    origins = np.stack([view.matrix[:3, 3] for view in views])
    axes = np.stack([-view.matrix[:3, 2] for view in views])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
    system = across.sum(0)
    focus = np.linalg.lstsq(system, (across @ origins[:, :, None]).sum(0)[:, 0], rcond=None)[0]
    ahead = ((focus - origins) * axes).sum(1)
    meets = np.linalg.cond(system) < 1e4 and float((ahead > 0).mean()) > 0.9
    if not meets:
        focus = np.median(points[:, :3], axis=0) if len(points) else origins.mean(0)
    distances = np.linalg.norm(origins - focus, axis=1)
    if meets:
        halves = [max(v.width / v.fx, v.height / v.fy) / 2.0 for v in views]
        radius = float(np.median(distances * halves))
    elif len(points):
        radius = float(np.quantile(np.linalg.norm(points[:, :3] - focus, axis=1), 0.9))
    else:
        radius = float(distances.max())
    return focus, max(radius, 1e-6)


def _upright(up: Array) -> Array:
    """The rotation that takes ``up`` to +z by the shortest way."""
    z = np.array([0.0, 0.0, 1.0])
    axis, cosine = np.cross(up, z), float(up @ z)
    if cosine < -1.0 + 1e-9:
        return np.diag([1.0, -1.0, -1.0])
    skew = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    return np.asarray(np.eye(3) + skew + skew @ skew / (1.0 + cosine))


def check_matrix(matrix: Any, name: str) -> tuple[Array, list[str]]:
    """A camera-to-world matrix that is a rotation and a translation, and notes on what was put right.

    A scaled rotation (all axes alike) is freed of its scale with a note. Raises :class:`PermanentFailure`
    that names the picture for values that are not finite, a wrong shape, a left-handed or a skewed matrix.
    """
    try:
        found = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape == (3, 4):
        found = np.vstack([found, [0.0, 0.0, 0.0, 1.0]])
    if found.shape != (4, 4):
        raise PermanentFailure(f"{name}: transform_matrix is not 4x4; write the camera-to-world matrix")
    if not np.isfinite(found).all():
        raise PermanentFailure(
            f"{name}: transform_matrix holds NaN or infinity; take the picture out of the file or pose "
            f"it again"
        )
    axes = found[:3, :3]
    lengths = np.linalg.norm(axes, axis=0)
    if lengths.min() < 1e-9 or lengths.max() / lengths.min() > 1.001:
        raise PermanentFailure(
            f"{name}: the axes of transform_matrix have lengths {', '.join(f'{n:.4g}' for n in lengths)}; "
            "a camera's are all alike: export the matrices without scale"
        )
    unit = axes / lengths
    if np.abs(unit.T @ unit - np.eye(3)).max() > 1e-3:
        raise PermanentFailure(
            f"{name}: the axes of transform_matrix are not at right angles; a camera's are: export them again"
        )
    if np.linalg.det(unit) < 0:
        raise PermanentFailure(
            f"{name}: transform_matrix is left-handed (its determinant is negative); mirror one axis so "
            f"that x "
            "points right, y up and the camera looks along -z"
        )
    notes = []
    if abs(float(lengths.mean()) - 1.0) > 1e-3:
        notes.append(f"{name}: the matrix was scaled by {lengths.mean():.6g}; the scale was taken out")
    u, _, vt = np.linalg.svd(unit)
    found[:3, :3] = u @ vt
    return found, notes


def field_of_view(view: View) -> float:
    """Horizontal field of view in degrees."""
    return math.degrees(2.0 * math.atan(view.width / (2.0 * view.fx)))


def hold_out(names: Sequence[str], every: int) -> set[str]:
    """Names of the views that are kept from training: the middle one of each ``every`` in order; 0: none."""
    ordered = sorted(names)
    return set(ordered[every // 2 :: every]) if every else set()
