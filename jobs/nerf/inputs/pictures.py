"""Read a photograph upright, as sRGB with straight alpha."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from farm.errors import NotInstalled, PermanentFailure

Pixels = npt.NDArray[np.uint8]

MAX_PIXELS: Final = 2**27
_ORIENTATION: Final = 0x0112


def open_picture(path: Path, label: str) -> Image.Image:
    """The file as Pillow sees it, EXIF orientation not applied yet.

    Raises :class:`PermanentFailure` that names the file and says what is wrong with it.
    """
    if path.suffix.lower() in (".heic", ".heif") or _is_heif(path):
        _register_heif(label)
    try:
        image = Image.open(path)
        if image.width * image.height > MAX_PIXELS:
            raise PermanentFailure(
                f"{label} has {image.width}x{image.height} pixels, over the limit of {MAX_PIXELS:,}; "
                f"shrink it"
            )
        image.load()
    except UnidentifiedImageError:
        raise PermanentFailure(f"{label} is no image that can be read; take it out or convert it") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise PermanentFailure(f"{label} cannot be read ({error}); take it out or write it again") from None
    return image


def orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 where there is none or it is nonsense."""
    try:
        value = int(image.getexif().get(_ORIENTATION, 1))
    except (TypeError, ValueError):
        return 1
    return value if 1 <= value <= 8 else 1


def upright(image: Image.Image) -> Image.Image:
    """The picture as people saw it: EXIF orientation applied, and gone from the result."""
    turned = ImageOps.exif_transpose(image)
    return turned if turned is not None else image


def to_rgba(image: Image.Image) -> Pixels:
    """(height, width, 4) uint8, sRGB, straight alpha. 16-bit values keep their upper 8 bits."""
    if image.mode in ("I;16", "I;16B", "I;16L", "I"):
        deep = np.asarray(image).astype(np.int64)
        grey = np.clip(deep >> 8, 0, 255).astype(np.uint8)
        return np.dstack([grey, grey, grey, np.full_like(grey, 255)])
    return np.ascontiguousarray(np.array(image.convert("RGBA"), dtype=np.uint8))


def read_rgba(path: Path, label: str | None = None) -> Pixels:
    """An upright picture as (height, width, 4) uint8."""
    return to_rgba(upright(open_picture(path, label or path.name)))


def read_mask(path: Path) -> npt.NDArray[np.bool_]:
    """Which pixels (height, width) a mask of a prepared scene leaves: those that are white."""
    with Image.open(path) as image:
        return np.asarray(image.convert("L")) >= 128


def turned_lens(
    value: int, width: int, height: int, lens: dict[str, float]
) -> tuple[int, int, dict[str, float]]:
    """Size and intrinsics after EXIF orientation ``value`` is applied to a ``width`` x ``height`` picture.

    ``lens`` holds ``fl_x, fl_y, cx, cy`` and distortion as it was before. The tangential terms of a turned
    lens change places and signs with the axes.
    """
    found = dict(lens)
    fx, fy, cx, cy = (lens[name] for name in ("fl_x", "fl_y", "cx", "cy"))
    p1, p2 = lens.get("p1", 0.0), lens.get("p2", 0.0)
    if value in (2, 3):
        cx, p2 = width - cx, -p2
    if value in (3, 4):
        cy, p1 = height - cy, -p1
    if value >= 5:
        # transpose, then the mirrors of the sideways orientations
        fx, fy, cx, cy, p1, p2 = fy, fx, cy, cx, p2, p1
        width, height = height, width
        if value in (6, 7):
            cx, p2 = width - cx, -p2
        if value in (7, 8):
            cy, p1 = height - cy, -p1
    found |= {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy}
    if p1 or p2:
        found |= {"p1": p1, "p2": p2}
    return width, height, found


def _is_heif(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(12)
    return head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"mif1", b"msf1", b"hevc")


def _register_heif(label: str) -> None:
    try:
        import pillow_heif
    except ImportError:
        raise NotInstalled(
            f"{label}: reading HEIC needs pillow-heif: pip install 'stillframe[nerf]', or convert it to JPEG"
        ) from None
    heif: Any = pillow_heif
    heif.register_heif_opener()
