"""Structural similarity as a loss: differentiable, in two passes over lines instead of one over windows.

The blur is exact in float32. A convolution by cuDNN would round to TF32 where it is left to: 10 bits of
mantissa, so that the mean of squares less the square of the mean is off by as much as the constants that keep
the quotient from nought, and the gradient of a good picture is noise.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import torch

from jobs.nerf.methods.encoding import has_triton

Tensor = torch.Tensor
TAPS: Final = 11


@lru_cache(maxsize=1)
def window() -> tuple[float, ...]:
    """The weights of a line: a Gaussian of sigma 1.5 over 11 pixels, whose sum is 1."""
    line = [math.exp(-0.5 * ((at - TAPS // 2) / 1.5) ** 2) for at in range(TAPS)]
    return tuple(weight / sum(line) for weight in line)


def along_plain(maps: Tensor, axis: int, pad: int) -> Tensor:
    """Maps (n, height, width) blurred along one axis, with ``pad`` zeros before and after it; as many places
    as the window fits whole. Sums of shifted maps: no library's convolution, so nobody's rounding.
    """
    if pad:
        sides = (0, 0, pad, pad) if axis == 1 else (pad, pad)
        maps = torch.nn.functional.pad(maps, sides)
    places = maps.shape[axis] - TAPS + 1
    line = window()
    total = maps.narrow(axis, 0, places) * line[0]
    for tap in range(1, TAPS):
        total.add_(maps.narrow(axis, tap, places), alpha=line[tap])
    return total


def _along(maps: Tensor, axis: int, pad: int) -> Tensor:
    if maps.is_cuda and maps.dtype == torch.float32 and has_triton():
        from jobs.nerf.methods.structure_kernel import along_fused

        return along_fused(maps, axis, pad)
    return along_plain(maps, axis, pad)


class _Blur(torch.autograd.Function):
    """The window is its own mirror image, so the gradient is the same blur of the gradient among zeros."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        return _along(_along(maps, 1, 0), 2, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return _along(_along(grads[0].contiguous(), 2, TAPS - 1), 1, TAPS - 1)


def blur(maps: Tensor) -> Tensor:
    """Maps (n, height, width) blurred where the window fits whole: (n, height - 10, width - 10)."""
    apply: Any = _Blur.apply
    found: Tensor = apply(maps.contiguous())
    return found


def structural_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Mean structural similarity (Wang 2004) of pictures (height, width, 3), 0 to 1; at least 11 pixels a
    side.

    A Gaussian window of 11 pixels, sigma 1.5, where it fits whole, as :func:`jobs.nerf.metrics.ssim` has it.
    """
    x, y = a.permute(2, 0, 1), b.permute(2, 0, 1)
    mx, my, xx, yy, xy = torch.chunk(blur(torch.cat([x, y, x * x, y * y, x * y])), 5)
    vx, vy, vxy = xx - mx * mx, yy - my * my, xy - mx * my
    top = (2 * mx * my + 1e-4) * (2 * vxy + 9e-4)
    found: Tensor = (top / ((mx * mx + my * my + 1e-4) * (vx + vy + 9e-4))).mean()
    return found
