"""3D Gaussians by a small rasteriser in plain torch: for tests and for machines without CUDA.

Projection and compositing are those of Kerbl 2023 (after Zwicker 2001); Gaussians that die are moved to live
ones and new ones are added up to a cap as in 3DGS-MCMC (Kheradmand 2024). It is a hundred times slower
than the CUDA one and says so in everything that it makes (form ``torch``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from jobs.nerf.methods.base import Adam, Budget, Field, Options
from jobs.nerf.methods.compositing import SH, harmonics
from jobs.nerf.rendering import Look, on_background
from jobs.nerf.scene import Scene, View

if TYPE_CHECKING:
    from jobs.nerf.methods.rays import Pictures

Tensor = torch.Tensor
TILE: Final = 16
BLUR: Final = 0.3
"""Variance in square pixels that is added to every splat, so that none falls between pixels."""
NEAR: Final = 0.05
_OPAQUE: Final = 0.99
_FAINT: Final = 1.0 / 255.0
_DEAD: Final = 0.005
_GROW: Final = 1.08
_EVERY: Final = 50
"""Iterations between two rounds of moving and adding."""
_UNTIL: Final = 0.75
RATES: Final = {
    "means": 2e-3, "scales": 1.5e-2, "quats": 3e-3, "opacities": 4e-2, "sh0": 1.2e-2, "shN": 6e-4,
}  # fmt: skip
NAMES: Final = tuple(RATES)


def neighbours(places: Tensor, at_once: int = 2**27) -> Tensor:
    """Mean distance (n) of each place to its three nearest others, in pieces of ``at_once`` distances."""
    found = []
    for part in torch.split(places, max(1, at_once // max(1, len(places)))):
        distances = torch.cdist(part, places, compute_mode="donot_use_mm_for_euclid_dist")
        found.append(distances.topk(min(4, len(places)), largest=False).values[:, 1:].mean(1))
    return torch.cat(found)


def rotations(quats: Tensor) -> Tensor:
    """Rotation matrices (n, 3, 3) of quaternions (n, 4), w first, of any length."""
    w, x, y, z = (quats / quats.norm(dim=-1, keepdim=True).clamp_min(1e-12)).unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).view(-1, 3, 3)


def project(means: Tensor, quats: Tensor, scales: Tensor, view: View) -> tuple[Tensor, Tensor, Tensor]:
    """Centres in pixels (n, 2), inverse covariances (n, 3: xx, xy, yy) and depths (n) of Gaussians.

    ``scales`` are standard deviations (n, 3). The projection is linear around each centre.
    """
    matrix = torch.from_numpy(view.matrix).to(means)
    local = (means - matrix[:3, 3]) @ matrix[:3, :3]
    # x right, y down, z ahead
    local = local * local.new_tensor([1.0, -1.0, -1.0])
    x, y = local[:, 0], local[:, 1]
    z = local[:, 2].clamp_min(NEAR)
    centres = torch.stack([view.fx * x / z + view.cx, view.fy * y / z + view.cy], -1)
    # a splat far outside the picture would be stretched without end
    wide, tall = 1.3 * view.width / view.fx, 1.3 * view.height / view.fy
    tx, ty = z * (x / z).clamp(-wide, wide), z * (y / z).clamp(-tall, tall)
    zero = torch.zeros_like(z)
    jacobian = torch.stack(
        [
            torch.stack([view.fx / z, zero, -view.fx * tx / (z * z)], -1),
            torch.stack([zero, view.fy / z, -view.fy * ty / (z * z)], -1),
        ],
        -2,
    )
    turn = matrix[:3, :3].T * local.new_tensor([[1.0], [-1.0], [-1.0]])
    shape = jacobian @ turn @ rotations(quats) * scales[:, None, :]
    covariance = shape @ shape.transpose(1, 2)
    a, b, c = covariance[:, 0, 0] + BLUR, covariance[:, 0, 1], covariance[:, 1, 1] + BLUR
    determinant = (a * c - b * b).clamp_min(1e-12)
    return centres, torch.stack([c, -b, a], -1) / determinant[:, None], local[:, 2]


def rasterise(
    centres: Tensor, conics: Tensor, depths: Tensor, opacities: Tensor, values: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Blend splats front to back: values (height, width, c) and opacity (height, width).

    ``values`` (n, c) are blended. Each tile of 16x16 pixels looks at the splats that reach it, in order of
    depth; a splat reaches as far as its opacity stays above 1/255. Differentiable in all but ``depths``.
    """
    width, height = size
    with torch.no_grad():
        determinant = (conics[:, 0] * conics[:, 2] - conics[:, 1] ** 2).clamp_min(1e-12)
        power = 2.0 * torch.log((opacities / _FAINT).clamp_min(1.0))
        reach_x = (power * conics[:, 2] / determinant).sqrt()
        reach_y = (power * conics[:, 0] / determinant).sqrt()
        seen = (depths > NEAR) & (power > 0) & torch.isfinite(reach_x + reach_y)
        order = torch.argsort(torch.where(seen, depths, torch.full_like(depths, math.inf)), stable=True)
        order = order[: int(seen.sum())]
        left, right = centres[order, 0] - reach_x[order], centres[order, 0] + reach_x[order]
        top, bottom = centres[order, 1] - reach_y[order], centres[order, 1] + reach_y[order]
    rows = []
    for y0 in range(0, height, TILE):
        y1 = min(y0 + TILE, height)
        in_row = (bottom > y0) & (top < y1)
        tiles = []
        for x0 in range(0, width, TILE):
            x1 = min(x0 + TILE, width)
            which = order[in_row & (right > x0) & (left < x1)]
            tiles.append(_tile(which, centres, conics, opacities, values, (x0, y0, x1, y1)))
        rows.append(torch.cat(tiles, 1))
    picture = torch.cat(rows, 0)
    return picture[..., :-1], picture[..., -1]


