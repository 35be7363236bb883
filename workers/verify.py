"""Decode a written frame again and check it against its declaration, before anything counts on it.

PNG and JPEG are read by Pillow, EXR (multilayer too) by OpenEXR. A file passes when it decodes to its last
byte and has the declared format, size, channels and dtype, and when every floating-point pixel is finite.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.errors import NotInstalled, UnverifiedFrame

_MAX_PIXELS = 1 << 30
_MODES = {
    "1": ("Y",), "L": ("Y",), "I;16": ("Y",), "I;16B": ("Y",), "I": ("Y",), "LA": ("Y", "A"),
    "RGB": ("R", "G", "B"), "RGBA": ("R", "G", "B", "A"), "CMYK": ("C", "M", "Y", "K"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verified:
    """What a frame's file really holds. ``quality`` flags frames that are suspicious without being wrong."""

    width: int
    height: int
    channels: tuple[str, ...]
    dtype: str
    format: str
    quality: dict[str, Any] = field(default_factory=dict)


def verify(path: Path, declared: Mapping[str, Any]) -> Verified:
    """Check the file at ``path`` against an output declaration (:class:`farm.plan.OutputDecl` as a dict).

    Raises :class:`UnverifiedFrame`, which names the output, what was found and what was declared.
    ``quality["all_black"]`` is set where no pixel of any colour channel is above zero.
    """
    name = str(declared["name"])
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise UnverifiedFrame(f"{name}: the engine has not written {path.name}") from None
    if size == 0:
        raise UnverifiedFrame(f"{name}: the file is empty")
    reader = _read_exr if declared["format"] == "exr" else _read_pillow
    found = reader(path, name)
    wanted = (declared["format"], declared["width"], declared["height"], declared["dtype"])
    for what, is_value, should in zip(
        ("format", "width", "height", "dtype"),
        (found.format, found.width, found.height, found.dtype),
        wanted,
        strict=True,
    ):
        if is_value != should:
            raise UnverifiedFrame(f"{name}: {what} is {is_value}, declared was {should}")
    if set(found.channels) != set(declared["channels"]):
        raise UnverifiedFrame(
            f"{name}: channels are {', '.join(found.channels)}; "
            f"declared were {', '.join(declared['channels'])}"
        )
    return found


def hashed_and_synced(path: Path) -> str:
    """SHA-256 of a finished file, whose bytes are on disk afterwards: what a store then waits for is little.

    Raises :class:`UnverifiedFrame` where it is missing.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fdatasync(file.fileno())
    except FileNotFoundError:
        raise UnverifiedFrame(f"the engine has not written {path.name}") from None
    return digest


def _read_pillow(path: Path, name: str) -> Verified:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=("PNG", "JPEG")) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise UnverifiedFrame(f"{name}: {image.width}x{image.height} is over {_MAX_PIXELS:,} pixels")
            form = (image.format or "").lower()
            deep = _is_16_bit_png(path) if form == "png" else False
            # load() decodes to the end: a truncated file raises OSError, a bad checksum SyntaxError
            image.load()
            mode = image.mode
            black = _all_black(image)
            size = image.size
    except UnidentifiedImageError:
        raise UnverifiedFrame(f"{name}: {path.name} is neither a PNG nor a JPEG") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise UnverifiedFrame(f"{name}: {path.name} cannot be decoded: {error}") from error
    except Image.DecompressionBombError as error:
        raise UnverifiedFrame(f"{name}: {error}") from error
    _check_ending(path, form, name)
    channels = _MODES.get(mode)
    if channels is None:
        raise UnverifiedFrame(f"{name}: pixel mode {mode} is not one that frames may have")
    quality = {"all_black": True} if black else {}
    return Verified(size[0], size[1], channels, "uint16" if deep else "uint8", form, quality)


def _all_black(image: Any) -> bool:
    if image.mode in ("RGB", "L"):
        # ends at the first bright pixels, where the extrema are found among all of them
        return image.getbbox() is None
    return not any(high for _, high in _color_extrema(image))


def _color_extrema(image: Any) -> list[tuple[float, float]]:
    extrema = image.getextrema()
    if not isinstance(extrema[0], tuple):
        return [extrema]
    return list(extrema[:-1] if image.mode in ("RGBA", "LA") else extrema)


def _is_16_bit_png(path: Path) -> bool:
    """Bit depth from the header: Pillow reads 16-bit RGB as 8-bit and does not say so."""
    with path.open("rb") as file:
        head = file.read(26)
    return head[:8] == b"\x89PNG\r\n\x1a\n" and head[24] == 16


def _check_ending(path: Path, form: str, name: str) -> None:
    """Pillow forgives a missing end mark; a frame that lacks it was cut short."""
    mark = b"\0\0\0\0IEND\xaeB`\x82" if form == "png" else b"\xff\xd9"
    with path.open("rb") as file:
        file.seek(-len(mark), 2)
        if file.read() != mark:
            raise UnverifiedFrame(f"{name}: {path.name} is cut short: its end mark is missing")


def _read_exr(path: Path, name: str) -> Verified:
    try:
        np = importlib.import_module("numpy")
        openexr = importlib.import_module("OpenEXR")
    except ImportError:
        raise NotInstalled(
            f"{name}: verifying EXR frames needs OpenEXR: pip install 'stillframe[render]'"
        ) from None
    try:
        with openexr.File(str(path), separate_channels=True) as file:
            parts = file.parts
            channels: dict[str, Any] = {}
            sizes: set[tuple[int, int]] = set()
            for part in parts:
                window = part.header["dataWindow"]
                (left, top), (right, bottom) = window
                sizes.add((int(right - left + 1), int(bottom - top + 1)))
                prefix = f"{part.name()}." if len(parts) > 1 and part.name() else ""
                for channel_name, channel in part.channels.items():
                    key = channel_name if channel_name.startswith(prefix) else prefix + channel_name
                    channels[key] = np.asarray(channel.pixels)
    except Exception as error:  # the binding raises bare RuntimeError and others for bad files
        raise UnverifiedFrame(f"{name}: {path.name} cannot be decoded: {error}") from error
    if not sizes:
        # the binding leaves a part out that it cannot read to its end, and says so on stderr alone
        raise UnverifiedFrame(f"{name}: {path.name} cannot be decoded: it is cut short or damaged")
    if len(sizes) != 1:
        raise UnverifiedFrame(f"{name}: its parts have different sizes: {sorted(sizes)}")
    width, height = sizes.pop()
    dtypes = {str(pixels.dtype) for pixels in channels.values()}
    black = True
    for channel_name, pixels in channels.items():
        if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
            bad = int(pixels.size - np.count_nonzero(np.isfinite(pixels)))
            raise UnverifiedFrame(
                f"{name}: channel {channel_name} has {bad} pixels that are not finite (NaN or infinite)"
            )
        if channel_name.rpartition(".")[2] in "RGBY" and pixels.any():
            black = False
    # mixed precision is declared by its widest channel: depth is float32 beside float16 colour
    dtype = max(dtypes, key=lambda text: int("".join(filter(str.isdigit, text))))
    quality = {"all_black": True} if black else {}
    return Verified(width, height, tuple(channels), dtype, "exr", quality)
