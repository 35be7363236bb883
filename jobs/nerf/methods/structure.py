"""Structural similarity as a loss: differentiable, in two passes over lines instead of one over windows."""

from __future__ import annotations

from functools import lru_cache

import torch

Tensor = torch.Tensor


@lru_cache(maxsize=4)
def _line(device: torch.device, dtype: torch.dtype) -> Tensor:
    line = torch.exp(-0.5 * ((torch.arange(11, dtype=torch.float64) - 5.0) / 1.5) ** 2)
    return (line / line.sum()).to(device, dtype)


def structural_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Mean structural similarity (Wang 2004) of pictures (height, width, 3), 0 to 1; at least 11 pixels a
    side.

    A Gaussian window of 11 pixels, sigma 1.5, where it fits whole, as :func:`jobs.nerf.metrics.ssim` has it.
    """
    x, y = a.permute(2, 0, 1), b.permute(2, 0, 1)
    maps = torch.cat([x, y, x * x, y * y, x * y])[:, None]
    line = _line(a.device, a.dtype)
    blurred = torch.nn.functional.conv2d(maps, line.view(1, 1, 11, 1))
    blurred = torch.nn.functional.conv2d(blurred, line.view(1, 1, 1, 11))[:, 0]
    mx, my, xx, yy, xy = torch.chunk(blurred, 5)
    vx, vy, vxy = xx - mx * mx, yy - my * my, xy - mx * my
    top = (2 * mx * my + 1e-4) * (2 * vxy + 9e-4)
    found: Tensor = (top / ((mx * mx + my * my + 1e-4) * (vx + vy + 9e-4))).mean()
    return found