def _tile(
    which: Tensor, centres: Tensor, conics: Tensor, opacities: Tensor, values: Tensor,
    box: tuple[int, int, int, int],
) -> Tensor:  # fmt: skip
    x0, y0, x1, y1 = box
    if len(which) == 0:
        return values.new_zeros(y1 - y0, x1 - x0, values.shape[1] + 1)
    x = torch.arange(x0, x1, device=values.device, dtype=values.dtype) + 0.5
    y = torch.arange(y0, y1, device=values.device, dtype=values.dtype) + 0.5
    centre, conic = centres[which], conics[which]
    dx, dy = x - centre[:, 0:1], y - centre[:, 1:2]
    power = (
        0.5 * conic[:, 0:1, None] * dx[:, None, :] ** 2
        + 0.5 * conic[:, 2:3, None] * dy[:, :, None] ** 2
        + conic[:, 1:2, None] * dx[:, None, :] * dy[:, :, None]
    )
    alpha = (opacities[which][:, None, None] * torch.exp(-power)).clamp_max(_OPAQUE)
    alpha = torch.where(alpha < _FAINT, torch.zeros_like(alpha), alpha)
    through = torch.cumprod(1.0 - alpha, 0)
    before = torch.cat([torch.ones_like(through[:1]), through[:-1]], 0)
    weights = (alpha * before).reshape(len(which), -1)
    colours = torch.cat([values[which], torch.ones_like(values[which][:, :1])], -1)
    return (weights.T @ colours).view(y1 - y0, x1 - x0, -1)


