"""A multi-resolution hash encoding (Mueller 2022): in plain torch on any device, as one Triton kernel on
CUDA.

Both read the same table: ``levels * rows`` rows of two features. A level whose cells fit its rows is stored
densely, others by a hash of the cell. Triton comes with torch's CUDA builds; the kernel is compiled at its
first call, in seconds, and kept in Triton's cache.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Final

import torch

Tensor = torch.Tensor
FEATURES: Final = 2
PRIMES: Final = (1, 2_654_435_761, 805_459_861)


@dataclass(frozen=True, slots=True)
class Levels:
    """Cells a side of each level, and how many rows (a power of two) each has in the table."""

    resolutions: tuple[int, ...]
    rows: int

    def side(self, resolution: int) -> int:
        """Corners a side where the level is stored densely; 0 where it is hashed."""
        side = resolution + 2
        return side if side**3 <= self.rows else 0


def encode(table: Tensor, cube: Tensor, levels: Levels) -> Tensor:
    """Features (n, levels * 2) at points (n, 3) in [-1, 1]^3; differentiable in the table."""
    if table.is_cuda and has_triton():
        from jobs.nerf.methods.encoding_kernel import encode_fused

        return encode_fused(table, cube, levels)
    return encode_plain(table, cube, levels)


def has_triton() -> bool:
    """Whether the fused kernel can be compiled here."""
    return importlib.util.find_spec("triton") is not None


def encode_plain(table: Tensor, cube: Tensor, levels: Levels) -> Tensor:
    """The encoding in plain torch: a few hundred small operations."""
    unit = (cube * 0.5 + 0.5).clamp(0.0, 1.0)
    found = []
    for level, resolution in enumerate(levels.resolutions):
        scaled = unit * resolution
        low = scaled.floor()
        part = scaled - low
        cell = low.long()
        total: Any = 0.0
        for corner in range(8):
            offset = torch.tensor([corner & 1, corner >> 1 & 1, corner >> 2 & 1], device=cube.device)
            weight = torch.where(offset.bool(), part, 1.0 - part).prod(-1, keepdim=True)
            rows = _rows(cell + offset, levels.side(resolution), levels.rows) + level * levels.rows
            total = total + weight * table[rows]
        found.append(total)
    return torch.cat(found, -1)


def _rows(cell: Tensor, side: int, rows: int) -> Tensor:
    if side:
        return (cell[:, 2] * side + cell[:, 1]) * side + cell[:, 0]
    mixed = (cell[:, 0] * PRIMES[0]) ^ (cell[:, 1] * PRIMES[1]) ^ (cell[:, 2] * PRIMES[2])
    return torch.bitwise_and(mixed, rows - 1)
