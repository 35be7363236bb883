"""Where the camera stands in each frame: pure arithmetic, shared by ``expand``, the child and the tests.

Lengths in scene units, angles in degrees. A pose is turned into a camera-to-world matrix in the convention
of OpenGL and of NeRF datasets: x right, y up, looking along -z.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from farm.frame_range import FrameRange
from jobs.fields import Model

Vector = tuple[float, float, float]
UpAxis = Literal["y", "z"]
_UP: dict[str, Vector] = {"y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}


class FileCamera(Model):
    """A camera that stands in the scene file; its film size and samples are set by the job."""

    type: Literal["file"] = "file"
    index: int = Field(default=0, ge=0, le=1000, description="Which of the file's sensors, from 0.")


class OrbitCamera(Model):
    """A turntable: the camera circles a point and looks at it."""

    type: Literal["orbit"] = "orbit"
    elevation: float = Field(
        default=20.0, ge=-89, le=89, description="Height angle above the target, degrees."
    )
    azimuth: float = Field(
        default=0.0,
        ge=-3600,
        le=3600,
        description="Angle of the first frame: 0 sees the front (+z; -y if up is z).",
    )
    turns: float = Field(
        default=1.0,
        ge=-100,
        le=100,
        description="Turns over the frame range; negative runs clockwise from above.",
    )
    target: Vector | None = Field(
        default=None, description="Point looked at; left out: the centre of the scene."
    )
    distance: float | None = Field(
        default=None, gt=0, description="Distance from the target; left out: the scene just fits."
    )
    fit: float = Field(
        default=1.1, gt=0, le=100, description="Room around a fitted scene; 1 fits its sphere."
    )
    fov: float = Field(default=40.0, gt=0, lt=175, description="Horizontal field of view, degrees.")
    up: UpAxis = Field(default="y", description="Axis that points up.")


class Keyframe(Model):
    """The camera at one frame."""

    frame: int = Field(description="Frame number.")
    origin: Vector = Field(description="Where the camera stands.")
    target: Vector = Field(description="What it looks at.")
    up: Vector = Field(default=(0.0, 1.0, 0.0), description="Direction that is up in the picture.")
    fov: float = Field(default=40.0, gt=0, lt=175, description="Horizontal field of view, degrees.")

    @model_validator(mode="after")
    def _looks_somewhere(self) -> Self:
        forward = _minus(self.target, self.origin)
        if _length(forward) < 1e-9:
            raise ValueError(f"keyframe {self.frame}: origin and target are one point; move one of them")
        if _length(_cross(forward, self.up)) < 1e-6 * _length(forward) * max(_length(self.up), 1e-9):
            raise ValueError(f"keyframe {self.frame}: up is zero or along the view; choose another up")
        return self


class KeyframeCamera(Model):
    """A camera path through keyframes; before the first and after the last the camera stands still."""

    type: Literal["keyframes"] = "keyframes"
    keyframes: list[Keyframe] = Field(min_length=1, max_length=10_000, description="In order of frame.")
    interpolation: Literal["linear", "smooth", "hold"] = Field(
        default="smooth", description="smooth: cubic through all keyframes; linear: straight; hold: jumps."
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        for a, b in zip(self.keyframes, self.keyframes[1:], strict=False):
            if b.frame <= a.frame:
                raise ValueError(
                    f"keyframe {b.frame} comes after keyframe {a.frame}; put each frame once, in order"
                )
        return self


Camera = Annotated[FileCamera | OrbitCamera | KeyframeCamera, Field(discriminator="type")]


@dataclass(frozen=True, slots=True)
class Pose:
    """A camera: where it stands, what it looks at, which way is up, and its horizontal field of view."""

    origin: Vector
    target: Vector
    up: Vector
    fov: float

    def camera_to_world(self) -> list[list[float]]:
        """4x4 matrix, rows first, OpenGL convention. Raises :class:`ValueError` where ``up`` is of no use."""
        forward = _minus(self.target, self.origin)
        right = _cross(forward, self.up)
        if _length(forward) < 1e-12 or _length(right) < 1e-9 * _length(forward):
            raise ValueError("the camera looks along its up direction, or at the point where it stands")
        forward, right = _unit(forward), _unit(right)
        up = _cross(right, forward)
        rows = [[right[i], up[i], -forward[i], self.origin[i]] for i in range(3)]
        return [*rows, [0.0, 0.0, 0.0, 1.0]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a fitted camera must see: a sphere around the scene."""

    center: Vector
    radius: float