class Splats(Field):
    """Gaussians: places, logarithms of scales, quaternions, opacities before the sigmoid, harmonics."""

    name = "splat"
    form = "torch"
    version = 1

    def __init__(self, options: Options, bounded: bool, extent: float, device: torch.device) -> None:
        super().__init__(options, bounded, extent, device)
        self.degree = options.sh_degree
        self.values: dict[str, Tensor] = {}
        self.optimiser = Adam(0.9, 0.999, 1e-15)

    # --- where to start from -------------------------------------------------------------------------

    def begin(self, scene: Scene, pictures: Pictures) -> None:
        """From sparse points where there are enough, else spread through the ball."""
        drawn = torch.Generator().manual_seed(self.options.seed + 1)
        count = min(self.options.cap, 1500)
        inside = scene.points[np.linalg.norm(scene.points[:, :3], axis=1) < 4.0] if len(scene.points) else []
        if len(inside) >= 100:
            chosen = torch.from_numpy(np.asarray(inside)).float()
            chosen = chosen[torch.randperm(len(chosen), generator=drawn)[: self.options.cap]]
            places, colours = chosen[:, :3], chosen[:, 3:]
        else:
            spread = torch.randn(count, 3, generator=drawn)
            length = torch.rand(count, 1, generator=drawn) ** (1 / 3)
            places = spread / spread.norm(dim=-1, keepdim=True) * length * min(self.extent, 1.0)
            colours = torch.full((count, 3), 0.5)
        self.values = self.started(places, colours, size=0.7, opacity=-2.0)

    def started(self, places: Tensor, colours: Tensor, *, size: float, opacity: float) -> dict[str, Tensor]:
        """Gaussians at ``places``, ``size`` times as big as their neighbours are far, of ``opacity`` (a
        logit).
        """
        drawn = torch.Generator().manual_seed(self.options.seed + 4)
        near = neighbours(places).clamp(1e-4, 0.3)
        count = len(places)
        values = {
            "means": places, "scales": torch.log(near * size)[:, None].repeat(1, 3),
            "quats": torch.randn(count, 4, generator=drawn), "opacities": torch.full((count,), opacity),
            "sh0": (colours - 0.5)[:, None, :] / SH[0],
            "shN": torch.zeros(count, (self.degree + 1) ** 2 - 1, 3),
        }  # fmt: skip
        return {name: value.float().contiguous().to(self.device) for name, value in values.items()}

    # --- looking -------------------------------------------------------------------------------------

    def shaded(self, view: View) -> Tensor:
        """Colours (n, 3) as seen from the camera, not under 0."""
        values = self.values
        origin = torch.from_numpy(view.matrix[:3, 3]).to(values["means"])
        towards = torch.nn.functional.normalize(values["means"] - origin, dim=-1)
        coefficients = torch.cat([values["sh0"], values["shN"]], 1)
        basis = harmonics(towards, self.degree)
        return ((basis[..., None] * coefficients).sum(1) + 0.5).clamp_min(0.0)

    def drawn(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Premultiplied colour, opacity and depth (expected, where opaque) of a view."""
        values = self.values
        centres, conics, depths = project(values["means"], values["quats"], torch.exp(values["scales"]), view)
        shown = torch.cat([self.shaded(view), depths[:, None]], -1)
        blended, opacity = rasterise(
            centres, conics, depths, torch.sigmoid(values["opacities"]), shown, (view.width, view.height)
        )
        return blended[..., :3], opacity, blended[..., 3] / opacity.clamp_min(1e-6)

    @torch.no_grad()
    def look_at(self, view: View, check: Callable[[], None]) -> tuple[Tensor, Tensor, Tensor]:
        check()
        return self.drawn(view)

    def picture(self, view: View, look: Look, check: Callable[[], None]) -> Any:
        return on_background(self.render(view, check), look)

    @torch.no_grad()
    def score(self, pictures: Pictures, index: Tensor, look: Look) -> float:
        total, count = 0.0, 0
        for number, view in enumerate(pictures.views):
            target = target_of(pictures, number, look.shown)
            colour, opacity, _ = self.drawn(view)
            made = (colour + (1.0 - opacity[..., None]) * look.shown).clamp(0, 1)
            mask = pictures.mask(number)
            made = left_by_masks(pictures, number, made, target)
            total += float(((made - target) ** 2).mean(-1).double().sum())
            count += view.width * view.height if mask is None else int(mask.sum())
        return float(-10.0 * math.log10(max(total / max(count, 1), 1e-10)))

    # --- training ------------------------------------------------------------------------------------

    def iterate(
        self, pictures: Pictures, look: Look, drawn: torch.Generator, at: Any, progress: float, budget: Budget
    ) -> tuple[Tensor, int]:
        number = int(torch.randint(0, len(pictures.views), (1,), generator=drawn))
        behind = look.behind(1, drawn)[0]
        target = target_of(pictures, number, behind.detach())
        others = look.wanted()
        for value in (*self.values.values(), *others):
            value.requires_grad_(True)
        colour, opacity, _ = self.drawn(pictures.views[number])
        made = colour + (1.0 - opacity[..., None]) * (look.colour if look.background == "learned" else behind)
        picture = torch.full((1,), number, device=self.device)
        made = look.exposed(made.view(-1, 3), picture.expand(made.shape[0] * made.shape[1])).view_as(made)
        made = left_by_masks(pictures, number, made, target)
        error = ((made - target) ** 2).mean()
        values = self.values
        small = 0.01 * torch.sigmoid(values["opacities"]).mean() + 0.01 * torch.exp(values["scales"]).mean()
        loss = 0.8 * (made - target).abs().mean() + error + 0.1 * small
        wanted = [*values.values(), *others]
        grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        for value in wanted:
            value.requires_grad_(False)
        with torch.no_grad():
            for name, grad in zip(values, grads, strict=False):
                rate = RATES[name] * (0.05**progress if name == "means" else 0.3**progress)
                if grad is not None and values[name].numel():
                    self.optimiser.step(name, values[name], grad.contiguous(), rate)
            look.learn(list(grads[len(values) :]))
            self._shake(drawn, progress)
            if at.iteration % _EVERY == _EVERY - 1 and progress < _UNTIL:
                self._renew(drawn)
        return error.detach(), 0

    def _shake(self, drawn: torch.Generator, progress: float) -> None:
        """Noise along each Gaussian's own axes, the more the fainter it is (MCMC's exploration)."""
        values = self.values
        noise = torch.randn(values["means"].shape, generator=drawn).to(self.device)
        opacity = torch.sigmoid(values["opacities"])
        faint = torch.sigmoid(-100.0 * (opacity - 0.005))[:, None]
        axes = rotations(values["quats"]) * torch.exp(values["scales"])[:, None, :]
        values["means"] += (axes @ noise[..., None])[..., 0] * faint * (1.0 - progress) * 0.2

    def _renew(self, drawn: torch.Generator) -> None:
        """Move the dead to where the living are, and add some, without changing what is seen (MCMC)."""
        opacity = torch.sigmoid(self.values["opacities"])
        dead = (opacity <= _DEAD).nonzero()[:, 0]
        alive = (opacity > _DEAD).nonzero()[:, 0]
        if len(alive) == 0:
            return
        if len(dead):
            source = alive[self._draw(opacity[alive], len(dead), drawn)]
            self._split(source, dead)
        count = len(opacity)
        more = min(self.options.cap, int(count * _GROW)) - count
        if more > 0:
            opacity = torch.sigmoid(self.values["opacities"])
            source = self._draw(opacity, more, drawn)
            rows = torch.arange(count, device=self.device)
            self.values = {name: torch.cat([v, v[source]]) for name, v in self.values.items()}
            for name in self.values:
                self.optimiser.rearrange(name, rows, more)
            self._split(source, torch.arange(count, count + more, device=self.device))

    def _draw(self, weights: Tensor, count: int, drawn: torch.Generator) -> Tensor:
        found = torch.multinomial(weights.cpu().double(), count, replacement=True, generator=drawn)
        return found.to(self.device)

    def _split(self, source: Tensor, target: Tensor) -> None:
        """Put copies of ``source`` into ``target``; n copies in one place look as the one did (eq. 9)."""
        values = self.values
        copies = torch.bincount(source, minlength=len(values["opacities"]))[source] + 1
        opacity = torch.sigmoid(values["opacities"][source]).double()
        new = 1.0 - (1.0 - opacity) ** (1.0 / copies)
        spread = torch.zeros_like(new)
        for i in range(1, int(copies.max()) + 1):
            for k in range(i):
                term = math.comb(i - 1, k) * (-1) ** k / math.sqrt(k + 1)
                spread += torch.where(copies >= i, term * new ** (k + 1), torch.zeros_like(new))
        shrink = (opacity / spread.clamp_min(1e-12)).clamp(0.05, 1.0).float()
        new = new.clamp(_DEAD, 1.0 - 1e-6).float()
        for value in values.values():
            value[target] = value[source]
        logits, scales = torch.logit(new), values["scales"][source] + torch.log(shrink)[:, None]
        for rows in (source, target):
            values["opacities"][rows], values["scales"][rows] = logits, scales
        for name in values:
            self.optimiser.clear_rows(name, torch.cat([source, target]))

    # --- the rest ------------------------------------------------------------------------------------

    def density(self, points: Tensor) -> Tensor:
        """A density whose surfaces lie where the splats are: opacity times the Gaussian, summed."""
        values = self.values
        axes = rotations(values["quats"]) / torch.exp(values["scales"])[:, None, :].clamp_min(1e-4)
        opacity = torch.sigmoid(values["opacities"])
        total = torch.zeros(len(points), device=points.device)
        for part in torch.split(torch.arange(len(opacity), device=points.device), 256):
            apart = points[:, None] - values["means"][part]
            away = torch.einsum("pni,nij->pnj", apart, axes[part]).square().sum(-1)
            total += (opacity[part] * torch.exp(-0.5 * away)).sum(-1)
        return total * 20.0

    def albedo(self, points: Tensor) -> Tensor:
        """Colours of the nearest Gaussians, by weight."""
        values = self.values
        colours = (values["sh0"][:, 0] * SH[0] + 0.5).clamp(0, 1)
        found = []
        for part in torch.split(points, 1024):
            near = torch.cdist(part, values["means"]).topk(min(4, len(colours)), largest=False)
            weights = torch.softmax(-near.values * 20.0, -1)
            found.append((weights[..., None] * colours[near.indices]).sum(1))
        return torch.cat(found) if found else points

    def describe(self) -> str:
        return f"{len(self.values.get('opacities', ())):,} Gaussians (torch rasteriser for CPUs)"

    def state(self) -> dict[str, Tensor]:
        return {**self.values, **self.optimiser.state()}

    def facts(self) -> dict[str, Any]:
        return {"degree": self.degree, **self.optimiser.facts()}

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.degree = int(facts["degree"])
        self.values = {name: tensors[name].to(self.device) for name in NAMES}
        self.optimiser.load(tensors, facts, self.device)


def left_by_masks(pictures: Pictures, number: int, made: Tensor, target: Tensor) -> Tensor:
    """What was drawn, with the picture itself where its mask is black: nothing is learnt or judged there."""
    mask = pictures.mask(number)
    return made if mask is None else torch.where(mask, made, target)


def target_of(pictures: Pictures, number: int, behind: Tensor) -> Tensor:
    """A picture (height, width, 3) on the background ``behind``."""
    found = pictures.whole(number)
    alpha = found[..., 3:]
    return found[..., :3] * alpha + behind * (1.0 - alpha)
