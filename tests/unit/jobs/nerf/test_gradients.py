"""Gradients against finite differences in float64: the grid, compositing, the splat rasteriser."""

from __future__ import annotations

import numpy as np
import torch

from jobs.nerf.methods.compositing import composite, harmonics, weights_of
from jobs.nerf.methods.grid import add_smoothness, lookup, resample
from jobs.nerf.methods.splat import project, rasterise
from jobs.nerf.scene import View
from tests.unit.jobs.nerf.scenes import look_at

D = torch.float64


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, dtype=D, generator=torch.Generator().manual_seed(seed))


def test_the_grid_interpolates_a_linear_field_exactly_and_its_gradient_is_right() -> None:
    r = 5
    line = torch.linspace(-1, 1, r, dtype=D)
    z, y, x = torch.meshgrid(line, line, line, indexing="ij")
    table = torch.stack([2 * x - y + 0.5 * z, x * 0 + 3], -1).view(-1, 2)
    points = random(20, 3) * 2 - 1
    found = lookup(table, points, r)
    assert torch.allclose(found[:, 0], 2 * points[:, 0] - points[:, 1] + 0.5 * points[:, 2])
    assert torch.allclose(found[:, 1], torch.full((20,), 3.0, dtype=D))
    table = random(r**3, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: lookup(t, points, r), (table,))


def test_a_finer_grid_holds_the_same_field() -> None:
    r = 4
    line = torch.linspace(-1, 1, r, dtype=D)
    z, y, x = torch.meshgrid(line, line, line, indexing="ij")
    table = (x + 2 * y - z).reshape(-1, 1)
    points = random(30, 3) * 2 - 1
    grown = resample(table, r, 9)
    assert torch.allclose(lookup(grown, points, 9), lookup(table, points, r))


def test_smoothness_is_the_gradient_of_half_the_squared_differences() -> None:
    r = 4
    table = random(r**3, 2).requires_grad_()
    volume = table.view(r, r, r, 2)
    energy = sum((torch.diff(volume, dim=axis) ** 2).sum() / 2 for axis in range(3))
    (wanted,) = torch.autograd.grad(energy, table)
    grad = torch.zeros_like(table)
    add_smoothness(table.detach(), grad, r, 1.0)
    assert torch.allclose(grad, wanted)


def test_weights_are_those_of_a_homogeneous_medium() -> None:
    # optical depth 0.5 a sample: transmittance falls by exp(-0.5) each time
    weights = weights_of(torch.full((1, 3), 0.5, dtype=D))[0]
    step = 1 - np.exp(-0.5)
    assert np.allclose(weights.numpy(), [step, step * np.exp(-0.5), step * np.exp(-1.0)])


def test_compositing_has_the_right_gradient_where_samples_are_skipped() -> None:
    which = torch.tensor([0, 2, 3, 5])
    middles = torch.arange(6, dtype=D).view(2, 3) + 0.5

    def picture(density: torch.Tensor, colours: torch.Tensor) -> torch.Tensor:
        optical = torch.zeros(6, dtype=D).index_copy(0, which, density).view(2, 3)
        found = composite(optical, which, colours, middles)
        return torch.cat([found.colour.reshape(-1), found.opacity, found.distance])

    density, colours = random(4, seed=2).requires_grad_(), random(4, 3, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(picture, (density, colours))


def test_harmonics_are_orthonormal_over_the_sphere() -> None:
    count = 4000
    k = torch.arange(count, dtype=D) + 0.5
    z = 1 - 2 * k / count
    turn = k * np.pi * (3 - np.sqrt(5))
    flat = (1 - z * z).sqrt()
    basis = harmonics(torch.stack([flat * turn.cos(), flat * turn.sin(), z], -1), 3)
    gram = basis.T @ basis * (4 * np.pi / count)
    assert torch.allclose(gram, torch.eye(16, dtype=D), atol=2e-3)


def view() -> View:
    return View("v", 20, 12, 18.0, 18.0, 10.0, 6.0, look_at((3.0, 0.4, 0.8)))


def test_one_splat_lands_where_a_pinhole_puts_its_centre_with_its_peak() -> None:
    means = torch.tensor([[0.1, 0.2, -0.1]], dtype=D)
    centres, conics, depths = project(
        means, torch.tensor([[1.0, 0, 0, 0]], dtype=D), torch.full((1, 3), 0.1, dtype=D), view()
    )
    local = np.linalg.inv(view().matrix) @ [0.1, 0.2, -0.1, 1.0]
    wanted = [18 * local[0] / -local[2] + 10, -18 * local[1] / -local[2] + 6]
    assert np.allclose(centres[0].numpy(), wanted)
    assert np.isclose(float(depths[0]), -local[2])
    # an isotropic splat of deviation 0.1 at depth z has about (18 * 0.1 / z) ** 2 + blur in its variance
    variance = 1.0 / float(conics[0, 0])
    assert np.isclose(variance, (18 * 0.1 / -local[2]) ** 2 + 0.3, rtol=0.02)


def test_the_nearer_of_two_splats_covers_the_farther() -> None:
    centres = torch.tensor([[8.0, 8.0], [8.0, 8.0]], dtype=D)
    conics = torch.tensor([[0.05, 0, 0.05], [0.05, 0, 0.05]], dtype=D)
    colours = torch.eye(2, 3, dtype=D)
    for depths in ([1.0, 2.0], [2.0, 1.0]):
        picture, opacity = rasterise(
            centres, conics, torch.tensor(depths, dtype=D), torch.tensor([0.9, 0.8], dtype=D), colours,
            (16, 16),
        )  # fmt: skip
        first = 0 if depths[0] < depths[1] else 1
        # pixel (8, 8) has its centre at (8.5, 8.5): exponent 0.5 * 0.05 * (0.25 + 0.25)
        fall = np.exp(-0.5 * 0.05 * 0.5)
        front, back = (0.9 * fall, 0.8 * fall) if first == 0 else (0.8 * fall, 0.9 * fall)
        assert np.isclose(float(picture[8, 8, first]), front)
        assert np.isclose(float(picture[8, 8, 1 - first]), back * (1 - front))
        assert np.isclose(float(opacity[8, 8]), front + back * (1 - front))


def test_the_rasteriser_has_the_right_gradient_in_everything() -> None:
    count = 5
    inputs = [
        random(count, 3, seed=4) - 0.5, random(count, 4, seed=5) - 0.5,
        random(count, 3, seed=6) * 0.3 + 0.1, random(count, seed=7) * 0.5 + 0.3, random(count, 3, seed=8),
    ]  # fmt: skip
    for value in inputs:
        value.requires_grad_()

    def picture(*values: torch.Tensor) -> torch.Tensor:
        means, quats, scales, opacities, colours = values
        centres, conics, depths = project(means, quats, scales, view())
        made, opacity = rasterise(centres, conics, depths, opacities, colours, (20, 12))
        # away from the cut at 1/255, which is a step that no derivative shows
        return made[4:8, 6:14][opacity[4:8, 6:14] > 0.2]

    assert torch.autograd.gradcheck(picture, inputs, eps=1e-7, atol=1e-5)
