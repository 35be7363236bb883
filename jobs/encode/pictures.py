"""Read one frame of a film as display-encoded RGB; alpha, 16 bits and linear EXR each on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from farm.errors import PermanentFailure, TaskFailed
from jobs.encode.spec import FilmSettings

Array = npt.NDArray[Any]

_EXR_MAGIC = b"\x76\x2f\x31\x01"
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_MAX_PIXELS = 2**27


def srgb_encode(linear: Array) -> Array:
    """Linear light to the sRGB curve (IEC 61966-2-1), both 0 to 1; values outside are clipped."""
    clipped = np.clip(linear, 0.0, 1.0)
    return np.where(clipped <= 0.0031308, 12.92 * clipped, 1.055 * clipped ** (1 / 2.4) - 0.055)


def srgb_decode(encoded: Array) -> Array:
    """The sRGB curve to linear light (IEC 61966-2-1), both 0 to 1."""
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def read_picture(path: Path, settings: FilmSettings, *, ten_bit: bool, label: str) -> Array:
    """One frame as (height, width, 3) uint8, or uint16 where ``ten_bit`` (over 8 bits), sRGB-encoded.

    Transparent pixels are laid over ``settings.background`` in linear light. EXR is linear light with
    premultiplied alpha: brightened by ``settings.exposure`` stops and put through the sRGB curve; values
    above 1 clip. ``label`` names the frame in errors. Raises :class:`farm.errors.PermanentFailure` for
    transparency without a background and for a file that cannot be read,
    :class:`farm.errors.TaskFailed` for non-finite pixels.
    """
    kind = path.open("rb").read(8)
    try:
        if kind[:4] == _EXR_MAGIC:
            rgb, alpha, premultiplied = _read_exr(path, label)
            rgb = rgb * np.float32(2.0**settings.exposure)
        else:
            deep = kind == _PNG_MAGIC and _png_depth(path) == 16
            samples = read_deep_png(path) if deep else _read_plain(path)
            if deep == ten_bit and _opaque(samples, 65535 if deep else 255):
                return np.ascontiguousarray(samples[..., :3])
            scale = 65535.0 if deep else 255.0
            floats = samples.astype(np.float32) / np.float32(scale)
            rgb, alpha, premultiplied = srgb_decode(floats[..., :3]), None, False
            if samples.shape[2] == 4:
                alpha = floats[..., 3:4]
    except (OSError, ValueError, SyntaxError, RuntimeError, Image.DecompressionBombError) as error:
        raise PermanentFailure(f"{label}: the file cannot be read as an image ({error})") from None
    if not np.isfinite(rgb).all() or (alpha is not None and not np.isfinite(alpha).all()):
        raise TaskFailed(f"{label}: the image holds pixels that are not finite (NaN or infinity)")
    if alpha is not None and alpha.min() < 1.0:
        if settings.background is None:
            raise PermanentFailure(
                f"{label} is transparent (alpha down to {float(alpha.min()):.3f}), and the film has no "
                "alpha; set background to a colour such as #000000"
            )
        under = srgb_decode(np.frombuffer(bytes.fromhex(settings.background[1:]), np.uint8) / 255.0)
        rgb = (rgb if premultiplied else rgb * alpha) + under.astype(np.float32) * (1.0 - alpha)
    encoded = srgb_encode(rgb)
    if ten_bit:
        return np.rint(encoded * 65535.0).astype(np.uint16)
    return np.rint(encoded * 255.0).astype(np.uint8)


def is_deep(path: Path) -> bool:
    """Whether a picture holds more than 8 bits a channel: an EXR, or a PNG of 16 bits."""
    with path.open("rb") as file:
        kind = file.read(8)
    return kind[:4] == _EXR_MAGIC or (kind == _PNG_MAGIC and _png_depth(path) == 16)


def _opaque(samples: Array, full: int) -> bool:
    return samples.shape[2] == 3 or bool((samples[..., 3] == full).all())


def _png_depth(path: Path) -> int:
    with path.open("rb") as file:
        head = file.read(26)
    return head[24] if len(head) == 26 else 0


def _read_plain(path: Path) -> Array:
    with Image.open(path, formats=("PNG", "JPEG")) as image:
        if image.width * image.height > _MAX_PIXELS:
            raise ValueError(f"{image.width}x{image.height} is over the limit of {_MAX_PIXELS:,} pixels")
        transparent = image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info
        return np.asarray(image.convert("RGBA" if transparent else "RGB"))


def read_deep_png(path: Path) -> Array:
    """A 16-bit PNG as (height, width, 3 or 4) uint16; Pillow would cut it to 8 bits."""
    import av

    with av.open(str(path), format="png_pipe") as container:
        frame = next(iter(container.decode(video=0)))
    transparent = "a" in frame.format.name
    return frame.to_ndarray(format="rgba64le" if transparent else "rgb48le")


def _read_exr(path: Path, label: str) -> tuple[Array, Array | None, bool]:
    import OpenEXR

    with OpenEXR.File(str(path), separate_channels=True) as file:
        channels = file.channels()
        if not {"R", "G", "B"} <= set(channels):
            raise PermanentFailure(
                f"{label}: the EXR has no R, G and B channels, only {', '.join(sorted(channels))[:200]}"
            )
        rgb = np.stack([channels[c].pixels for c in "RGB"], axis=-1).astype(np.float32)
        alpha = channels["A"].pixels.astype(np.float32)[..., None] if "A" in channels else None
    return rgb, alpha, True
