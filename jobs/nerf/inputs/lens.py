"""Lenses: where a direction falls in a distorted picture, and the pinhole picture made from it.

The models are COLMAP's; their equations are OpenCV's (Brown 1971; Kannala and Brandt 2006).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from jobs.nerf.inputs.pictures import Pixels
from jobs.nerf.inputs.raw import Lens

Array = npt.NDArray[np.float64]


def project(lens: Lens, x: Array, y: Array) -> tuple[Array, Array]:
    """Pixels of the directions (x, y, 1): x right, y down. The centre of the first pixel is (0.5, 0.5)."""
    k1, k2, k3, k4 = (lens.value(name) for name in ("k1", "k2", "k3", "k4"))
    p1, p2 = lens.value("p1"), lens.value("p2")
    if "FISHEYE" in lens.model:
        r = np.sqrt(x * x + y * y)
        theta = np.arctan(r)
        t2 = theta * theta
        bent = theta * (1 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4))))
        factor = np.where(r > 1e-9, bent / np.maximum(r, 1e-9), 1.0)
        u, v = x * factor, y * factor
    else:
        r2 = x * x + y * y
        above = (
            1 + r2 * (k1 + r2 * (k2 + r2 * k3)) if lens.model == "FULL_OPENCV" else 1 + r2 * (k1 + r2 * k2)
        )
        below: Array | float = 1.0
        if lens.model == "FULL_OPENCV":
            k5, k6 = lens.value("k5"), lens.value("k6")
            below = 1 + r2 * (k4 + r2 * (k5 + r2 * k6))
        u = x * above / below + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
        v = y * above / below + 2 * p2 * x * y + p1 * (r2 + 2 * y * y)
    return lens.value("fl_x") * u + lens.value("cx"), lens.value("fl_y") * v + lens.value("cy")


def straightened(lens: Lens) -> Lens:
    """The pinhole lens of the undistorted picture: same size and focal lengths, so scaled that no edge is
    bare.

    Lenses whose pictures would have bare corners (barrel distortion undone) are zoomed in as far as needed,
    at most by half.
    """
    width, height = lens.width, lens.height
    fx, fy = lens.value("fl_x"), lens.value("fl_y")
    if not lens.distorted:
        return Lens("PINHOLE", width, height, (fx, fy, lens.value("cx"), lens.value("cy")))
    t = np.linspace(0.0, 1.0, 33)
    xs = np.concatenate([t * width, t * width, np.zeros(33), np.full(33, width)])
    ys = np.concatenate([np.zeros(33), np.full(33, height), t * height, t * height])
    zoom = 1.0
    while zoom < 1.5:
        u, v = project(lens, (xs - width / 2) / (fx * zoom), (ys - height / 2) / (fy * zoom))
        if u.min() >= -0.5 and v.min() >= -0.5 and u.max() <= width + 0.5 and v.max() <= height + 0.5:
            break
        zoom += 0.01
    return Lens("PINHOLE", width, height, (fx * zoom, fy * zoom, width / 2, height / 2))


def resized(lens: Lens, width: int, height: int) -> Lens:
    """The same lens for a picture of another size."""
    x, y = width / lens.width, height / lens.height
    straight = straightened(lens) if not lens.distorted else lens
    if straight.model != "PINHOLE":
        raise ValueError("only pinhole lenses are resized")
    fx, fy, cx, cy = straight.params
    return Lens("PINHOLE", width, height, (fx * x, fy * y, cx * x, cy * y))


def undistort(pixels: Pixels, lens: Lens) -> tuple[Pixels, Lens]:
    """The picture that a pinhole camera would have taken; pixels that the lens never saw are transparent."""
    straight = straightened(lens)
    if not lens.distorted:
        return pixels, straight
    fx, fy, cx, cy = straight.params
    x, y = np.meshgrid(
        (np.arange(straight.width) + 0.5 - cx) / fx, (np.arange(straight.height) + 0.5 - cy) / fy
    )
    u, v = project(lens, x, y)
    return sample(pixels, u - 0.5, v - 0.5), straight


def sample(pixels: Pixels, u: Array, v: Array) -> Pixels:
    """Bilinear samples at pixel centres (u, v), with alpha weighed in; outside the picture all zero."""
    height, width = pixels.shape[:2]
    left, top = np.floor(u).astype(np.int64), np.floor(v).astype(np.int64)
    a, b = (u - left)[..., None], (v - top)[..., None]
    weights = ((1 - a) * (1 - b), a * (1 - b), (1 - a) * b, a * b)
    total = np.zeros((*u.shape, 4))
    for weight, (dx, dy) in zip(weights, ((0, 0), (1, 0), (0, 1), (1, 1)), strict=True):
        x, y = left + dx, top + dy
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        found = pixels[np.clip(y, 0, height - 1), np.clip(x, 0, width - 1)].astype(np.float64)
        alpha = found[..., 3:] * inside[..., None] / 255.0
        total += weight * np.concatenate([found[..., :3] * alpha, alpha], -1)
    alpha = total[..., 3:]
    colour = np.where(alpha > 1e-6, total[..., :3] / np.maximum(alpha, 1e-6), 0.0)
    out = np.concatenate([colour, np.where(alpha > 0.999, 1.0, alpha) * 255.0], -1)
    # half a pixel at the border is no transparency
    out[..., 3] = np.where(
        out[..., 3] >= 127.0, np.maximum(out[..., 3], 255.0 * _opaque(pixels)), out[..., 3]
    )
    rounded: Pixels = np.clip(np.rint(out), 0, 255).astype(np.uint8)
    return rounded


def _opaque(pixels: Pixels) -> float:
    return 1.0 if bool((pixels[..., 3] == 255).all()) else 0.0


def horizontal_fov(lens: Lens) -> float:
    """Degrees."""
    return math.degrees(2 * math.atan(lens.width / (2 * lens.value("fl_x"))))
