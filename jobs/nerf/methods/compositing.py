"""Volume rendering along rays (Max 1995; Mildenhall 2020): densities and colours to a picture."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(slots=True)
class Composite:
    """What rays see: colour (n, 3), opacity, expected distance along the ray (of what is opaque), weights."""

    colour: Tensor
    opacity: Tensor
    distance: Tensor
    weights: Tensor


def weights_of(optical: Tensor) -> Tensor:
    """Weights (rays, samples) of samples whose density times length is ``optical`` (rays, samples)."""
    before = torch.cumsum(optical, -1) - optical
    return torch.exp(-before) * (1.0 - torch.exp(-optical))


def composite(optical: Tensor, which: Tensor, colours: Tensor, middles: Tensor) -> Composite:
    """Blend the samples that were looked at.

    ``optical``: (rays, samples), zero where a sample was skipped; ``which``: flat indices into it of the
    ``colours`` (k, 3); ``middles``: (rays, samples) distances.
    """
    rays, count = optical.shape
    weights = weights_of(optical)
    spread = torch.zeros(rays * count, 3, dtype=colours.dtype, device=colours.device)
    spread = spread.index_copy(0, which, colours).view(rays, count, 3)
    colour = (weights[..., None] * spread).sum(1)
    opacity = weights.sum(-1)
    distance = (weights * middles).sum(-1) / opacity.clamp_min(1e-6)
    return Composite(colour, opacity, distance, weights)


def through(optical: Tensor, rays: Tensor) -> Tensor:
    """Share of the light (k) that comes through to each sample of packed rays.

    ``optical``: density times length (k); ``rays``: the ray of each, ascending. The sum runs over all rays in
    float64, so that what is taken off again leaves nothing of the others.
    """
    before = torch.cumsum(optical.double(), 0) - optical.double()
    first = torch.searchsorted(rays, rays)
    return torch.exp(before[first] - before).to(optical.dtype)


def gathered(weights: Tensor, rays: Tensor, colours: Tensor, along: Tensor, count: int) -> Composite:
    """:func:`composite` for weighed samples (k) that lie one after another, ray by ray: nothing is spread
    out.

    ``rays``: the ray of each; ``colours`` (k, 3); ``along``: distances (k); ``count``: how many rays there
    are.
    """
    columns = torch.cat([colours, torch.ones_like(along)[:, None], along[:, None]], -1)
    blended = colours.new_zeros(count, 5).index_add(0, rays, weights[:, None] * columns)
    opacity = blended[:, 3]
    return Composite(blended[:, :3], opacity, blended[:, 4] / opacity.clamp_min(1e-6), weights)


# Real spherical harmonics up to degree 2, as splat files use them.
SH = (
    0.28209479177387814,
    0.4886025119029199,
    (1.0925484305920792, -1.0925484305920792, 0.31539156525252005, -1.0925484305920792, 0.5462742152960396),
    (
        -0.5900435899266435, 2.890611442640554, -0.4570457994644658, 0.3731763325901154,
        -0.4570457994644658, 1.445305721320277, -0.5900435899266435,
    ),
)  # fmt: skip


def harmonics(directions: Tensor, degree: int) -> Tensor:
    """Real spherical harmonics of unit directions (n, 3): (n, (degree + 1) ** 2), degree 0 to 3."""
    x, y, z = directions.unbind(-1)
    terms = [torch.full_like(x, SH[0])]
    if degree >= 1:
        terms += [-SH[1] * y, SH[1] * z, -SH[1] * x]
    if degree >= 2:
        xx, yy, zz = x * x, y * y, z * z
        c = SH[2]
        terms += [
            c[0] * x * y, c[1] * y * z, c[2] * (2 * zz - xx - yy), c[3] * x * z, c[4] * (xx - yy),
        ]  # fmt: skip
    if degree >= 3:
        d = SH[3]
        terms += [
            d[0] * y * (3 * xx - yy), d[1] * x * y * z, d[2] * y * (4 * zz - xx - yy),
            d[3] * z * (2 * zz - 3 * xx - 3 * yy), d[4] * x * (4 * zz - xx - yy), d[5] * z * (xx - yy),
            d[6] * x * (xx - 3 * yy),
        ]  # fmt: skip
    return torch.stack(terms, -1)
