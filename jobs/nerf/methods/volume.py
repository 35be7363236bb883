"""What all fields that are looked at along rays have in common: batches of rays, pictures in stripes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch

from jobs.nerf.methods.base import Budget, Field, Lit
from jobs.nerf.methods.rays import contract, spacing, view_rays
from jobs.nerf.rendering import Look, on_background
from jobs.nerf.scene import CONTRACTED, View

if TYPE_CHECKING:
    from jobs.nerf.methods.rays import Pictures

Tensor = torch.Tensor
PER_SAMPLE: Final = 0.05
"""Weight of the loss that pulls each sample's own colour to its pixel's (as in DVGO): less haze."""
STRIPE: Final = {"cpu": 4096, "cuda": 2**16}
"""Rays that are looked along at once when a picture is made."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A grid over the cube: ``density`` (side ** 3) of its cells, negative where one is empty.

    ``opaque``: optical depth, by the cells' densities, behind which nothing is looked at; ``None``: look
    through.
    """

    density: Tensor
    side: int
    opaque: float | None = None


@dataclass(slots=True)
class Samples:
    """The samples along rays that are worth looking at: the k places ``which`` of (rays, count) intervals."""

    cube: Tensor
    """(k, 3), in [-1, 1]^3."""
    which: Tensor
    rays: Tensor
    """The ray of each sample, ascending."""
    directions: Tensor
    """(rays, 3)."""
    edges: Tensor
    """(rays, count + 1)."""
    middles: Tensor
    """(rays, count): where in its interval each sample lies."""

    @property
    def lengths(self) -> Tensor:
        """(rays, count)."""
        return self.edges[:, 1:] - self.edges[:, :-1]

    def kept(self, keep: Tensor) -> Samples:
        """Those of the k samples that the mask ``keep`` names."""
        index = keep.nonzero()[:, 0]
        return Samples(
            self.cube[index], self.which[index], self.rays[index], self.directions, self.edges, self.middles
        )


class VolumeField(Field):
    """A radiance field with a density everywhere in space, and a grid that says where there is none."""

    count: int
    per_sample: ClassVar[float] = PER_SAMPLE

    def lit(
        self, origins: Tensor, directions: Tensor, jitter: Tensor | None, *, count: int | None = None
    ) -> Lit:
        """Look along rays (n, 3). ``jitter``: where in its interval each sample lies (n, samples), 0 to 1."""
        edges, _, _ = spacing(
            origins, directions, bounded=self.bounded, extent=self.extent, count=count or self.count
        )
        lengths = edges[:, 1:] - edges[:, :-1]
        middles = edges[:, :-1] + lengths * (0.5 if jitter is None else jitter)
        with torch.no_grad():
            points = origins[:, None] + middles[..., None] * directions[:, None]
            cube = self.to_cube(points.view(-1, 3))
            which = self._worth_looking(cube, lengths)
            samples = Samples(cube[which], which, which // lengths.shape[1], directions, edges, middles)
        return self.blend(samples)

    def to_cube(self, points: Tensor) -> Tensor:
        """Points of normalised space in the cube [-1, 1]^3 that grids cover."""
        return points / self.extent if self.bounded else contract(points) / CONTRACTED

    def _worth_looking(self, cube: Tensor, lengths: Tensor) -> Tensor:
        """Flat indices of samples that lie inside, in no empty cell, and not behind what is opaque."""
        grid = self.occupancy()
        if grid is None:
            if self.bounded:
                return (cube.abs() <= 1.0).all(-1).nonzero()[:, 0]
            return torch.arange(len(cube), device=cube.device)
        r = grid.side
        cell = ((cube.clamp(-1, 1) + 1.0) * (0.5 * (r - 1)) + 0.5).long()
        found = grid.density[(cell[:, 2] * r + cell[:, 1]) * r + cell[:, 0]].view_as(lengths)
        seen = found >= 0.0
        if grid.opaque is not None:
            optical = found.clamp_min(0.0) * lengths
            seen &= torch.cumsum(optical, -1) - optical < grid.opaque
        if self.bounded:
            seen &= (cube.abs() <= 1.0).all(-1).view_as(lengths)
        return seen.view(-1).nonzero()[:, 0]

    @abstractmethod
    def occupancy(self) -> Occupancy | None:
        """Where there is something; ``None``: everywhere."""

    @abstractmethod
    def blend(self, samples: Samples) -> Lit:
        """Density and colour of the samples, blended along their rays."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """What gradients are wanted of."""

    @abstractmethod
    def learn(self, grads: Mapping[str, Tensor], progress: float, iteration: int) -> None:
        """Take one step."""

    def iterate(
        self, pictures: Pictures, look: Look, drawn: torch.Generator, at: Any, progress: float, budget: Budget
    ) -> tuple[Tensor, int]:
        index = pictures.drawn(at.rays, drawn)
        jitter = torch.rand(at.rays, self.count, generator=drawn, device=self.device)
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
        if self.per_sample and lit.weights is not None and lit.colours is not None and lit.rays is not None:
            apart = (lit.colours - target[lit.rays]) ** 2
            loss = loss + self.per_sample * (lit.weights.detach()[:, None] * apart).sum() / (3 * at.rays)
        grads = torch.autograd.grad(loss, [*own.values(), *others], allow_unused=True)
        for value in (*own.values(), *others):
            value.requires_grad_(False)
        with torch.no_grad():
            mine = {
                name: g for (name, _), g in zip(own.items(), grads[: len(own)], strict=True) if g is not None
            }
            self.learn(mine, progress, at.iteration)
            look.learn(list(grads[len(own) :]))
        return error.detach(), lit.looked_at

    @torch.no_grad()
    def look_at(self, view: View, check: Callable[[], None]) -> tuple[Tensor, Tensor, Tensor]:
        rows = max(1, STRIPE[self.device.type] // view.width)
        colour, opacity, depth = [], [], []
        for first in range(0, view.height, rows):
            check()
            origins, directions, along = view_rays(
                view, range(first, min(first + rows, view.height)), self.device
            )
            lit = self.lit(origins, directions, None)
            colour.append(lit.colour)
            opacity.append(lit.opacity)
            depth.append(lit.distance * along)
        shape = (view.height, view.width)
        return torch.cat(colour).view(*shape, 3), torch.cat(opacity).view(shape), torch.cat(depth).view(shape)

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
