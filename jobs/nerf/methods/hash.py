"""A radiance field as a multi-resolution hash grid with two small networks (after Instant-NGP, Mueller 2022).

Runs on any device; on CUDA the table is read by a kernel of :mod:`jobs.nerf.methods.encoding_kernel`, and
nerfacc's kernels weigh the samples where ``farm node warm`` has built them. Cells that are empty are skipped
by an occupancy grid, and what is hidden before its colour is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from jobs.nerf.extensions import load_built
from jobs.nerf.methods.base import Adam, Budget, Lit, Options
from jobs.nerf.methods.compositing import gathered, harmonics, through
from jobs.nerf.methods.encoding import FEATURES, Levels, encode, has_triton
from jobs.nerf.methods.volume import Occupancy, Samples, VolumeField
from jobs.nerf.scene import View

Tensor = torch.Tensor
LEVELS: Final = 16
COARSEST: Final = 16
FINEST: Final = 2048
HIDDEN: Final = 64
GEOMETRY: Final = 15
_OCCUPANCY: Final = {"cuda": 128, "cpu": 40}
"""Cells a side of the occupancy grid: all are looked at now and then, which a CPU feels."""
_EMPTY: Final = 0.01
_HIDDEN: Final = 1e-4
"""Share of the light that must come through to a sample for it to be learnt from."""
_GLANCES: Final = 4
"""So many densities without gradient cost as much as one sample that is learnt from."""
_SAMPLES: Final = 512
"""Samples along a ray on CUDA, at least: about one for two pixels of a picture that shows the whole scene."""
_RATE: Final = 1e-2


class HashGrid(VolumeField):
    """Hash-encoded density and colour."""

    name = "nerf"
    form = "hash"
    version = 2
    # its networks share what they learn between samples: pulling single ones would only blur edges
    per_sample = 0.0

    def __init__(self, options: Options, bounded: bool, extent: float, device: torch.device) -> None:
        super().__init__(options, bounded, extent, device)
        self.count = max(options.samples, _SAMPLES) if device.type == "cuda" else options.samples
        growth = math.exp(math.log(FINEST / COARSEST) / (LEVELS - 1))
        resolutions = tuple(math.floor(COARSEST * growth**level) for level in range(LEVELS))
        self.levels = Levels(resolutions, 2**options.hash_log2)
        drawn = torch.Generator().manual_seed(options.seed + 2)
        self.values: dict[str, Tensor] = {
            "table": (torch.rand(LEVELS * self.levels.rows, FEATURES, generator=drawn) * 2 - 1) * 1e-4
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
        self.seen = torch.zeros(self.side**3, device=device)
        self.dice = torch.Generator(device).manual_seed(options.seed + 3)
        self.optimiser = Adam(0.9, 0.99, 1e-15)
        self.accelerated = device.type == "cuda" and load_built("nerfacc")

    # --- the field -----------------------------------------------------------------------------------

    def _density(self, cube: Tensor) -> tuple[Tensor, Tensor]:
        encoded = encode(self.values["table"], cube, self.levels)
        hidden = torch.relu(encoded @ self.values["w1"]) @ self.values["w2"]
        return torch.exp((hidden[:, 0] - 1.0).clamp(-15.0, 12.0)), hidden[:, 1:]

    def occupancy(self) -> Occupancy:
        # its cells are far coarser than the field: they tell where nothing is, not what is hidden
        return Occupancy(self.seen, self.side)

    def blend(self, samples: Samples) -> Lit:
        lengths = samples.lengths.reshape(-1)
        looked_at = len(samples.which) // _GLANCES
        with torch.no_grad():
            # what lies behind something opaque costs no gradient and no colour
            optical = self._density(samples.cube)[0] * lengths[samples.which]
            samples = samples.kept(through(optical, samples.rays) > _HIDDEN)
        density, geometry = self._density(samples.cube)
        shape = torch.cat([geometry, harmonics(samples.directions, 3)[samples.rays]], -1)
        hidden = torch.relu(torch.relu(shape @ self.values["c1"]) @ self.values["c2"])
        colours = torch.sigmoid(hidden @ self.values["c3"])
        weights = self._weights(density, samples, lengths[samples.which])
        along = samples.middles.reshape(-1)[samples.which]
        found = gathered(weights, samples.rays, colours, along, len(samples.directions))
        return Lit(
            found.colour,
            found.opacity,
            found.distance,
            max(looked_at, len(samples.which)),
            weights,
            colours,
            samples.rays,
        )

    def _weights(self, density: Tensor, samples: Samples, lengths: Tensor) -> Tensor:
        if not self.accelerated:
            optical = density * lengths
            return through(optical, samples.rays) * (1.0 - torch.exp(-optical))
        import nerfacc

        starts = samples.edges[:, :-1].reshape(-1)[samples.which]
        kernels: Any = nerfacc
        weights: Tensor = kernels.render_weight_from_density(
            starts, starts + lengths, density, ray_indices=samples.rays, n_rays=len(samples.directions)
        )[0]
        return weights

    @torch.no_grad()
    def density(self, points: Tensor) -> Tensor:
        """Density at points of normalised space."""
        cube = self.to_cube(points)
        return self._density(cube)[0] * (cube.abs() <= 1.0).all(-1)

    @torch.no_grad()
    def albedo(self, points: Tensor) -> Tensor:
        """Colour at points, seen from above."""
        _, geometry = self._density(self.to_cube(points))
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

    @torch.no_grad()
    def _look_for_empty(self, all_cells: bool) -> None:
        r, total = self.side, self.side**3
        if all_cells:
            cells = torch.arange(total, device=self.device)
        else:
            cells = torch.randint(0, total, (total // 4,), generator=self.dice, device=self.device)
        z, y, x = cells // (r * r), cells // r % r, cells % r
        jitter = torch.rand(len(cells), 3, generator=self.dice, device=self.device) - 0.5
        cube = (torch.stack([x, y, z], -1) + jitter) / (0.5 * (r - 1)) - 1.0
        values = torch.cat([self._density(part)[0] for part in torch.split(cube, 2**18)])
        self.seen = self.seen.abs() * 0.95 if all_cells else self.seen.clone()
        self.seen[cells] = torch.maximum(self.seen[cells].abs() * 0.95, values)
        step = 2.0 * self.extent / self.count
        limit = min(_EMPTY / step, float(self.seen.abs().mean()))
        self.seen = torch.where(self.seen.abs() > limit, self.seen.abs(), -self.seen.abs())

    def describe(self) -> str:
        kernels = "fused kernel" if self.device.type == "cuda" and has_triton() else "plain torch"
        kernels += ", nerfacc" if self.accelerated else ""
        return f"a hash grid of {LEVELS} levels by 2^{self.options.hash_log2} rows ({kernels})"

    # --- checkpoint ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        return {
            **self.values, "seen": self.seen, "dice": self.dice.get_state(), **self.optimiser.state()
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        return {"hash_log2": self.options.hash_log2, **self.optimiser.facts()}

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if int(facts["hash_log2"]) != self.options.hash_log2:
            raise RuntimeError(f"its hash tables have 2^{facts['hash_log2']} rows")
        self.values = {name: tensors[name].to(self.device) for name in self.values}
        self.seen = tensors["seen"].to(self.device)
        self.side = round(len(self.seen) ** (1 / 3))
        self.dice.set_state(tensors["dice"])
        self.optimiser.load(tensors, facts, self.device)
