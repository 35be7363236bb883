"""Where an object cut out of its background can be: inside every silhouette (the visual hull, Laurentini
1994).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from jobs.nerf.methods.rays import Pictures

Tensor = torch.Tensor
_AT_ONCE: Final = 2**18
_ROUNDS: Final = 24
_CLEAR: Final = 8
"""Alpha (0 to 255) below which a pixel shows nothing of the object."""


def inside_hull(
    pictures: Pictures, count: int, radius: float, drawn: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Places (count, 3) in the ball of ``radius`` that no picture sees through, and what colour (0 to 1) is
    seen there in the mean.

    Where the hull is so small that it cannot be filled by drawing, or is empty, the rest lies anywhere in the
    ball.
    """
    device = pictures.pixels.device
    places, colours, found = [], [], 0
    for _ in range(_ROUNDS):
        points = _in_ball(min(_AT_ONCE, 8 * count), radius, drawn, device)
        seen, colour = seen_through(pictures, points)
        places.append(points[~seen])
        colours.append(colour[~seen])
        found += len(places[-1])
        if found >= count:
            break
    if found < count:
        rest = _in_ball(count - found, radius, drawn, device)
        places.append(rest)
        colours.append(seen_through(pictures, rest)[1])
    return torch.cat(places)[:count], torch.cat(colours)[:count]


def seen_through(pictures: Pictures, points: Tensor) -> tuple[Tensor, Tensor]:
    """Which points (n) some picture sees through, and the mean colour (n, 3) of the pixels that show them."""
    clear = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    total = torch.zeros(len(points), 4, device=points.device)
    for number, view in enumerate(pictures.views):
        local = (points - pictures.origins[number]) @ pictures.rotations[number]
        ahead = (-local[:, 2]).clamp_min(1e-6)
        u = (view.fx * local[:, 0] / ahead + view.cx).long()
        v = (-view.fy * local[:, 1] / ahead + view.cy).long()
        inside = (local[:, 2] < 0) & (u >= 0) & (u < view.width) & (v >= 0) & (v < view.height)
        index = (
            pictures.starts[number] + v.clamp(0, view.height - 1) * view.width + u.clamp(0, view.width - 1)
        )
        if pictures.seen is not None:
            inside &= pictures.seen[index]
        pixels = pictures.pixels[index].float()
        shown = inside & (pixels[:, 3] >= _CLEAR)
        clear |= inside & ~shown
        total += torch.cat([pixels[:, :3] / 255.0, torch.ones_like(pixels[:, :1])], -1) * shown[:, None]
    grey = torch.full((len(points), 3), 0.5, device=points.device)
    return clear, torch.where(total[:, 3:] > 0, total[:, :3] / total[:, 3:].clamp_min(1.0), grey)


def _in_ball(count: int, radius: float, drawn: torch.Generator, device: torch.device) -> Tensor:
    spread = torch.randn(count, 3, generator=drawn, device=device)
    length = torch.rand(count, 1, generator=drawn, device=device) ** (1 / 3)
    found: Tensor = spread / spread.norm(dim=-1, keepdim=True).clamp_min(1e-9) * length * radius
    return found
