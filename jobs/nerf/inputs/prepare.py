"""Undistort and shrink the pictures, choose which are kept from training, and put the scene upright."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from farm.errors import PermanentFailure
from jobs.engine import Host
from jobs.nerf.inputs.lens import undistort
from jobs.nerf.inputs.pictures import open_picture, orientation, to_rgba, upright
from jobs.nerf.inputs.raw import Lens, RawPicture, RawScene
from jobs.nerf.scene import Scene, View, hold_out, normalise
from jobs.nerf.spec import Spec, safe_name

IMAGES: Final = "images"
MASKS: Final = "masks"
_BOUNDED_ALPHA: Final = 0.02
"""Share of see-through pixels from which the background counts as cut away."""


def prepare(raw: RawScene, spec: Spec, host: Host, folder: Path) -> Scene:
    """Write the pictures into ``folder/images`` and give the scene; see :func:`jobs.nerf.scene.normalise`."""
    (folder / IMAGES).mkdir(parents=True)
    (folder / MASKS).mkdir()
    views, clear = [], 0.0
    for index, picture in enumerate(sorted(raw.pictures, key=lambda p: p.name)):
        host.check()
        view, share = _one(picture, index, spec, folder)
        views.append(view)
        clear += share / len(raw.pictures)
        host.progress(0.8 + 0.2 * (index + 1) / len(raw.pictures), f"picture {index + 1}")
    views = _splits(views, raw, spec)
    about = {**raw.about, "notes": raw.notes[:200]}
    bounded = spec.train.contraction == "none" or (
        spec.train.contraction == "auto" and clear > _BOUNDED_ALPHA
    )
    return normalise(views, raw.points, bounded=bounded, about=about)


def _splits(views: list[View], raw: RawScene, spec: Spec) -> list[View]:
    given = {p.name: p.split for p in raw.pictures if p.split}
    if "test" in given.values():
        chosen = [replace(v, split="test" if given.get(v.name) == "test" else "train") for v in views]
    else:
        kept = hold_out([v.name for v in views], spec.pictures.hold_out)
        chosen = [replace(v, split="test" if v.name in kept else "train") for v in views]
    if sum(v.split == "train" for v in chosen) < 2:
        raise PermanentFailure(
            f"{len(chosen)} pictures leave fewer than two to train on; add pictures, or set "
            f"pictures.hold_out: 0"
        )
    return chosen


def _one(picture: RawPicture, index: int, spec: Spec, folder: Path) -> tuple[View, float]:
    image = open_picture(picture.path, picture.name)
    turn = orientation(image)
    pixels = to_rgba(upright(image))
    lens, matrix = picture.lens, picture.matrix
    assert lens is not None and matrix is not None
    height, width = pixels.shape[:2]
    if (lens.width, lens.height) != (width, height):
        if not picture.upright and turn != 1 and (lens.width, lens.height) == image.size:
            raise PermanentFailure(
                f"{picture.name}: the camera belongs to the picture before its EXIF orientation ({turn}) was "
                "applied; save the pictures upright and pose them again"
            )
        raise PermanentFailure(
            f"{picture.name} has {width}x{height} pixels, but its camera is for {lens.width}x{lens.height}; "
            "give the pictures that were posed"
        )
    mask = None if picture.mask is None else _mask_of(picture, picture.mask, (width, height))
    pixels, straight = undistort(pixels, lens)
    pixels, straight = _shrunk(pixels, straight, spec.pictures.max_side)
    opaque = bool((pixels[..., 3] == 255).all())
    name = f"{IMAGES}/{index:05d}_{safe_name(Path(picture.name).stem)}.png"
    Image.fromarray(pixels[..., :3] if opaque else pixels).save(folder / name, compress_level=1)
    masked = ""
    if mask is not None:
        white = _shrunk(*undistort(mask, lens), spec.pictures.max_side)[0]
        masked = name.replace(IMAGES, MASKS, 1)
        # what the lens never saw is no part of the picture either
        Image.fromarray(np.where(white[..., 3] >= 128, white[..., 0], 0)).save(folder / masked)
    fx, fy, cx, cy = straight.params
    view = View(
        picture.name, straight.width, straight.height, fx, fy, cx, cy, matrix, "train", name,
        picture.frame or index + 1, masked,
    )  # fmt: skip
    return view, float((pixels[..., 3] < 128).mean())


def _mask_of(picture: RawPicture, path: Path, size: tuple[int, int]) -> Any:
    """The mask as a picture (height, width, 4) of black and white, that lenses and sizes do the same to."""
    mask = upright(open_picture(path, path.name)).convert("L")
    if mask.size != size:
        raise PermanentFailure(
            f"the mask of {picture.name} has {mask.width}x{mask.height} pixels, the picture "
            f"{size[0]}x{size[1]}; make them alike"
        )
    white = np.where(np.asarray(mask) >= 128, 255, 0).astype(np.uint8)
    return np.dstack([white, white, white, np.full_like(white, 255)])


def _shrunk(pixels: Any, lens: Lens, max_side: int) -> tuple[Any, Lens]:
    height, width = pixels.shape[:2]
    scale = max_side / max(width, height)
    if scale >= 1.0:
        return pixels, lens
    w, h = max(1, round(width * scale)), max(1, round(height * scale))
    # premultiplied while it is averaged, so that what is cut away does not bleed in
    image = Image.fromarray(pixels).convert("RGBa").resize((w, h), Image.Resampling.BOX).convert("RGBA")
    fx, fy, cx, cy = lens.params
    x, y = w / width, h / height
    return np.array(image), Lens("PINHOLE", w, h, (fx * x, fy * y, cx * x, cy * y))
