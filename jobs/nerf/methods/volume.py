"""What all fields that are looked at along rays have in common: batches of rays, pictures in stripes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from jobs.nerf.methods.base import Budget, Field, Lit
from jobs.nerf.methods.rays import view_rays
from jobs.nerf.rendering import Look, Picture, on_background
from jobs.nerf.scene import View

if TYPE_CHECKING:
    from jobs.nerf.methods.rays import Pictures

Tensor = torch.Tensor
PER_SAMPLE: Final = 0.05
"""Weight of the loss that pulls each sample's own colour to its pixel's (as in DVGO): less haze."""
STRIPE: Final = {"cpu": 4096, "cuda": 2**16}
"""Rays that are looked along at once when a picture is made."""


class VolumeField(Field):
    """A radiance field with a density everywhere in space."""

    count: int

    @abstractmethod
    def lit(
        self, origins: Tensor, directions: Tensor, jitter: Tensor | None, *, count: int | None = None
    ) -> Lit:
        """Look along rays (n, 3). ``jitter``: where in its interval each sample lies (n, samples), 0 to 1."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """What gradients are wanted of."""

    @abstractmethod
    def learn(self, grads: Mapping[str, Tensor], progress: float, iteration: int) -> None:
        """Take one step."""

    def iterate(
        self, pictures: Pictures, look: Look, drawn: torch.Generator, at: Any, progress: float, budget: Budget
    ) -> tuple[float, int]:
        index = torch.randint(0, len(pictures.pixels), (at.rays,), generator=drawn).to(self.device)
        jitter = torch.rand(at.rays, self.count, generator=drawn).to(self.device)
        origins, directions, picture = pictures.rays(index)
        wanted = pictures.colours(index)
        behind = look.behind(at.rays, drawn)
        alpha = wanted[:, 3:]
        target = wanted[:, :3] * alpha + behind.detach() * (1.0 - alpha)
        own = self.parameters()
        others = look.wanted()
        for value in (*own.values(), *others):
            value.requires_grad_(True)
        lit = self.lit(origins, directions, jitter)
        # behind pixels that are cut away the background is what it is; only the field may change there
        backdrop = behind if look.background != "learned" else look.colour.expand(at.rays, 3)
        colour = look.exposed(lit.colour + (1.0 - lit.opacity[:, None]) * backdrop, picture)
        error = ((colour - target) ** 2).mean()
        loss = error
        if lit.weights is not None and lit.colours is not None and lit.rays is not None:
            apart = (lit.colours - target[lit.rays]) ** 2
            loss = loss + PER_SAMPLE * (lit.weights.detach()[:, None] * apart).sum() / (3 * at.rays)
        grads = torch.autograd.grad(loss, [*own.values(), *others], allow_unused=True)
        for value in (*own.values(), *others):
            value.requires_grad_(False)
        with torch.no_grad():
            mine = {
                name: g for (name, _), g in zip(own.items(), grads[: len(own)], strict=True) if g is not None
            }
            self.learn(mine, progress, at.iteration)
            look.learn(list(grads[len(own) :]))
        return float(error.detach()), lit.looked_at

    @torch.no_grad()
    def render(self, view: View, check: Callable[[], None]) -> Picture:
        rows = max(1, STRIPE[self.device.type] // view.width)
        colour, opacity, depth = [], [], []
        for first in range(0, view.height, rows):
            check()
            origins, directions, along = view_rays(
                view, range(first, min(first + rows, view.height)), self.device
            )
            lit = self.lit(origins, directions, None)
            colour.append(lit.colour.cpu())
            opacity.append(lit.opacity.cpu())
            depth.append((lit.distance * along).cpu())
        shape = (view.height, view.width)
        return Picture(
            torch.cat(colour).view(*shape, 3).numpy(),
            torch.cat(opacity).view(shape).numpy(),
            torch.cat(depth).view(shape).numpy(),
        )

    def picture(self, view: View, look: Look, check: Callable[[], None]) -> Any:
        return on_background(self.render(view, check), look)

    @torch.no_grad()
    def score(self, pictures: Pictures, index: Tensor, look: Look) -> float:
        total, count = 0.0, 0.0
        for part in torch.split(index, STRIPE[self.device.type]):
            origins, directions, _ = pictures.rays(part)
            lit = self.lit(origins, directions, None)
            wanted = pictures.colours(part)
            shown = (lit.colour + (1.0 - lit.opacity[:, None]) * look.shown).clamp(0, 1)
            target = wanted[:, :3] * wanted[:, 3:] + look.shown * (1.0 - wanted[:, 3:])
            total += float(((shown - target) ** 2).mean(-1).double().sum())
            count += len(part)
        return float(-10.0 * math.log10(max(total / max(count, 1.0), 1e-10)))
