"""A radiance field as a multi-resolution hash grid with two small networks (after Instant-NGP, Mueller 2022).

Plain torch, on any device; where nerfacc is installed its CUDA kernels do the compositing. Cells that are
empty are skipped by an occupancy grid.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from jobs.nerf.methods.base import Adam, Budget, Lit, Options
from jobs.nerf.methods.compositing import composite, harmonics
from jobs.nerf.methods.rays import contract, spacing
from jobs.nerf.methods.volume import VolumeField
from jobs.nerf.scene import CONTRACTED, View

Tensor = torch.Tensor
LEVELS: Final = 16
FEATURES: Final = 2
COARSEST: Final = 16
FINEST: Final = 2048
HIDDEN: Final = 64
GEOMETRY: Final = 15
_PRIMES: Final = (1, 2_654_435_761, 805_459_861)
_OCCUPANCY: Final = {"cuda": 128, "cpu": 40}
"""Cells a side of the occupancy grid: all are looked at now and then, which a CPU feels."""
_EMPTY: Final = 0.01
_OPAQUE: Final = 7.0
_RATE: Final = 1e-2


class HashGrid(VolumeField):
    """Hash-encoded density and colour."""

    name = "nerf"
    form = "hash"
    version = 1

    def __init__(self, options: Options, bounded: bool, extent: float, device: torch.device) -> None:
        super().__init__(options, bounded, extent, device)
        self.count = max(options.samples, 256 if device.type == "cuda" else options.samples)
        self.rows = 2**options.hash_log2
        growth = math.exp(math.log(FINEST / COARSEST) / (LEVELS - 1))
        self.resolutions = [math.floor(COARSEST * growth**level) for level in range(LEVELS)]
        drawn = torch.Generator().manual_seed(options.seed + 2)
        self.values: dict[str, Tensor] = {
            "table": (torch.rand(LEVELS * self.rows, FEATURES, generator=drawn) * 2 - 1) * 1e-4
        }
        shapes = {
            "w1": (LEVELS * FEATURES, HIDDEN), "w2": (HIDDEN, 1 + GEOMETRY),
            "c1": (GEOMETRY + 16, HIDDEN), "c2": (HIDDEN, HIDDEN), "c3": (HIDDEN, 3),
        }  # fmt: skip
        for name, (fan_in, fan_out) in shapes.items():
            bound = math.sqrt(6.0 / fan_in)
            self.values[name] = (torch.rand(fan_in, fan_out, generator=drawn) * 2 - 1) * bound
        self.values = {name: value.to(device) for name, value in self.values.items()}
        self.side = _OCCUPANCY[device.type]
        self.seen = torch.full((self.side**3,), 1.0, device=device)
        self.warm = True
        self.drawn = torch.Generator().manual_seed(options.seed + 3)
        self.optimiser = Adam(0.9, 0.99, 1e-15)
        self.accelerated = device.type == "cuda" and importlib.util.find_spec("nerfacc") is not None

    # --- the field -----------------------------------------------------------------------------------

    def encode(self, cube: Tensor) -> Tensor:
        """Features (n, levels * 2) at points in [-1, 1]^3."""
        unit = (cube * 0.5 + 0.5).clamp(0.0, 1.0)
        found = []
        for level, resolution in enumerate(self.resolutions):
            scaled = unit * resolution
            low = scaled.floor()
            part = scaled - low
            cell = low.long()
            total: Tensor | None = None
            for corner in range(8):
                offset = torch.tensor([corner & 1, corner >> 1 & 1, corner >> 2 & 1], device=cube.device)
                weight = torch.where(offset.bool(), part, 1.0 - part).prod(-1, keepdim=True)
                rows = self._rows(cell + offset, resolution) + level * self.rows
                value = weight * self.values["table"][rows]
                total = value if total is None else total + value
            assert total is not None
            found.append(total)
        return torch.cat(found, -1)

    def _rows(self, cell: Tensor, resolution: int) -> Tensor:
        if (resolution + 2) ** 3 <= self.rows:
            side = resolution + 2
            return (cell[:, 2] * side + cell[:, 1]) * side + cell[:, 0]
        mixed = (cell[:, 0] * _PRIMES[0]) ^ (cell[:, 1] * _PRIMES[1]) ^ (cell[:, 2] * _PRIMES[2])
        return torch.bitwise_and(mixed, self.rows - 1)

    def _density(self, cube: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.relu(self.encode(cube) @ self.values["w1"]) @ self.values["w2"]
        return torch.exp((hidden[:, 0] - 1.0).clamp(-15.0, 12.0)), hidden[:, 1:]

    def lit(
        self, origins: Tensor, directions: Tensor, jitter: Tensor | None, *, count: int | None = None
    ) -> Lit:
        """Look along rays; see :meth:`VolumeField.lit`."""
        edges, _, _ = spacing(
            origins, directions, bounded=self.bounded, extent=self.extent, count=count or self.count
        )
        lengths = edges[:, 1:] - edges[:, :-1]
        middles = edges[:, :-1] + lengths * (0.5 if jitter is None else jitter)
        with torch.no_grad():
            points = origins[:, None] + middles[..., None] * directions[:, None]
            cube = self._to_cube(points.view(-1, 3))
            which = self._worth_looking(cube, lengths)
            cube = cube[which]
        density, geometry = self._density(cube)
        rays = which // lengths.shape[1]
        shape = torch.cat([geometry, harmonics(directions, 3)[rays]], -1)
        hidden = torch.relu(torch.relu(shape @ self.values["c1"]) @ self.values["c2"])
        colours = torch.sigmoid(hidden @ self.values["c3"])
        if self.accelerated:
            return self._packed(edges, middles, which, rays, density, colours, len(origins))
        optical = torch.zeros(lengths.numel(), device=density.device, dtype=density.dtype)
        optical = optical.index_copy(0, which, density * lengths.reshape(-1)[which]).view_as(lengths)
        found = composite(optical, which, colours, middles)
        weights = found.weights.reshape(-1)[which]
        return Lit(found.colour, found.opacity, found.distance, len(which), weights, colours, rays)

    def _packed(
        self, edges: Tensor, middles: Tensor, which: Tensor, rays: Tensor, density: Tensor, colours: Tensor,
        count: int,
    ) -> Lit:  # fmt: skip
        """The same by nerfacc's kernels, which never spread what was skipped."""
        import nerfacc

        kernels: Any = nerfacc
        starts, ends = edges[:, :-1].reshape(-1)[which], edges[:, 1:].reshape(-1)[which]
        weights, _, _ = kernels.render_weight_from_density(
            starts, ends, density, ray_indices=rays, n_rays=count
        )
        colour = kernels.accumulate_along_rays(weights, colours, rays, count)
        opacity = kernels.accumulate_along_rays(weights, None, rays, count)[:, 0]
        along = middles.reshape(-1)[which][:, None]
        distance = kernels.accumulate_along_rays(weights, along, rays, count)[:, 0]
        return Lit(colour, opacity, distance / opacity.clamp_min(1e-6), len(which), weights, colours, rays)

    def _to_cube(self, points: Tensor) -> Tensor:
        return points / self.extent if self.bounded else contract(points) / CONTRACTED

    def _worth_looking(self, cube: Tensor, lengths: Tensor) -> Tensor:
        r = self.side
        cell = ((cube.clamp(-1, 1) + 1.0) * (0.5 * (r - 1)) + 0.5).long()
        found = self.seen[(cell[:, 2] * r + cell[:, 1]) * r + cell[:, 0]].view_as(lengths)
        worth = found >= 0.0
        if not self.warm:
            optical = found.clamp_min(0.0) * lengths
            worth &= torch.cumsum(optical, -1) - optical < _OPAQUE
        if self.bounded:
            worth &= (cube.abs() <= 1.0).all(-1).view_as(lengths)
        return worth.view(-1).nonzero()[:, 0]

    @torch.no_grad()
    def density(self, points: Tensor) -> Tensor:
        """Density at points of normalised space."""
        cube = self._to_cube(points)
        return self._density(cube)[0] * (cube.abs() <= 1.0).all(-1)

    @torch.no_grad()
    def albedo(self, points: Tensor) -> Tensor:
        """Colour at points, seen from above."""
        _, geometry = self._density(self._to_cube(points))
        down = torch.tensor([[0.0, 0.0, -1.0]], device=points.device).expand(len(points), 3)
        hidden = torch.relu(torch.cat([geometry, harmonics(down, 3)], -1) @ self.values["c1"])
        return torch.sigmoid(torch.relu(hidden @ self.values["c2"]) @ self.values["c3"])

    # --- training ------------------------------------------------------------------------------------

    def prepare(self, views: Sequence[View]) -> None:
        """Nothing: the occupancy grid begins full."""

    def parameters(self) -> dict[str, Tensor]:
        return dict(self.values)

    def learn(self, grads: Mapping[str, Tensor], progress: float, iteration: int) -> None:
        warm = min(1.0, (iteration + 1) / 100)
        for name, grad in grads.items():
            self.optimiser.step(name, self.values[name], grad, _RATE * warm * 0.03**progress)

    def adapt(self, progress: float, iteration: int, budget: Budget) -> None:
        """Look again, now and then, at where nothing is: all cells at first, later a quarter of them."""
        if iteration and iteration % 16 == 0:
            self._look_for_empty(iteration < 256)
            self.warm = iteration < 256

    @torch.no_grad()
    def _look_for_empty(self, all_cells: bool) -> None:
        r, total = self.side, self.side**3
        if all_cells:
            cells = torch.arange(total, device=self.device)
        else:
            cells = torch.randint(0, total, (total // 4,), generator=self.drawn).to(self.device)
        z, y, x = cells // (r * r), cells // r % r, cells % r
        jitter = torch.rand(len(cells), 3, generator=self.drawn).to(self.device) - 0.5
        cube = (torch.stack([x, y, z], -1) + jitter) / (0.5 * (r - 1)) - 1.0
        values = torch.cat([self._density(part)[0] for part in torch.split(cube, 2**18)])
        self.seen = self.seen.abs() * 0.95 if all_cells else self.seen.clone()
        self.seen[cells] = torch.maximum(self.seen[cells].abs() * 0.95, values)
        step = 2.0 * self.extent / self.count
        limit = min(_EMPTY / step, float(self.seen.abs().mean()))
        self.seen = torch.where(self.seen.abs() > limit, self.seen.abs(), -self.seen.abs())

    def describe(self) -> str:
        kernels = "nerfacc" if self.accelerated else "torch"
        return f"a hash grid of {LEVELS} levels by 2^{self.options.hash_log2} rows ({kernels})"

    # --- checkpoint ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        return {
            **self.values, "seen": self.seen, "dice": self.drawn.get_state(), **self.optimiser.state()
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        return {"warm": self.warm, "hash_log2": self.options.hash_log2, **self.optimiser.facts()}

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if int(facts["hash_log2"]) != self.options.hash_log2:
            raise RuntimeError(f"its hash tables have 2^{facts['hash_log2']} rows")
        self.values = {name: tensors[name].to(self.device) for name in self.values}
        self.seen, self.warm = tensors["seen"].to(self.device), bool(facts["warm"])
        self.side = round(len(self.seen) ** (1 / 3))
        self.drawn.set_state(tensors["dice"])
        self.optimiser.load(tensors, facts, self.device)