def orbit_pose(
    camera: OrbitCamera, frame: int, frames: FrameRange, bounds: Bounds, size: tuple[int, int]
) -> Pose:
    """The turntable at ``frame``.

    The turns are spread over the frames ``first`` to ``last``, so that the frame after the last would be
    the first again and a film loops. ``bounds`` fills in what the camera leaves out, ``size`` is the
    picture's in pixels.
    """
    period = frames.last - frames.first + 1
    angle = math.radians(camera.azimuth + 360.0 * camera.turns * (frame - frames.first) / period)
    lift = math.radians(camera.elevation)
    target = camera.target or bounds.center
    distance = camera.distance or fit_distance(bounds.radius, camera.fov, size, camera.fit)
    aside = distance * math.cos(lift) * math.sin(angle)
    ahead = distance * math.cos(lift) * math.cos(angle)
    above = distance * math.sin(lift)
    step = (aside, above, ahead) if camera.up == "y" else (aside, -ahead, above)
    origin = (target[0] + step[0], target[1] + step[1], target[2] + step[2])
    return Pose(origin, target, _UP[camera.up], camera.fov)


def fit_distance(radius: float, fov: float, size: tuple[int, int], fit: float) -> float:
    """Distance at which a sphere of ``radius * fit`` touches the picture's edge. ``fov`` is horizontal."""
    half = math.radians(fov) / 2.0
    half_height = math.atan(math.tan(half) * size[1] / size[0])
    return max(radius, 1e-6) * fit / math.sin(min(half, half_height))


def keyframe_pose(camera: KeyframeCamera, frame: int) -> Pose:
    """The camera path at ``frame``. ``smooth`` is a cubic Hermite spline with Catmull-Rom tangents."""
    keys = camera.keyframes
    index = bisect_right([k.frame for k in keys], frame) - 1
    if index < 0 or index == len(keys) - 1 or camera.interpolation == "hold" or keys[index].frame == frame:
        key = keys[max(index, 0)]
        return Pose(key.origin, key.target, key.up, key.fov)
    times = [float(k.frame) for k in keys]

    def mix(values: Sequence[float]) -> float:
        if camera.interpolation == "linear":
            share = (frame - times[index]) / (times[index + 1] - times[index])
            return values[index] + share * (values[index + 1] - values[index])
        return _hermite(times, values, index, float(frame))

    def mix_vector(vectors: Sequence[Vector]) -> Vector:
        return (mix([v[0] for v in vectors]), mix([v[1] for v in vectors]), mix([v[2] for v in vectors]))

    ups = [_unit(k.up) for k in keys]
    return Pose(
        mix_vector([k.origin for k in keys]),
        mix_vector([k.target for k in keys]),
        mix_vector(ups),
        min(max(mix([k.fov for k in keys]), 0.01), 174.99),
    )


def intrinsics(fov: float, size: tuple[int, int]) -> dict[str, float]:
    """Pinhole intrinsics in pixels, in the names of ``transforms.json``. ``fov`` is horizontal."""
    width, height = size
    focal = 0.5 * width / math.tan(math.radians(fov) / 2.0)
    return {"fl_x": focal, "fl_y": focal, "cx": width / 2.0, "cy": height / 2.0, "w": width, "h": height}


def _hermite(times: Sequence[float], values: Sequence[float], i: int, t: float) -> float:
    def slope(k: int) -> float:
        low, high = max(k - 1, 0), min(k + 1, len(times) - 1)
        return (values[high] - values[low]) / (times[high] - times[low])

    span = times[i + 1] - times[i]
    s = (t - times[i]) / span
    return (
        (2 * s**3 - 3 * s**2 + 1) * values[i]
        + (s**3 - 2 * s**2 + s) * span * slope(i)
        + (-2 * s**3 + 3 * s**2) * values[i + 1]
        + (s**3 - s**2) * span * slope(i + 1)
    )


def _minus(a: Vector, b: Vector) -> Vector:
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


def _cross(a: Vector, b: Vector) -> Vector:
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


def _length(a: Vector) -> float:
    return math.sqrt(a[0] ** 2 + a[1] ** 2 + a[2] ** 2)


def _unit(a: Vector) -> Vector:
    length = _length(a)
    return (a[0] / length, a[1] / length, a[2] / length)
