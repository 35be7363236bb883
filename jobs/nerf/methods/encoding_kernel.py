"""The hash encoding as one kernel forward and one backward, for CUDA. Only imported where Triton is
installed.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from jobs.nerf.methods.encoding import FEATURES, PRIMES, Levels

Tensor = torch.Tensor
BLOCK: Final = 256
_PRIME_Y: Final = tl.constexpr(PRIMES[1] - 2**32)
"""The same 32 bits as a signed number: products are kept modulo 2**32, of which a row takes the lowest bits.
"""
_PRIME_Z: Final = tl.constexpr(PRIMES[2])


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _corner(corner: tl.constexpr, x, y, z, px, py, pz, side, rows, level):  # type: ignore[no-untyped-def]
    """Row and weight of one of the eight corners of the cell (x, y, z)."""
    cx, cy, cz = x + (corner & 1), y + ((corner >> 1) & 1), z + ((corner >> 2) & 1)
    wx = px if (corner & 1) == 1 else 1.0 - px
    wy = py if ((corner >> 1) & 1) == 1 else 1.0 - py
    wz = pz if ((corner >> 2) & 1) == 1 else 1.0 - pz
    hashed = (cx ^ (cy * _PRIME_Y) ^ (cz * _PRIME_Z)) & (rows - 1)
    row = tl.where(side > 0, (cz * side + cy) * side + cx, hashed)
    return row + level * rows, wx * wy * wz


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _axis(points, at, axis: tl.constexpr, inside, resolution):  # type: ignore[no-untyped-def]
    """Cell and place within it along one axis."""
    value = tl.load(points + at * 3 + axis, mask=inside, other=0.0) * 0.5 + 0.5
    scaled = tl.minimum(tl.maximum(value, 0.0), 1.0) * resolution
    low = tl.floor(scaled)
    return low.to(tl.int32), scaled - low


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _forward(points, table, out, shapes, n, rows, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    level = tl.program_id(1)
    inside = at < n
    resolution = tl.load(shapes + level * 2).to(tl.float32)
    side = tl.load(shapes + level * 2 + 1)
    x, px = _axis(points, at, 0, inside, resolution)
    y, py = _axis(points, at, 1, inside, resolution)
    z, pz = _axis(points, at, 2, inside, resolution)
    first = tl.zeros((BLOCK,), tl.float32)
    second = tl.zeros((BLOCK,), tl.float32)
    for corner in tl.static_range(8):
        row, weight = _corner(corner, x, y, z, px, py, pz, side, rows, level)
        first += weight * tl.load(table + row * 2, mask=inside, other=0.0)
        second += weight * tl.load(table + row * 2 + 1, mask=inside, other=0.0)
    place = out + at.to(tl.int64) * width + level * 2
    tl.store(place, first, mask=inside)
    tl.store(place + 1, second, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _backward(points, grad, table, shapes, n, rows, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    level = tl.program_id(1)
    inside = at < n
    resolution = tl.load(shapes + level * 2).to(tl.float32)
    side = tl.load(shapes + level * 2 + 1)
    x, px = _axis(points, at, 0, inside, resolution)
    y, py = _axis(points, at, 1, inside, resolution)
    z, pz = _axis(points, at, 2, inside, resolution)
    place = grad + at.to(tl.int64) * width + level * 2
    first = tl.load(place, mask=inside, other=0.0)
    second = tl.load(place + 1, mask=inside, other=0.0)
    for corner in tl.static_range(8):
        row, weight = _corner(corner, x, y, z, px, py, pz, side, rows, level)
        tl.atomic_add(table + row * 2, weight * first, mask=inside, sem="relaxed")
        tl.atomic_add(table + row * 2 + 1, weight * second, mask=inside, sem="relaxed")


_SHAPES: dict[tuple[Levels, torch.device], Tensor] = {}


def _shapes(levels: Levels, device: torch.device) -> Tensor:
    """Resolution and dense side (0: hashed) of each level, on the device."""
    key = (levels, device)
    if key not in _SHAPES:
        rows = [[resolution, levels.side(resolution)] for resolution in levels.resolutions]
        _SHAPES[key] = torch.tensor(rows, dtype=torch.int32, device=device)
    return _SHAPES[key]


class _Encode(torch.autograd.Function):
    """Gradients are added with atomics: in any order."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, cube: Tensor, levels: Levels) -> Tensor:
        points = cube.contiguous()
        count, width = len(points), FEATURES * len(levels.resolutions)
        out = torch.empty(count, width, device=table.device)
        shapes = _shapes(levels, table.device)
        if count:
            grid = (triton.cdiv(count, BLOCK), len(levels.resolutions))
            _forward[grid](points, table, out, shapes, count, levels.rows, width, BLOCK=BLOCK)
        ctx.save_for_backward(points)
        ctx.levels, ctx.shape = levels, table.shape
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (points,) = ctx.saved_tensors
        levels: Levels = ctx.levels
        grad = grads[0].contiguous()
        table = torch.zeros(ctx.shape, device=grad.device)
        if len(points):
            grid = (triton.cdiv(len(points), BLOCK), len(levels.resolutions))
            shapes = _shapes(levels, grad.device)
            _backward[grid](points, grad, table, shapes, len(points), levels.rows, grad.shape[1], BLOCK=BLOCK)
        return table, None, None


def encode_fused(table: Tensor, cube: Tensor, levels: Levels) -> Tensor:
    """Features (n, levels * 2) of float32 points, as :func:`jobs.nerf.methods.encoding.encode_plain` gives
    them.
    """
    apply: Any = _Encode.apply
    found: Tensor = apply(table, cube, levels)
    return found
