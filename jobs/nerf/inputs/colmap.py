"""Read a COLMAP model (binary or text) with its pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from farm.errors import NotInstalled, PermanentFailure
from jobs.nerf.inputs.raw import PARAMETERS, Lens, RawPicture, RawScene

FLIP: Final = np.diag([1.0, -1.0, -1.0, 1.0])
_SHOWN: Final = 5


def find_model(folder: Path, label: str) -> Path:
    """The folder with cameras and images, at ``folder`` or below it; the first of several in order."""
    for name in ("cameras.bin", "cameras.txt"):
        found = sorted(folder.rglob(name))
        if found:
            return found[0].parent
    raise PermanentFailure(f"{label} holds no cameras.bin and no cameras.txt; name the model's folder")


def read_colmap(model: Path, images: Path, label: str) -> RawScene:
    """Pictures with their cameras, and the sparse points.

    Raises :class:`PermanentFailure` for a model that cannot be read and for pictures that are not there.
    """
    try:
        import pycolmap
    except ImportError:
        raise NotInstalled("a COLMAP model needs pycolmap: pip install 'stillframe[nerf]'") from None
    try:
        found: Any = pycolmap.Reconstruction(str(model))
    except (ValueError, RuntimeError, OSError) as error:
        raise PermanentFailure(f"{label} is no COLMAP model that can be read: {str(error)[:300]}") from None
    lenses: dict[int, Lens] = {}
    for key, camera in found.cameras.items():
        if camera.model_name not in PARAMETERS:
            raise PermanentFailure(
                f"{label}: camera {key} is of model {camera.model_name}; readable are {', '.join(PARAMETERS)}"
            )
        lenses[key] = Lens(camera.model_name, camera.width, camera.height, tuple(map(float, camera.params)))
    pictures, missing = [], []
    for key in sorted(found.reg_image_ids()):
        image = found.image(key)
        path = images / image.name
        if not path.resolve().is_relative_to(images.resolve()) or not path.is_file():
            missing.append(image.name)
            continue
        matrix = np.vstack([image.cam_from_world().inverse().matrix(), [0.0, 0.0, 0.0, 1.0]]) @ FLIP
        pictures.append(RawPicture(image.name, path, matrix, lenses[image.camera_id]))
    if missing:
        shown = ", ".join(missing[:_SHOWN])
        raise PermanentFailure(
            f"{label} names {len(missing)} pictures that are not in the folder of images: {shown}; "
            f"attach them, "
            "or set source.images"
        )
    if not pictures:
        raise PermanentFailure(f"{label} holds no picture with a camera; reconstruct it again")
    rows = [[*p.xyz, *(np.asarray(p.color) / 255.0)] for p in found.points3D.values()]
    return RawScene(pictures, np.array(rows, dtype=np.float64).reshape(-1, 6))
