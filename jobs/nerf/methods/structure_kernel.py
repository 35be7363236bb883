"""The blur of the structural loss as one Triton kernel, for CUDA. Only imported where Triton is installed."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
import triton
import triton.language as tl

from jobs.nerf.methods.structure import TAPS, window

Tensor = torch.Tensor
BLOCK: Final = 256
_TAPS: Final = tl.constexpr(TAPS)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _line(  # type: ignore[no-untyped-def]
    maps, out, weights, height, width, out_height, out_width, DOWN: tl.constexpr, PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A piece of one row of one map; beyond its edges there are zeros."""
    row = tl.program_id(0)
    page = (row // out_height).to(tl.int64)
    y = row % out_height
    x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = maps + page * height * width
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(_TAPS):
        weight = tl.load(weights + tap)
        if DOWN:
            at = y + tap - PAD
            inside = (x < out_width) & (at >= 0) & (at < height)
            total += weight * tl.load(source + at * width + x, mask=inside, other=0.0)
        else:
            at = x + tap - PAD
            inside = (x < out_width) & (at >= 0) & (at < width)
            total += weight * tl.load(source + y * width + at, mask=inside, other=0.0)
    tl.store(out + (page * out_height + y) * out_width + x, total, mask=x < out_width)


@lru_cache(maxsize=4)
def _weights(device: torch.device) -> Tensor:
    return torch.tensor(window(), dtype=torch.float32, device=device)


def along_fused(maps: Tensor, axis: int, pad: int) -> Tensor:
    """Contiguous float32 maps (n, height, width) blurred along one axis, as
    :func:`jobs.nerf.methods.structure.along_plain` does it.
    """
    pages, height, width = maps.shape
    more = 2 * pad - TAPS + 1
    out_height, out_width = (height + more, width) if axis == 1 else (height, width + more)
    out = torch.empty(pages, out_height, out_width, device=maps.device)
    grid = (pages * out_height, triton.cdiv(out_width, BLOCK))
    _line[grid](
        maps, out, _weights(maps.device), height, width, out_height, out_width, DOWN=axis == 1, PAD=pad,
        BLOCK=BLOCK,
    )  # fmt: skip
    return out
