"""How like two pictures are: PSNR, and SSIM after Wang, Bovik, Sheikh and Simoncelli (2004)."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

EQUAL_DB: Final = 100.0
"""What equal pictures get, whose PSNR is infinite."""
_SIGMA, _WINDOW = 1.5, 11


def psnr_db(one: Array, other: Array) -> float:
    """Peak signal-to-noise ratio of two pictures of 8 bits, in dB, at most :data:`EQUAL_DB`."""
    error = float(np.mean((one.astype(np.float64) - other.astype(np.float64)) ** 2))
    return EQUAL_DB if error == 0 else min(EQUAL_DB, 10 * math.log10(255.0**2 / error))


def ssim(one: Array, other: Array) -> float:
    """Structural similarity of two pictures (height, width, 3) of 8 bits: the mean over channels and places.

    The paper's own constants: Gaussian window of 11 pixels with a deviation of 1.5, K1 0.01, K2 0.03; places
    where the window leaves the picture do not count. Both sides must have 11 pixels or more.
    """
    if one.shape != other.shape or min(one.shape[:2]) < _WINDOW:
        raise ValueError(f"SSIM needs two pictures of one size, 11x11 or more: {one.shape} and {other.shape}")
    x, y = one.astype(np.float64), other.astype(np.float64)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mean_x, mean_y = _blurred(x), _blurred(y)
    var_x, var_y = _blurred(x * x) - mean_x**2, _blurred(y * y) - mean_y**2
    both = _blurred(x * y) - mean_x * mean_y
    top = (2 * mean_x * mean_y + c1) * (2 * both + c2)
    bottom = (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    return float(np.mean(top / bottom))


def _blurred(picture: Array) -> Array:
    """By the Gaussian window along both sides, without the border where it does not fit."""
    at = np.arange(_WINDOW) - _WINDOW // 2
    weights = np.exp(-(at**2) / (2 * _SIGMA**2))
    weights /= weights.sum()
    for axis in (0, 1):
        windows = np.lib.stride_tricks.sliding_window_view(picture, _WINDOW, axis=axis)
        picture = windows @ weights
    return picture
