"""Generated clips of one moving shape, and the prompts that name them.

A clip shows one flat shape on a plain dark ground, moving along a straight line at a constant speed. Six
colours, three shapes and four directions make 72 wishes; twelve of them (`HELD_OUT`) never appear in
training. Each colour is held out twice, each shape four times, each direction three times, so every pair of
attributes is still seen.

Scenes are drawn with NumPy's generator, so a seed gives the same scenes everywhere; pixels are computed by
plain array arithmetic that NumPy arrays and torch tensors share.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

SIZE = 64  # pixels, both ways
FRAMES = 17
FPS = 8

HUES: dict[str, float] = {
    "red": 0.0,
    "yellow": 60.0,
    "green": 120.0,
    "cyan": 180.0,
    "blue": 240.0,
    "magenta": 300.0,
}
"""Colour names and their hues in degrees."""

SHAPES = ("circle", "square", "triangle")

DIRECTIONS: dict[str, tuple[float, float]] = {
    "left": (-1.0, 0.0),
    "right": (1.0, 0.0),
    "up": (0.0, -1.0),
    "down": (0.0, 1.0),
}
"""Direction names and unit vectors (x, y), y downwards as in images."""

# Extents of each shape (left, right, up, down) in units of the radius of the circle of equal area.
_SQUARE_HALF = math.sqrt(math.pi) / 2
_TRIANGLE_SIDE = math.sqrt(4 * math.pi / math.sqrt(3))
_TRIANGLE_INRADIUS = _TRIANGLE_SIDE / (2 * math.sqrt(3))
_EXTENTS = {
    "circle": (1.0, 1.0, 1.0, 1.0),
    "square": (_SQUARE_HALF,) * 4,
    "triangle": (_TRIANGLE_SIDE / 2, _TRIANGLE_SIDE / 2, 2 * _TRIANGLE_INRADIUS, _TRIANGLE_INRADIUS),
}
_MARGIN = 1.5  # pixels between the shape and the border, at least


@dataclass(frozen=True)
class Wish:
    """What a prompt asks for: a colour, a shape and a direction."""

    colour: str
    shape: str
    direction: str

    @property
    def prompt(self) -> str:
        """The canonical prompt, such as "a red circle moves left"."""
        return f"a {self.colour} {self.shape} moves {self.direction}"


ALL_WISHES: tuple[Wish, ...] = tuple(Wish(c, s, d) for c in HUES for s in SHAPES for d in DIRECTIONS)
"""The 72 wishes in a fixed order; a wish's place is also its seed in the obedience test."""


def _held_out() -> frozenset[Wish]:
    colours, directions = tuple(HUES), tuple(DIRECTIONS)
    pairs = []
    for i, colour in enumerate(colours):
        pairs.append(Wish(colour, SHAPES[i % 3], directions[i % 4]))
        pairs.append(Wish(colour, SHAPES[(i + 1) % 3], directions[(i + 2) % 4]))
    return frozenset(pairs)


HELD_OUT: frozenset[Wish] = _held_out()
"""The twelve wishes absent from training."""

TRAINING: tuple[Wish, ...] = tuple(w for w in ALL_WISHES if w not in HELD_OUT)
"""The sixty wishes that training sees."""

PHRASINGS: tuple[str, ...] = (
    "a {colour} {shape} moves {direction}",
    "a {colour} {shape} moving {direction}",
    "the {colour} {shape} goes {direction}",
    "one {colour} {shape} slides {direction} on a dark background",
    "{colour} {shape} {direction}",
    "{direction} goes a {colour} {shape}",
    "a {shape} moves {direction} and it is {colour}",
    "a video of a {colour} {shape} that moves to the {direction}",
)
"""Ways to say a wish; the first is the canonical one."""


@dataclass(frozen=True)
class Scenes:
    """The parameters of N clips, one array (or tensor) per parameter.

    `shape` (N,) index into SHAPES; `rgb` (N, 3) in 0..1; `ground` (N,) grey level in 0..1; `radius` (N,) of
    the circle of equal area, `start` (N, 2) and `velocity` (N, 2) in pixels and pixels per frame, (x, y).
    """

    shape: Any
    rgb: Any
    ground: Any
    radius: Any
    start: Any
    velocity: Any

    def map(self, convert: Callable[[Any], Any]) -> Scenes:
        """The same scenes with every array passed through `convert` (for instance to torch tensors)."""
        return Scenes(*(convert(getattr(self, f.name)) for f in fields(self)))


