"""A dense grid of features over a cube, read by trilinear interpolation."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor


class _Lookup(torch.autograd.Function):
    """Weighted sums of eight rows. The gradient is added in one order: the same bits on every run."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, corners: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(corners, weights)
        ctx.rows = table.shape[0]
        return torch.nn.functional.embedding_bag(corners, table, per_sample_weights=weights, mode="sum")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        corners, weights = ctx.saved_tensors
        grad = grads[0]
        spread = (weights[..., None] * grad[:, None, :]).view(-1, grad.shape[-1])
        table = torch.zeros(ctx.rows, grad.shape[-1], dtype=grad.dtype, device=grad.device)
        return table.index_add_(0, corners.view(-1), spread), None, None


def corners_of(points: Tensor, resolution: int) -> tuple[Tensor, Tensor]:
    """The eight cells (n, 8) around points in [-1, 1]^3 and their weights; points outside are put on the
    edge.

    The grid's outermost values lie on the cube's faces; the flat index is ``(z * r + y) * r + x``.
    """
    scaled = ((points + 1.0) * (0.5 * (resolution - 1))).clamp(0.0, resolution - 1.0)
    low = scaled.floor().clamp(max=resolution - 2.0)
    x, y, z = (scaled - low).unbind(-1)
    i, j, k = low.long().unbind(-1)
    base = (k * resolution + j) * resolution + i
    r, r2 = resolution, resolution * resolution
    offsets = torch.tensor([0, 1, r, r + 1, r2, r2 + 1, r2 + r, r2 + r + 1], device=points.device)
    nx, ny, nz = 1.0 - x, 1.0 - y, 1.0 - z
    a, b, c, d = nx * ny, x * ny, nx * y, x * y
    weights = torch.stack([a * nz, b * nz, c * nz, d * nz, a * z, b * z, c * z, d * z], -1)
    return base[:, None] + offsets, weights


def lookup(table: Tensor, points: Tensor, resolution: int) -> Tensor:
    """Features (n, c) at points in [-1, 1]^3 of a table (resolution ** 3, c). Differentiable in the table."""
    corners, weights = corners_of(points, resolution)
    apply: Any = _Lookup.apply
    found: Tensor = apply(table, corners, weights)
    return found


def resample(table: Tensor, old: int, new: int) -> Tensor:
    """The same field on a grid of another resolution."""
    channels = table.shape[1]
    volume = table.view(old, old, old, channels).permute(3, 0, 1, 2)[None]
    grown = torch.nn.functional.interpolate(
        volume, size=(new, new, new), mode="trilinear", align_corners=True
    )
    return grown[0].permute(1, 2, 3, 0).reshape(new**3, channels).contiguous()


def add_smoothness(table: Tensor, grad: Tensor, resolution: int, strength: float) -> None:
    """Add the gradient of the squared differences of neighbours (total variation) to ``grad``."""
    r, channels = resolution, table.shape[1]
    volume, out = table.view(r, r, r, channels), grad.view(r, r, r, channels)
    for axis in range(3):
        step = torch.diff(volume, dim=axis).mul_(strength)
        out.narrow(axis, 1, r - 1).add_(step)
        out.narrow(axis, 0, r - 1).sub_(step)
