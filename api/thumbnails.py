"""Small pictures of frames, made once per content and size, kept in a bounded cache.

EXR is tone-mapped: linear light through Reinhard's extended curve (white at 4.0), then the sRGB transfer
curve. A layer without colour (depth) is stretched between its smallest and largest finite value.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from farm.errors import NotInstalled, Unavailable

Format = Literal["png", "jpeg"]
WHITE = 4.0
_MAKING = threading.BoundedSemaphore(2)
"""A full-size frame is in memory while its thumbnail is made: not many at once."""
_MAX_PER_FOLDER = 4000


def thumbnail(source: Path, sha256: str, source_format: str, size: int, kind: Format, cache: Path) -> Path:
    """File with a thumbnail whose longer side is ``size`` pixels (never enlarged).

    Raises :class:`farm.errors.NotInstalled` for EXR where OpenEXR is missing, and
    :class:`farm.errors.Unavailable` when the file cannot be read as a picture.
    """
    folder = cache / sha256[:2]
    target = folder / f"{sha256}-{size}.{kind}"
    if target.is_file():
        return target
    with _MAKING:
        if target.is_file():
            return target
        try:
            picture = _read_exr(source) if source_format == "exr" else _read(source)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise Unavailable(f"no thumbnail: the file cannot be read as {source_format}") from error
        picture.thumbnail((size, size), Image.Resampling.LANCZOS)
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{secrets.token_hex(8)}"
        try:
            if kind == "jpeg":
                _flat(picture).save(partial, "JPEG", quality=85)
            else:
                picture.save(partial, "PNG")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    if random.random() < 0.02:
        _prune(folder)
    return target


def _read(source: Path) -> Image.Image:
    with Image.open(source) as opened:
        opened.load()
        if opened.mode.startswith("I"):
            wide = np.asarray(opened, dtype=np.float32)
            return Image.fromarray((wide / 257.0 + 0.5).astype(np.uint8), "L")
        return opened.convert("RGBA" if "A" in opened.getbands() else "RGB")


def _read_exr(source: Path) -> Image.Image:
    try:
        import OpenEXR
    except ImportError:
        raise NotInstalled("thumbnails of EXR files need OpenEXR: pip install 'stillframe[render]'") from None
    with OpenEXR.File(str(source), separate_channels=True) as file:
        channels: dict[str, Any] = {name: channel.pixels for name, channel in file.channels().items()}
    for prefix in ("", *sorted({name.rsplit(".", 1)[0] + "." for name in channels if "." in name})):
        names = [prefix + letter for letter in "RGB"]
        if all(name in channels for name in names):
            light = np.stack([np.asarray(channels[name], dtype=np.float32) for name in names], axis=-1)
            return Image.fromarray(to_srgb8(light), "RGB")
    first = np.asarray(channels[sorted(channels)[0]], dtype=np.float32)
    return Image.fromarray(stretched(first), "L")


def to_srgb8(light: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Linear light of any shape to 8-bit sRGB; what is not finite becomes black or white."""
    light = np.nan_to_num(light, nan=0.0, posinf=1e6, neginf=0.0).clip(0.0, 1e6)
    mapped = (light * (1.0 + light / (WHITE * WHITE)) / (1.0 + light)).clip(0.0, 1.0)
    curve = np.where(mapped <= 0.0031308, 12.92 * mapped, 1.055 * np.power(mapped, 1 / 2.4) - 0.055)
    return np.asarray((curve * 255.0 + 0.5).astype(np.uint8))


def stretched(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One channel to 8 bits between its smallest and largest finite value."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return np.zeros(values.shape, np.uint8)
    low, high = float(finite.min()), float(finite.max())
    span = (high - low) or 1.0
    filled = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    return np.asarray((((filled - low) / span).clip(0.0, 1.0) * 255.0 + 0.5).astype(np.uint8))


def _flat(picture: Image.Image) -> Image.Image:
    if picture.mode != "RGBA":
        return picture.convert("RGB")
    ground = Image.new("RGB", picture.size, (96, 96, 96))
    ground.paste(picture, mask=picture.getchannel("A"))
    return ground


def _prune(folder: Path) -> None:
    with os.scandir(folder) as entries:
        files = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.is_file()]
    for _, path in sorted(files)[: max(0, len(files) - _MAX_PER_FOLDER)]:
        Path(path).unlink(missing_ok=True)
