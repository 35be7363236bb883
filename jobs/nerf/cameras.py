"""Views along a camera path: turntable, interpolation, spiral, keyframes, nerfstudio's JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from farm.errors import PermanentFailure
from farm.frame_range import FrameRange
from jobs.engine import Host
from jobs.nerf.paths import FilePath, InterpolatePath, KeyframePath, OrbitPath, SpiralPath
from jobs.nerf.scene import Array, Scene, View, apply_similarity, check_matrix, field_of_view
from jobs.nerf.spec import Spec
from jobs.render.camera import KeyframeCamera, keyframe_pose

_UP: Final = np.array([0.0, 0.0, 1.0])
MOST_FRAMES: Final = 1_000_000


def path_frames(spec: Spec, host: Host) -> str | None:
    """Frames of a path in a file, as a range; ``None`` where the path has no length of its own."""
    if not isinstance(spec.path, FilePath) or spec.frames is not None:
        return None
    return f"1-{_file_length(_read(host, spec.path), spec.path.path)}"


def path_views(
    spec: Spec, scene: Scene, every: FrameRange, numbers: Sequence[int], size: tuple[int, int], host: Host
) -> list[View]:
    """The views at ``numbers`` of a path that runs over the frames ``every``. ``size`` in pixels.

    Raises :class:`PermanentFailure` for a path that cannot be followed, naming the keyframe.
    """
    path = spec.path
    if isinstance(path, KeyframePath):
        return [_keyframed(path, scene, number, size) for number in numbers]
    span = max(every.last - every.first, 1)
    if isinstance(path, OrbitPath):
        period = every.last - every.first + 1
        return [_orbit(path, scene, (n - every.first) / period, n, size) for n in numbers]
    shares = [(n - every.first) / span for n in numbers]
    if isinstance(path, SpiralPath):
        return [_spiral(path, scene, s, n, size) for s, n in zip(shares, numbers, strict=True)]
    if isinstance(path, InterpolatePath):
        views = scene.of("train")[:: path.every]
        keys = [(v.matrix, field_of_view(v)) for v in (*views, *(views[:1] if path.loop else ()))]
    else:
        assert isinstance(path, FilePath)
        keys = _file_keys(_read(host, path), path, scene, size)
    return [_between(keys, s, n, size) for s, n in zip(shares, numbers, strict=True)]


def pinhole(matrix: Array, fov: float, size: tuple[int, int], number: int) -> View:
    """A view with square pixels; ``fov`` is horizontal, in degrees."""
    width, height = size
    focal = 0.5 * width / math.tan(math.radians(fov) / 2)
    name = f"view {number}"
    return View(name, width, height, focal, focal, width / 2, height / 2, matrix, "test", "", number)


def looking(origin: Array, target: Array, up: Array) -> Array:
    """Camera-to-world of a camera at ``origin`` that looks at ``target``."""
    back = origin - target
    back = back / max(float(np.linalg.norm(back)), 1e-12)
    right = np.cross(up, back)
    if np.linalg.norm(right) < 1e-6:
        right = np.cross(np.array([0.0, 1.0, 0.0]), back)
    right /= np.linalg.norm(right)
    matrix = np.eye(4)
    matrix[:3, 0], matrix[:3, 1], matrix[:3, 2], matrix[:3, 3] = right, np.cross(back, right), back, origin
    return matrix


def median_fov(scene: Scene) -> float:
    """Of the pictures, in degrees."""
    return float(np.median([field_of_view(view) for view in scene.views]))


def _orbit(path: OrbitPath, scene: Scene, share: float, number: int, size: tuple[int, int]) -> View:
    origins = np.stack([view.matrix[:3, 3] for view in scene.views])
    distances = np.linalg.norm(origins, axis=1)
    lifts = np.degrees(np.arcsin(np.clip(origins[:, 2] / np.maximum(distances, 1e-9), -1, 1)))
    lift = math.radians(path.elevation if path.elevation is not None else float(np.median(lifts)))
    distance = float(np.median(distances)) * path.distance
    turn = math.radians(path.azimuth + 360.0 * path.turns * share)
    origin = distance * np.array(
        [math.cos(lift) * math.sin(turn), -math.cos(lift) * math.cos(turn), math.sin(lift)]
    )
    return pinhole(looking(origin, np.zeros(3), _UP), path.fov or median_fov(scene), size, number)


def _spiral(path: SpiralPath, scene: Scene, share: float, number: int, size: tuple[int, int]) -> View:
    origins = np.stack([view.matrix[:3, 3] for view in scene.views])
    middle, spread = origins.mean(0), origins.std(0).max()
    mean = looking(middle, np.zeros(3), _UP)
    turn = 2 * math.pi * path.turns * share
    reach = path.radius * max(float(spread), 1e-3)
    offset = reach * (math.cos(turn) * mean[:3, 0] + math.sin(turn) * mean[:3, 1])
    origin = middle * (1.0 + path.zoom * math.sin(turn / 2)) + offset
    return pinhole(looking(origin, np.zeros(3), _UP), median_fov(scene), size, number)


def _keyframed(path: KeyframePath, scene: Scene, number: int, size: tuple[int, int]) -> View:
    camera = KeyframeCamera(keyframes=path.keyframes, interpolation=path.interpolation)
    pose = keyframe_pose(camera, number)
    try:
        matrix = np.array(pose.camera_to_world())
    except ValueError as error:
        raise PermanentFailure(f"frame {number}: {error}; change the keyframes around it") from None
    return pinhole(apply_similarity(scene.world, matrix), pose.fov, size, number)


def _between(keys: list[tuple[Array, float]], share: float, number: int, size: tuple[int, int]) -> View:
    """Catmull-Rom through places and fields of view, the short way between rotations."""
    if len(keys) == 1:
        return pinhole(keys[0][0], keys[0][1], size, number)
    at = min(max(share, 0.0), 1.0) * (len(keys) - 1)
    index = min(int(at), len(keys) - 2)
    s = at - index

    def key(k: int) -> tuple[Array, float]:
        return keys[min(max(k, 0), len(keys) - 1)]

    around = [key(index + k) for k in (-1, 0, 1, 2)]
    w = (
        -0.5 * s + s * s - 0.5 * s**3,
        1 - 2.5 * s * s + 1.5 * s**3,
        0.5 * s + 2 * s * s - 1.5 * s**3,
        -0.5 * s * s + 0.5 * s**3,
    )
    place = sum(f * m[:3, 3] for f, (m, _) in zip(w, around, strict=True))
    fov = sum(f * v for f, (_, v) in zip(w, around, strict=True))
    matrix = np.eye(4)
    matrix[:3, :3] = _slerp(around[1][0][:3, :3], around[2][0][:3, :3], s)
    matrix[:3, 3] = place
    return pinhole(matrix, float(min(max(float(fov), 1.0), 170.0)), size, number)


def _slerp(a: Array, b: Array, s: float) -> Array:
    """From rotation ``a`` to ``b``, a share ``s`` of the way, about one axis."""
    turn = a.T @ b
    angle = math.acos(min(1.0, max(-1.0, (float(np.trace(turn)) - 1.0) / 2.0)))
    if angle < 1e-8:
        return a
    if angle > math.pi - 1e-4:
        values, vectors = np.linalg.eigh((turn + np.eye(3)) / 2.0)
        axis = vectors[:, int(values.argmax())]
    else:
        axis = np.array([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
        axis = axis / (2.0 * math.sin(angle))
    skew = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    part = np.eye(3) + math.sin(s * angle) * skew + (1 - math.cos(s * angle)) * skew @ skew
    return np.asarray(a @ part)


# --- nerfstudio's JSON -------------------------------------------------------------------------------


def _read(host: Host, path: FilePath) -> Mapping[str, Any]:
    try:
        data = json.loads(host.asset(path.path).read_text("utf-8"))
    except ValueError as error:
        raise PermanentFailure(f"{path.path} is not JSON: {error}") from None
    if not isinstance(data, dict) or not (data.get("camera_path") or data.get("keyframes")):
        raise PermanentFailure(
            f"{path.path} has neither camera_path nor keyframes; export it from nerfstudio"
        )
    kind = data.get("camera_type", "perspective")
    if kind != "perspective":
        raise PermanentFailure(f"{path.path}: camera_type {kind!r} is not made here; choose perspective")
    return data


def _file_length(data: Mapping[str, Any], label: str) -> int:
    cameras = data.get("camera_path")
    try:
        count = len(cameras) if cameras else round(float(data.get("fps", 24)) * float(data.get("seconds", 2)))
    except (TypeError, ValueError):
        count = 0
    if not 1 <= count <= MOST_FRAMES:
        raise PermanentFailure(f"{label}: fps times seconds gives {count} frames; name frames in the job")
    return count


def _file_keys(
    data: Mapping[str, Any], path: FilePath, scene: Scene, size: tuple[int, int]
) -> list[tuple[Array, float]]:
    """Matrix and horizontal field of view of every camera; nerfstudio's ``fov`` is vertical."""
    keys = []
    for index, item in enumerate(data.get("camera_path") or data["keyframes"]):
        label = f"{path.path}: camera {index}"
        values = item.get("camera_to_world", item.get("matrix")) if isinstance(item, dict) else None
        if isinstance(values, str):
            values = json.loads(values)
        try:
            flat = np.array(values, dtype=np.float64).reshape(-1)
            # keyframes of the viewer keep their matrices by columns, as three.js does
            square = flat.reshape(4, 4) if "camera_to_world" in item else flat.reshape(4, 4).T
            tall = math.radians(float(item.get("fov", 50.0)))
        except (TypeError, ValueError):
            raise PermanentFailure(f"{label} has no 4x4 matrix of numbers") from None
        if not 0.0 < tall < math.pi:
            raise PermanentFailure(f"{label}: fov must lie between 0 and 180 degrees")
        matrix, _ = check_matrix(square, label)
        if path.coordinates == "source":
            matrix = apply_similarity(scene.world, matrix)
        wide = 2 * math.atan(math.tan(tall / 2) * size[0] / size[1])
        keys.append((matrix, math.degrees(wide)))
    if data.get("is_cycle") and not data.get("camera_path"):
        keys.append(keys[0])
    return keys
