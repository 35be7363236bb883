"""Input images as a model wants them: upright, opaque, 8-bit sRGB, of the film's size.

What a file holds beside plain pixels is used once or refused, never dropped in silence: orientation (EXIF),
alpha (over ``background``, mixed in linear light), colour profiles (ICC, CMYK among them), 16 bits a channel.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageCms, ImageOps

from farm.errors import PermanentFailure
from jobs.encode.pictures import is_deep, read_deep_png, srgb_decode, srgb_encode
from jobs.fields import MAX_PIXELS
from jobs.video.spec import Fit

FORMATS: Final = ("PNG", "JPEG", "WEBP", "TIFF", "BMP")
RATIO_SLACK: Final = 0.01
"""How far the shapes of an input and of the film may differ under ``scale``, as a share of the shape."""
_DEEP_MODES: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


def read_image(
    path: Path, size: tuple[int, int], fit: Fit, *, background: str | None = None, label: str = "the image"
) -> Image.Image:
    """An image file as RGB of ``size`` (width, height) in pixels.

    Raises :class:`farm.errors.PermanentFailure` for what cannot be read, what is transparent without a
    ``background`` (``#rrggbb``), and a shape that ``fit`` does not allow; each says what to do.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise PermanentFailure(
                    f"{label} has {image.width}x{image.height} pixels, over the limit of {MAX_PIXELS:,}"
                )
            if (pictures := int(getattr(image, "n_frames", 1))) > 1:
                raise PermanentFailure(
                    f"{label} holds {pictures} pictures; give one of them, or a video to make over"
                )
            image.load()
            upright = ImageOps.exif_transpose(_wide(image, path))
            return fitted(_flat(upright, background, label), size, fit, label)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise PermanentFailure(f"{label} cannot be read as {', '.join(FORMATS)}: {error}") from None


def _wide(image: Image.Image, path: Path) -> Image.Image:
    """16 bits a channel as 8, rounded; Pillow itself would clip grey and cut colour."""
    if image.format == "PNG" and is_deep(path):
        deep = read_deep_png(path)
        narrow = Image.fromarray(np.rint(deep / 257.0).astype(np.uint8))
    elif image.mode in _DEEP_MODES:
        narrow = Image.fromarray(np.rint(np.asarray(image).astype(np.uint16) / 257.0).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known white; convert it to 8 or 16 bits")
    else:
        return image
    narrow.info = dict(image.info)
    if (exif := image.getexif()) and "exif" not in narrow.info:
        narrow.info["exif"] = exif.tobytes()
    return narrow


def _flat(image: Image.Image, background: str | None, label: str) -> Image.Image:
    """sRGB without alpha."""
    alpha = None
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        with_alpha = image.convert("RGBA")
        alpha = np.asarray(with_alpha)[..., 3:].astype(np.float32) / 255.0
        rest = with_alpha.convert("RGB")
        rest.info = dict(image.info)
        image = rest
    rgb = _srgb(image)
    if alpha is None or alpha.min() >= 1.0:
        return rgb
    if background is None:
        raise PermanentFailure(
            f"{label} is transparent (alpha down to {float(alpha.min()):.3f}), and models see no alpha; "
            "set background to a colour such as #000000, or attach an opaque picture"
        )
    under = srgb_decode(np.frombuffer(bytes.fromhex(background[1:]), np.uint8) / 255.0).astype(np.float32)
    over = srgb_decode(np.asarray(rgb).astype(np.float32) / np.float32(255.0))
    mixed = over * alpha + under * (1.0 - alpha)
    return Image.fromarray(np.rint(srgb_encode(mixed) * 255.0).astype(np.uint8))


def _srgb(image: Image.Image) -> Image.Image:
    """By the embedded profile where there is one, else as plain sRGB (CMYK: by the simple formula)."""
    profile = image.info.get("icc_profile")
    if image.mode in ("P", "1"):
        image = image.convert("RGB" if image.mode == "P" else "L")
    if profile and image.mode in ("RGB", "L", "CMYK", "LAB"):
        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            target = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
            done = ImageCms.profileToProfile(image, source, target, outputMode="RGB")
        except (ImageCms.PyCMSError, OSError) as error:
            raise ValueError(f"its colour profile cannot be used ({error}); save it as sRGB") from None
        if done is not None:
            return done
    return image.convert("RGB")


def check_shape(width: float, height: float, size: tuple[int, int], fit: Fit, label: str) -> float:
    """How much wider an input is than the film (1: the same shape).

    Raises :class:`farm.errors.PermanentFailure` where ``fit`` is ``scale`` and the shapes differ.
    """
    ratio = (width / height) / (size[0] / size[1])
    if fit == "scale" and abs(math.log(ratio)) > RATIO_SLACK:
        raise PermanentFailure(
            f"{label} is {round(width)}x{round(height)}, and the film {size[0]}x{size[1]} has another shape; "
            "set fit to crop, pad or stretch, or give the film the shape of the input"
        )
    return ratio


def fitted(
    image: Image.Image, size: tuple[int, int], fit: Fit, label: str, aspect: float = 1.0
) -> Image.Image:
    """An RGB picture brought to ``size``; ``aspect`` is its pixels' own width over height.

    Raises :class:`farm.errors.PermanentFailure` under ``scale`` for another shape.
    """
    width, height = image.width * aspect, float(image.height)
    if (image.width, image.height) == size and aspect == 1.0:
        return image
    ratio = check_shape(width, height, size, fit, label)
    if fit == "crop":
        keep_w, keep_h = image.width, image.height
        if ratio > 1:
            keep_w = max(1, round(image.width / ratio))
        else:
            keep_h = max(1, round(image.height * ratio))
        left, top = (image.width - keep_w) // 2, (image.height - keep_h) // 2
        image = image.crop((left, top, left + keep_w, top + keep_h))
    elif fit == "pad":
        inner_w = size[0] if ratio >= 1 else max(1, round(size[0] * ratio))
        inner_h = size[1] if ratio <= 1 else max(1, round(size[1] / ratio))
        inside = image.resize((inner_w, inner_h), Image.Resampling.LANCZOS)
        whole = Image.new("RGB", size)
        whole.paste(inside, ((size[0] - inner_w) // 2, (size[1] - inner_h) // 2))
        return whole
    return image.resize(size, Image.Resampling.LANCZOS)
