"""``transforms.json`` of NeRF-synthetic and of nerfstudio: intrinsics per frame, distortion, masks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from farm.errors import PermanentFailure
from jobs.nerf.inputs.pictures import open_picture, orientation, turned_lens
from jobs.nerf.inputs.raw import PARAMETERS, Lens, RawPicture, RawScene
from jobs.nerf.names import SUFFIXES
from jobs.nerf.scene import Array, check_matrix

_LENS: Final = ("fl_x", "fl_y", "cx", "cy", "k1", "k2", "k3", "k4", "p1", "p2")
_SPLITS: Final = {"train": "train", "test": "test", "val": "test"}
_SHOWN: Final = 5


def read_transforms(path: Path, label: str) -> RawScene:
    """Read ``path``; where it is one of NeRF-synthetic's three files, the others beside it are read too.

    Raises :class:`PermanentFailure` that names the file and the frame for whatever cannot be used.
    """
    files = {path: None} | {
        path.with_name(f"transforms_{name}.json"): split
        for name, split in _SPLITS.items()
        if path.name.startswith("transforms_") and path.with_name(f"transforms_{name}.json").is_file()
    }
    scene = RawScene([])
    names: set[str] = set()
    missing: list[str] = []
    for file, split in files.items():
        data = _load(file, label if file == path else file.name)
        frames = data.get("frames")
        if not isinstance(frames, list) or not frames:
            raise PermanentFailure(f"{label} has no list of frames; is it a transforms.json?")
        for index, frame in enumerate(frames):
            picture = _frame(
                data, frame, file, index, split or _SPLITS.get(_stem(file)), missing, scene.notes
            )
            if picture is not None and picture.name not in names:
                names.add(picture.name)
                scene.pictures.append(picture)
        _read_points(data, file, scene)
    if missing:
        shown = ", ".join(missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise PermanentFailure(
            f"{label} names {len(missing)} pictures that are not there: {shown}{more}; attach them, or take "
            "their frames out"
        )
    return scene


def _stem(file: Path) -> str:
    return file.stem.removeprefix("transforms_")


def _load(path: Path, label: str) -> dict[str, Any]:
    try:
        # NaN is read here and refused by name where it stands
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PermanentFailure(f"{label} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise PermanentFailure(f"{label} is not a JSON object; is it a transforms.json?")
    return data


def _frame(
    data: Mapping[str, Any],
    frame: Any,
    file: Path,
    index: int,
    split: str | None,
    missing: list[str],
    notes: list[str],
) -> RawPicture | None:
    name = frame.get("file_path") if isinstance(frame, dict) else None
    if not isinstance(name, str) or not name:
        raise PermanentFailure(f"{file.name}: frame {index} has no file_path")
    path = _find(file.parent, name)
    if path is None:
        missing.append(name)
        return None
    label = PurePosixPath(name).as_posix().removeprefix("./")
    if "transform_matrix" not in frame:
        raise PermanentFailure(f"{file.name}: {label} has no transform_matrix")
    matrix, said = check_matrix(frame["transform_matrix"], label)
    notes += said
    image = open_picture(path, label)
    lens, matrix, upright = _lens({**data, **frame}, image, matrix, label)
    mask = frame.get("mask_path")
    mask_file = _find(file.parent, mask) if isinstance(mask, str) else None
    if isinstance(mask, str) and mask_file is None:
        missing.append(mask)
    return RawPicture(
        f"{split}/{path.name}" if split else label, path, matrix, lens, split, mask_file, index, upright
    )


def _find(folder: Path, name: str) -> Path | None:
    """The file, with or without its suffix; never outside the folder that the .json stands in."""
    clean = PurePosixPath(name.replace("\\", "/"))
    if clean.is_absolute() or ".." in clean.parts:
        raise PermanentFailure(
            f"{name[:80]!r} leaves the folder of the transforms.json; put pictures beside it"
        )
    path = folder / clean
    if path.is_file():
        return path
    for suffix in SUFFIXES:
        if (with_suffix := path.with_name(path.name + suffix)).is_file():
            return with_suffix
    return None


def _lens(values: Mapping[str, Any], image: Any, matrix: Array, label: str) -> tuple[Lens, Array, bool]:
    """Intrinsics of one frame for its upright picture, whichever way up the file states them."""
    turn = orientation(image)
    raw = (image.width, image.height)
    shown = raw[::-1] if turn >= 5 else raw
    try:
        named = {name: float(values[name]) for name in _LENS if values.get(name) is not None}
        width, height = int(values.get("w") or 0), int(values.get("h") or 0)
        angle = values.get("camera_angle_x")
        tall = values.get("camera_angle_y")
        if (width, height) == (0, 0):
            width, height = shown
        if "fl_x" not in named and angle is not None:
            named["fl_x"] = 0.5 * width / math.tan(0.5 * float(angle))
        if "fl_y" not in named and tall is not None:
            named["fl_y"] = 0.5 * height / math.tan(0.5 * float(tall))
    except (TypeError, ValueError, ZeroDivisionError):
        raise PermanentFailure(f"{label}: the intrinsics are not numbers") from None
    if "fl_x" not in named:
        raise PermanentFailure(
            f"{label}: no focal length; give fl_x (in pixels) or camera_angle_x, in the file or in the frame"
        )
    named.setdefault("fl_y", named["fl_x"])
    named.setdefault("cx", width / 2.0)
    named.setdefault("cy", height / 2.0)
    stated = (width, height)
    sideways = turn != 1 and shown != raw and _alike(stated, raw) and not _alike(stated, shown)
    if sideways:
        # the file speaks of the picture as the sensor gave it: turn the lens and the camera with the picture
        width, height, named = turned_lens(turn, width, height, named)
        matrix = turn_camera(matrix, turn)
    elif not _alike(stated, shown):
        raise PermanentFailure(
            f"{label} has {shown[0]}x{shown[1]} pixels, but its intrinsics are for {width}x{height}; "
            "write w, h and the intrinsics of this very picture"
        )
    model = str(values.get("camera_model") or "").upper()
    if model in ("EQUIRECTANGULAR", "SPHERICAL", "ORTHOPHOTO"):
        raise PermanentFailure(
            f"{label}: camera_model {model} is no lens that can be made straight; cut perspective "
            f"pictures from it"
        )
    fish = "FISHEYE" in model or bool(values.get("is_fisheye"))
    chosen = "OPENCV_FISHEYE" if fish else "FULL_OPENCV" if "k3" in named or "k4" in named else "OPENCV"
    if not fish and not any(named.get(n) for n in ("k1", "k2", "k3", "k4", "p1", "p2")):
        chosen = "PINHOLE"
    x, y = shown[0] / width, shown[1] / height
    for name, factor in (("fl_x", x), ("cx", x), ("fl_y", y), ("cy", y)):
        named[name] *= factor
    assert chosen in PARAMETERS
    return Lens.of(chosen, *shown, named, label), matrix, True


def _alike(a: tuple[int, int], b: tuple[int, int]) -> bool:
    """The same shape, perhaps shrunk by a whole factor with its rounding."""
    return abs(a[0] * b[1] - a[1] * b[0]) <= max(a[0], a[1], b[0], b[1]) and min(*a, *b) > 0


def turn_camera(matrix: Array, value: int) -> Array:
    """A camera-to-world matrix after its picture was turned by EXIF orientation ``value``.

    Raises :class:`PermanentFailure` for mirrored pictures: no camera takes them.
    """
    turns = {1: (1, 0), 3: (-1, 0), 6: (0, 1), 8: (0, -1)}
    if value not in turns:
        raise PermanentFailure(f"EXIF orientation {value} mirrors the picture; no camera pose fits it")
    c, s = turns[value]
    # the picture turned clockwise by 90 degrees (6): its right was the sensor's up, its up the sensor's left
    basis = np.eye(4)
    basis[:2, :2] = [[c, -s], [s, c]]
    return np.asarray(matrix @ basis)


def _read_points(data: Mapping[str, Any], file: Path, scene: RawScene) -> None:
    name = data.get("ply_file_path")
    path = _find(file.parent, name) if isinstance(name, str) else None
    if path is None:
        return
    import trimesh

    cloud: Any = trimesh.load(path)
    places = np.asarray(cloud.vertices, dtype=np.float64)
    colours = np.full_like(places, 0.5)
    found = getattr(cloud, "colors", None)
    if found is not None and len(found) == len(places):
        colours = np.asarray(found, dtype=np.float64)[:, :3] / 255.0
    keep = np.isfinite(places).all(1)
    scene.points = np.hstack([places, colours])[keep]
