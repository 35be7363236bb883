"""A radiance field as a dense grid (after DVGO and Plenoxels): density and spherical harmonics, for CPUs.

Space (contracted where the scene has no bounds) is a cube of ``resolution`` cells a side. It is trained from
coarse to fine; cells that are empty are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from jobs.nerf.methods.base import Adam, Budget, Lit, Options
from jobs.nerf.methods.compositing import composite, harmonics
from jobs.nerf.methods.grid import add_smoothness, lookup, resample
from jobs.nerf.methods.rays import expand_out
from jobs.nerf.methods.volume import Occupancy, Samples, VolumeField
from jobs.nerf.scene import CONTRACTED, View

Tensor = torch.Tensor
SHIFT: Final = -5.0
GAIN: Final = 25.0
STRIDE: Final = 2.0
"""How much further density moves than colour in one step of the optimiser, which treats both alike."""
_EMPTY: Final = 0.004
"""Opacity of one sample interval below which a cell counts as empty."""
_WITNESSES: Final = 3
"""So many cameras must see a cell before anything may stand in it."""
_WARM: Final = 100
"""Iterations in which no cell counts as empty."""
_OPAQUE: Final = 5.0
"""Optical depth behind which nothing is looked at: less than a hundredth of the light comes through."""
_LEVELS: Final = ((0.0, 0.34), (0.12, 0.6), (0.4, 1.0))
"""Share of the training at which a level of detail begins, and its share of the final resolution."""


class DenseGrid(VolumeField):
    """Density and colour on a dense grid."""

    name = "nerf"
    form = "dense"
    version = 1

    def __init__(self, options: Options, bounded: bool, extent: float, device: torch.device) -> None:
        super().__init__(options, bounded, extent, device)
        self.degree = min(options.sh_degree, 2)
        self.colours = 3 * (self.degree + 1) ** 2
        self.count = options.samples
        self.level = 0
        self.resolution = self._resolution_of(0)
        self.table = torch.zeros(self.resolution**3, 1 + self.colours, device=device)
        self.occupied: Tensor | None = None
        self.open_cells: Tensor | None = None
        # what is hardly ever seen moves fast when it is
        self.optimiser = Adam(0.9, 0.99, 1e-12)

    def _resolution_of(self, level: int) -> int:
        return max(16, int(self.options.resolution * _LEVELS[level][1]))

    # --- the field -----------------------------------------------------------------------------------

    def occupancy(self) -> Occupancy | None:
        return None if self.occupied is None else Occupancy(self.occupied, self.resolution, _OPAQUE)

    def blend(self, samples: Samples) -> Lit:
        which, lengths = samples.which, samples.lengths
        features = lookup(self.table, samples.cube, self.resolution)
        density = self._density_of(features[:, 0])
        optical = torch.zeros(lengths.numel(), device=density.device, dtype=density.dtype)
        optical = optical.index_copy(0, which, density * lengths.reshape(-1)[which]).view_as(lengths)
        basis = harmonics(samples.directions, self.degree)[samples.rays]
        raw = (features[:, 1:].view(-1, 3, basis.shape[1]) * basis[:, None, :]).sum(-1)
        colours = torch.sigmoid(raw)
        found = composite(optical, which, colours, samples.middles)
        weights = found.weights.reshape(-1)[which]
        return Lit(found.colour, found.opacity, found.distance, len(which), weights, colours, samples.rays)

    def _density_of(self, raw: Tensor) -> Tensor:
        return GAIN * torch.nn.functional.softplus(STRIDE * raw + SHIFT)

    def density(self, points: Tensor) -> Tensor:
        """Density at points of normalised space."""
        cube = self.to_cube(points)
        values = lookup(self.table[:, :1].contiguous(), cube, self.resolution)[:, 0]
        return self._density_of(values) * (cube.abs() <= 1.0).all(-1)

    def albedo(self, points: Tensor) -> Tensor:
        """Colour at points, seen from nowhere in particular."""
        features = lookup(self.table, self.to_cube(points), self.resolution)[:, 1:]
        return torch.sigmoid(features.view(-1, 3, (self.degree + 1) ** 2)[..., 0] * 0.28209479177387814)

    # --- training ------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, Tensor]:
        return {"table": self.table}

    def learn(self, grads: Mapping[str, Tensor], progress: float, iteration: int) -> None:
        """One step of Adam; ``grads`` by parameter name."""
        grad = grads["table"]
        if self.options.smoothness > 0.0 and iteration % 4 == 0:
            add_smoothness(self.table, grad, self.resolution, self.options.smoothness * 1e-4)
        self.optimiser.step("table", self.table, grad, 0.08 * 0.1 ** max(0.0, progress))

    @torch.no_grad()
    def prepare(self, views: Sequence[View]) -> None:
        """Close the cells that too few cameras see: whatever stood there could not be checked by another."""
        r = min(64, self.options.resolution)
        line = torch.linspace(-1.0, 1.0, r)
        z, y, x = torch.meshgrid(line, line, line, indexing="ij")
        cube = torch.stack([x, y, z], -1).view(-1, 3)
        points = cube * self.extent if self.bounded else expand_out(cube * CONTRACTED)
        seen = torch.zeros(len(points))
        for view in views:
            matrix = torch.from_numpy(view.matrix).float()
            local = (points - matrix[:3, 3]) @ matrix[:3, :3]
            ahead = -local[:, 2]
            u = view.fx * local[:, 0] / ahead + view.cx
            v = -view.fy * local[:, 1] / ahead + view.cy
            seen += (ahead > 0) & (u > 0) & (u < view.width) & (v > 0) & (v < view.height)
        needed = min(_WITNESSES, max(1, len(views) // 4))
        grown = torch.nn.functional.max_pool3d((seen >= needed).float().view(1, 1, r, r, r), 3, 1, 1)
        self.open_cells = grown.to(self.device)
        self._look_for_empty(warm=True)

    def adapt(self, progress: float, iteration: int, budget: Budget) -> None:
        """Go to a finer grid when it is time, and look again where nothing is."""
        level = max(i for i, (begin, _) in enumerate(_LEVELS) if progress >= begin)
        if level > self.level:
            self._grow(level)
        if iteration % 20 == 0:
            self._look_for_empty(warm=iteration < _WARM)

    def _grow(self, level: int) -> None:
        new = self._resolution_of(level)
        self.table = resample(self.table, self.resolution, new)
        self.level, self.resolution = level, new
        self.optimiser.forget("table")
        self._look_for_empty()

    @torch.no_grad()
    def _look_for_empty(self, warm: bool = False) -> None:
        r = self.resolution
        density = self._density_of(self.table[:, 0])
        step = 2.0 * self.extent / (self.count if self.bounded else self.count * 2 // 3)
        solid = (1.0 - torch.exp(-density * step) > _EMPTY).float().view(1, 1, r, r, r)
        near = torch.nn.functional.max_pool3d(solid, 3, 1, 1).view(-1) > 0
        if warm:
            # nothing is told yet: look everywhere, through everything
            near, density = torch.ones_like(near), torch.zeros_like(density)
        if self.open_cells is not None:
            size = (r, r, r)
            near &= torch.nn.functional.interpolate(self.open_cells, size=size).view(-1) > 0
        self.occupied = torch.where(near, density, torch.full_like(density, -1.0))

    # --- checkpoint ----------------------------------------------------------------------------------

    def describe(self) -> str:
        return f"a grid of {self.resolution} cells a side"

    def state(self) -> dict[str, Tensor]:
        found = {"table": self.table, **self.optimiser.state()}
        for name, value in (("occupied", self.occupied), ("open_cells", self.open_cells)):
            if value is not None:
                found[name] = value
        return found

    def facts(self) -> dict[str, Any]:
        """What a checkpoint needs beside its tensors."""
        return {"level": self.level, "resolution": self.resolution, **self.optimiser.facts()}

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.level, self.resolution = int(facts["level"]), int(facts["resolution"])
        self.table = tensors["table"].to(self.device)
        for name in ("occupied", "open_cells"):
            value = tensors.get(name)
            setattr(self, name, None if value is None else value.to(self.device))
        self.optimiser.load(tensors, facts, self.device)
