"""The judge: reads colour, direction and shape off a clip's pixels by geometry alone.

Nothing here is learned. The object is where chroma (largest minus smallest channel) reaches half of the
frame's peak. Its hue gives the colour, the path of its centroid the direction, and its outline, the distance
from centroid to edge at 72 angles, the shape. A frame without a clear object counts against the film.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jobs.video.tiny.clips import DIRECTIONS, HUES, SHAPES, Wish

Array = np.ndarray[Any, np.dtype[Any]]

AGREE = 2 / 3  # share of the frames (or steps of the path) that must agree
_PEAK_CHROMA = 0.25  # below this a frame has no coloured object
_AREA = (0.01, 0.30)  # share of the frame that an object may cover
_HUE_TOLERANCE = 25.0  # degrees; the colours lie 60 apart
_TRAVEL = 0.125  # least travel, as a share of the frame's width
_ANGLE_TOLERANCE = 30.0  # degrees between path and direction; the directions lie 90 apart
_OUTLINE_TOLERANCE = 0.10  # root mean square, in units of the equal-area radius; circle to square is 0.11
_RAYS = np.arange(72) * (2 * math.pi / 72)


@dataclass(frozen=True)
class Verdict:
    """What the judge saw; None where it saw nothing clear."""

    colour: str | None
    shape: str | None
    direction: str | None

    def obeys(self, wish: Wish) -> dict[str, bool]:
        """Whether each attribute is the one wished for."""
        return {
            "colour": self.colour == wish.colour,
            "shape": self.shape == wish.shape,
            "direction": self.direction == wish.direction,
        }


def judge(clip: Array) -> Verdict:
    """Judge a clip (frames, height, width, 3): floats in 0..1 or uint8.

    Raises ValueError on another shape, fewer than two frames, or non-finite values.
    """
    if clip.ndim != 4 or clip.shape[-1] != 3 or clip.shape[0] < 2:
        raise ValueError(f"a clip must be (frames >= 2, height, width, 3), got {clip.shape}")
    pixels = clip.astype(np.float64) / 255.0 if clip.dtype == np.uint8 else clip.astype(np.float64)
    if not np.isfinite(pixels).all():
        raise ValueError("the clip holds non-finite values")
    colours: list[str | None] = []
    shapes: list[str | None] = []
    path: list[tuple[float, float]] = []
    for frame in pixels:
        found = _find(frame)
        if found is None:
            colours.append(None)
            shapes.append(None)
            continue
        chroma, mask, centre = found
        path.append(centre)
        colours.append(_colour(frame, mask))
        shapes.append(_shape(chroma, centre))
    direction = _direction(np.array(path), pixels.shape[2]) if len(path) >= AGREE * len(pixels) else None
    return Verdict(_majority(colours), _majority(shapes), direction)


def _majority(names: Sequence[str | None]) -> str | None:
    name, count = Counter(names).most_common(1)[0]
    return name if count >= AGREE * len(names) else None


def _find(frame: Array) -> tuple[Array, Array, tuple[float, float]] | None:
    """Chroma scaled to its peak, mask and centroid (x, y) of the coloured object, if there is one."""
    chroma = frame.max(axis=-1) - frame.min(axis=-1)
    peak = float(np.sort(chroma, axis=None)[-max(1, chroma.size // 200)])  # the half percent highest
    if peak < _PEAK_CHROMA:
        return None
    mask = chroma >= 0.5 * peak
    if not _AREA[0] <= mask.mean() <= _AREA[1]:
        return None
    rows, columns = np.nonzero(mask)
    return chroma / peak, mask, (float(columns.mean()) + 0.5, float(rows.mean()) + 0.5)


def _colour(frame: Array, mask: Array) -> str | None:
    """The colour name nearest to the hue of the object's mean colour, grey taken out."""
    red, green, blue = frame[mask].mean(axis=0)
    hue = math.degrees(math.atan2(math.sqrt(3) * (green - blue), 2 * red - green - blue)) % 360.0
    name, distance = min(
        ((n, abs((hue - h + 180.0) % 360.0 - 180.0)) for n, h in HUES.items()), key=lambda pair: pair[1]
    )
    return name if distance <= _HUE_TOLERANCE else None


def _direction(path: Array, width: int) -> str | None:
    """The direction of a path of centroids (T, 2): far enough, along one axis, and steadily forward."""
    times = np.arange(len(path)) - (len(path) - 1) / 2
    travel = (times @ path) / (times @ times) * (len(path) - 1)  # least-squares displacement, x and y
    length = float(np.hypot(*travel))
    if length < _TRAVEL * width:
        return None
    steps = np.diff(path, axis=0)
    for name, way in DIRECTIONS.items():
        along = float(travel @ np.array(way))
        if along >= length * math.cos(math.radians(_ANGLE_TOLERANCE)):
            forward = float((steps @ np.array(way) > 0).mean())
            return name if forward >= AGREE else None
    return None


def _ideal_outlines() -> dict[str, Array]:
    """Distance from centroid to edge along the rays, each shape having the area of the unit circle."""
    square = (math.sqrt(math.pi) / 2) / np.maximum(abs(np.cos(_RAYS)), abs(np.sin(_RAYS)))
    inradius = math.sqrt(4 * math.pi / math.sqrt(3)) / (2 * math.sqrt(3))
    # Outward normals of an upright triangle's edges, y down: down, and up to the right and left.
    normals = (math.pi / 2, -math.pi / 6, -math.pi * 5 / 6)
    triangle = inradius / np.max([np.cos(_RAYS - a) for a in normals], axis=0)
    return {"circle": np.ones_like(_RAYS), "square": square, "triangle": triangle}


_OUTLINES = _ideal_outlines()
assert tuple(_OUTLINES) == SHAPES


def _shape(chroma: Array, centre: tuple[float, float]) -> str | None:
    """The shape whose outline lies nearest to the object's; None if none is near."""
    outline = _outline(chroma, centre)
    outline = outline / math.sqrt(float((outline**2).mean()))
    distances = {name: math.sqrt(float(((outline - o) ** 2).mean())) for name, o in _OUTLINES.items()}
    name = min(distances, key=lambda n: distances[n])
    return name if distances[name] <= _OUTLINE_TOLERANCE else None


def _outline(chroma: Array, centre: tuple[float, float]) -> Array:
    """Distance along each ray to the last point where chroma, bilinear between pixels, is half its peak."""
    height, width = chroma.shape
    reach = np.arange(0.25, math.hypot(height, width) / 2, 0.25)
    x = np.clip(centre[0] - 0.5 + reach[None] * np.cos(_RAYS)[:, None], 0, width - 1.001)
    y = np.clip(centre[1] - 0.5 + reach[None] * np.sin(_RAYS)[:, None], 0, height - 1.001)
    left, top = x.astype(int), y.astype(int)
    fx, fy = x - left, y - top
    upper = chroma[top, left] * (1 - fx) + chroma[top, left + 1] * fx
    lower = chroma[top + 1, left] * (1 - fx) + chroma[top + 1, left + 1] * fx
    inside = upper * (1 - fy) + lower * fy >= 0.5
    last = inside.shape[1] - 1 - np.argmax(inside[:, ::-1], axis=1)
    distance: Array = np.where(inside.any(axis=1), reach[last], reach[0])
    return distance
