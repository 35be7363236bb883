"""Pieces that the specs of several kinds share: the base model, paths in a job, frame ranges, image sizes."""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from farm.frame_range import FrameRange

MAX_SIDE = 16_384
"""Longest side of an image in pixels."""
MAX_PIXELS = 2**27
"""Most pixels of one image (128 Mpx)."""
_SIZE = re.compile(r"\s*(\d{1,6})\s*[xX]\s*(\d{1,6})\s*")


class Model(BaseModel):
    """Base of all spec models: unknown fields are refused, numbers are finite, values are final."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def fault(field: str, message: str) -> PydanticCustomError:
    """An error of a check over several fields, for ``raise``: it blames ``field`` (``film/codec``)."""
    return PydanticCustomError("field_fault", "{message}", {"message": message, "field": field})


def job_path(text: str) -> str:
    """Check the path of an asset inside a job (``scene/scene.xml``): relative, no ``..``, no odd bytes.

    Raises :class:`ValueError` that says what to write instead.
    """
    if not text or len(text) > 1024 or any(ord(c) < 32 or c == "\\" for c in text):
        raise ValueError(f"{text[:80]!r} is not a path; write one like scene/scene.xml")
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or text.startswith("~"):
        raise ValueError(f"{text[:80]!r} leaves the job's assets; write the path of an asset of this job")
    return str(path)


def _frames(text: str) -> str:
    return str(FrameRange.parse(text, pointer="/spec/frames"))


def _size(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f"{value[:20]!r} is not a size; write width and height in pixels, such as 640x360")
    return (int(match[1]), int(match[2]))


def size_within(value: tuple[int, int]) -> tuple[int, int]:
    """``value`` where it is a size that frames may have; raises :class:`ValueError` naming the nearest."""
    width, height = value
    if 1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width * height <= MAX_PIXELS:
        return value
    legal = tuple(min(max(side, 1), MAX_SIDE) for side in value)
    if (pixels := legal[0] * legal[1]) > MAX_PIXELS:
        legal = tuple(int(side * math.sqrt(MAX_PIXELS / pixels)) for side in legal)
    raise ValueError(
        f"{width}x{height} is not possible: each side lies between 1 and {MAX_SIDE}, and both make at most "
        f"{MAX_PIXELS:,} pixels; nearest: {legal[0]}x{legal[1]}"
    )


def _rgb(text: str) -> str:
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        raise ValueError(f"{text[:20]!r} is not a colour; write one like #1a2b3c")
    return text.lower()


JobPath = Annotated[str, AfterValidator(job_path)]
FrameRangeText = Annotated[str, AfterValidator(_frames)]
Resolution = Annotated[tuple[int, int], BeforeValidator(_size), AfterValidator(size_within)]
Colour = Annotated[str, AfterValidator(_rgb)]