def draw_scenes(wishes: Sequence[Wish], rng: np.random.Generator) -> Scenes:
    """One scene for each wish: hue within 10 degrees; size, speed and path at random, inside the frame."""
    n = len(wishes)
    hue = np.array([HUES[w.colour] for w in wishes]) + rng.uniform(-10.0, 10.0, n)
    saturation, value = rng.uniform(0.85, 1.0, n), rng.uniform(0.85, 1.0, n)
    rgb = np.array(
        [
            colorsys.hsv_to_rgb((h % 360.0) / 360.0, s, v)
            for h, s, v in zip(hue, saturation, value, strict=True)
        ]
    ).reshape(n, 3)
    radius = rng.uniform(7.5, 10.5, n)
    way = np.array([DIRECTIONS[w.direction] for w in wishes]).reshape(n, 2)
    travel = way * rng.uniform(18.0, 28.0, n)[:, None]
    extents = np.array([_EXTENTS[w.shape] for w in wishes]).reshape(n, 4) * radius[:, None] + _MARGIN
    low = extents[:, [0, 2]] - np.minimum(travel, 0.0)
    high = SIZE - extents[:, [1, 3]] - np.maximum(travel, 0.0)
    return Scenes(
        shape=np.array([SHAPES.index(w.shape) for w in wishes], dtype=np.int64),
        rgb=rgb.astype(np.float32),
        ground=rng.uniform(0.04, 0.25, n).astype(np.float32),
        radius=radius.astype(np.float32),
        start=rng.uniform(low, high).astype(np.float32),
        velocity=(travel / (FRAMES - 1)).astype(np.float32),
    )


def _larger(a: Any, b: Any) -> Any:
    return 0.5 * (a + b + abs(a - b))


def render(scenes: Scenes, columns: Any, times: Any) -> Any:
    """Pixels of the scenes: (N, FRAMES, 3, SIZE, SIZE) in 0..1, edges antialiased over one pixel.

    `columns` is 0..SIZE-1 and `times` 0..FRAMES-1 as float arrays of the same library (NumPy or torch) as
    the scenes. The signed distance to the outline, positive inside, gives each pixel's coverage.
    """
    centre = scenes.start[:, None, :] + scenes.velocity[:, None, :] * times[None, :, None]
    x = (columns + 0.5)[None, None, None, :] - centre[:, :, 0][:, :, None, None]
    y = (columns + 0.5)[None, None, :, None] - centre[:, :, 1][:, :, None, None]
    radius = scenes.radius[:, None, None, None]
    shape = scenes.shape[:, None, None, None]
    circle = radius - (x * x + y * y) ** 0.5
    square = radius * _SQUARE_HALF - _larger(abs(x) + 0 * y, abs(y) + 0 * x)
    triangle = radius * _TRIANGLE_INRADIUS - _larger(y + 0 * x, abs(x) * (math.sqrt(3) / 2) - y * 0.5)
    inside = circle * (shape == 0) + square * (shape == 1) + triangle * (shape == 2)
    cover = (inside + 0.5).clip(0.0, 1.0)[:, :, None]
    ground = scenes.ground[:, None, None, None, None]
    return ground + (scenes.rgb[:, None, :, None, None] - ground) * cover


def make_clips(wishes: Sequence[Wish], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """One clip for each wish as NumPy: (N, FRAMES, SIZE, SIZE, 3) float32 in 0..1."""
    scenes = draw_scenes(wishes, np.random.default_rng(seed))
    pixels = render(scenes, np.arange(SIZE, dtype=np.float32), np.arange(FRAMES, dtype=np.float32))
    return np.asarray(pixels, dtype=np.float32).transpose(0, 1, 3, 4, 2)


def draw_prompt(wish: Wish, rng: np.random.Generator) -> str:
    """A prompt for the wish as training sees it: a random phrasing, sometimes with an unknown word put in."""
    words = PHRASINGS[rng.integers(len(PHRASINGS))].format(**vars(wish)).split()
    if rng.random() < 0.15:
        words.insert(int(rng.integers(len(words) + 1)), "unknownword")
    return " ".join(words)
