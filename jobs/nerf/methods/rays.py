"""Pictures as tensors, rays through their pixels, and the space that they cross."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from farm.errors import PermanentFailure
from jobs.nerf.inputs.pictures import read_mask, read_rgba
from jobs.nerf.scene import CONTRACTED, View
from jobs.pacing import own_pace

Tensor = torch.Tensor


@dataclass(slots=True)
class Pictures:
    """Every pixel of some views in one row, so that pictures of mixed sizes share a batch.

    ``pixels``: (n, 4) uint8, sRGB with straight alpha. ``first``: where each picture begins in it.
    """

    views: list[View]
    pixels: Tensor
    starts: list[int]
    """``first`` as plain numbers: reading one off a GPU waits for all that runs there."""
    first: Tensor
    widths: Tensor
    inverse: Tensor
    """(views, 4): 1/fx, 1/fy, cx, cy."""
    rotations: Tensor
    origins: Tensor
    seen: Tensor | None = None
    """(n) bool: which pixels the masks leave; ``None`` where there are no masks."""
    usable: Tensor | None = None
    """The places of these pixels."""

    @staticmethod
    def load(views: Sequence[View], folder: Path, device: torch.device) -> Pictures:
        """Read the views' files, which lie in ``folder``."""
        read = [torch.from_numpy(read_rgba(folder / view.file).reshape(-1, 4)) for view in views]
        sizes = [len(pixels) for pixels in read]
        starts = [0, *np.cumsum(sizes).tolist()]
        seen = _seen(views, sizes, folder)
        matrices = torch.from_numpy(np.stack([view.matrix for view in views])).float()
        return Pictures(
            list(views),
            own_pace().taken(torch.cat(read), device),
            starts,
            torch.tensor(starts, dtype=torch.int64, device=device),
            torch.tensor([view.width for view in views], device=device),
            torch.tensor([[1 / v.fx, 1 / v.fy, v.cx, v.cy] for v in views], device=device),
            matrices[:, :3, :3].contiguous().to(device),
            matrices[:, :3, 3].contiguous().to(device),
            None if seen is None else seen.to(device),
            None if seen is None else seen.nonzero()[:, 0].to(device),
        )

    def drawn(self, count: int, dice: torch.Generator) -> Tensor:
        """So many pixels, drawn among those that the masks leave: their places in ``pixels``."""
        among = len(self.pixels) if self.usable is None else len(self.usable)
        index = torch.randint(0, among, (count,), generator=dice, device=self.pixels.device)
        return index if self.usable is None else self.usable[index]

    def rays(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Origins and unit directions (n, 3) of the rays through pixel centres, and the picture of each."""
        picture = torch.searchsorted(self.first, index, right=True) - 1
        within = index - self.first[picture]
        width = self.widths[picture]
        x, y = (within % width).float() + 0.5, (within // width).float() + 0.5
        lens = self.inverse[picture]
        local = torch.stack(
            [(x - lens[:, 2]) * lens[:, 0], -(y - lens[:, 3]) * lens[:, 1], -torch.ones_like(x)], -1
        )
        turned = (self.rotations[picture] * local[:, None, :]).sum(-1)
        return self.origins[picture], turned / turned.norm(dim=-1, keepdim=True), picture

    def whole(self, number: int) -> Tensor:
        """One picture, (height, width, 4) float, 0 to 1."""
        view, first = self.views[number], self.starts[number]
        part = self.pixels[first : first + view.width * view.height]
        return part.view(view.height, view.width, 4).float() / 255.0

    def mask(self, number: int) -> Tensor | None:
        """What the masks leave of one picture, (height, width, 1) bool."""
        if self.seen is None:
            return None
        view, first = self.views[number], self.starts[number]
        return self.seen[first : first + view.width * view.height].view(view.height, view.width, 1)

    def colours(self, index: Tensor) -> Tensor:
        """(n, 4) float, 0 to 1."""
        return self.pixels[index].float() / 255.0


def _seen(views: Sequence[View], sizes: Sequence[int], folder: Path) -> Tensor | None:
    if not any(view.mask for view in views):
        return None
    parts = [
        torch.from_numpy(read_mask(folder / view.mask)).view(-1) if view.mask else torch.ones(size).bool()
        for view, size in zip(views, sizes, strict=True)
    ]
    seen = torch.cat(parts)
    if not bool(seen.any()):
        raise PermanentFailure("the masks leave nothing of any picture; white is what is kept")
    return seen


def view_rays(view: View, rows: range, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Origins, unit directions and the share of each along the optical axis, for whole rows of a picture."""
    y, x = torch.meshgrid(
        torch.arange(rows.start, rows.stop, device=device).float() + 0.5,
        torch.arange(view.width, device=device).float() + 0.5,
        indexing="ij",
    )
    local = torch.stack([(x - view.cx) / view.fx, -(y - view.cy) / view.fy, -torch.ones_like(x)], -1)
    lengths = local.norm(dim=-1)
    matrix = torch.from_numpy(view.matrix).float().to(device)
    turned = (local / lengths[..., None]).reshape(-1, 3) @ matrix[:3, :3].T
    return matrix[:3, 3].expand_as(turned), turned, (1.0 / lengths).reshape(-1)


def contract(points: Tensor) -> Tensor:
    """All of space into a ball of radius ``CONTRACTED``: the unit ball stays, the rest is squeezed around it.

    As in mip-NeRF 360, whose shell is as thick as the ball; ours is thinner, so that a grid has its cells
    where the cameras look.
    """
    length = (points * points).sum(-1, keepdim=True).sqrt().clamp_min(1e-9)
    shell = CONTRACTED - 1.0
    return points * torch.where(
        length <= 1.0, torch.ones_like(length), (1.0 + shell - shell / length) / length
    )


def expand_out(points: Tensor) -> Tensor:
    """The inverse of :func:`contract`; what lies at the shell's edge or beyond goes far away."""
    length = points.norm(dim=-1, keepdim=True).clamp_min(1e-9)
    shell = CONTRACTED - 1.0
    far = shell / (CONTRACTED - length).clamp_min(1e-3)
    return points * torch.where(length <= 1.0, torch.ones_like(length), far / length)


def spacing(
    origins: Tensor, directions: Tensor, *, bounded: bool, extent: float, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Edges of the sample intervals along each ray, (n, count + 1), and where each ray may begin and end.

    Bounded: evenly through the ball of radius ``extent``. Otherwise two thirds of the samples evenly up to
    where the ray leaves the unit ball, the rest ever wider until 64 times the ball's radius.
    """
    middle = -(origins * directions).sum(-1)
    aside = (origins + middle[:, None] * directions).norm(dim=-1)
    steps = torch.linspace(0.0, 1.0, count + 1, device=origins.device)
    if bounded:
        half = (extent**2 - aside**2).clamp_min(0.0).sqrt()
        near = (middle - half).clamp_min(1e-3)
        far = torch.maximum(middle + half, near)
        return near[:, None] + (far - near)[:, None] * steps, near, far
    half = (1.0 - aside**2).clamp_min(0.0).sqrt().clamp_min(0.3)
    # nothing is looked for between a camera outside the ball and the ball: it would hang before the lens
    near = (middle - half).clamp_min(0.05)
    leave = torch.maximum(middle + half, near + 0.3)
    inner = count * 2 // 3
    first = near[:, None] + (leave - near)[:, None] * torch.linspace(0, 1, inner + 1, device=origins.device)
    widening = torch.linspace(0, 1, count - inner + 1, device=origins.device)[1:]
    # evenly in 1/distance, seen from the ball: 1 at its edge, 1/64 at the far end
    rest = leave[:, None] - 1.0 + 1.0 / (1.0 - widening * (1.0 - 1.0 / 64.0))
    return torch.cat([first, rest], -1), near, rest[:, -1]
