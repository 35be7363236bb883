"""What runs on CUDA, as far as a CPU can show it: the loop around gsplat, packed rays, the hull."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from farm.errors import ParkRequested
from jobs.nerf import extensions
from jobs.nerf import views as views_module
from jobs.nerf.methods import structure
from jobs.nerf.methods.base import Budget, Options
from jobs.nerf.methods.compositing import composite, gathered, harmonics, through, weights_of
from jobs.nerf.methods.encoding import Levels, encode_plain
from jobs.nerf.methods.gsplat import RATES, CudaSplats
from jobs.nerf.methods.hull import inside_hull, seen_through
from jobs.nerf.methods.rays import Pictures
from jobs.nerf.methods.splat import neighbours, project, rasterise
from jobs.nerf.methods.structure import structural_similarity
from jobs.nerf.metrics import ssim
from jobs.nerf.rendering import Look
from jobs.nerf.scene import Scene, View
from jobs.nerf.spec import Spec
from jobs.nerf.training import Progress
from jobs.nerf.views import make_views
from tests.unit.jobs.nerf.scenes import FOCAL, SIZE, draw, ring

CPU = torch.device("cpu")
D = torch.float64


def pictures(count: int = 8) -> Pictures:
    """The three balls from a ring of cameras."""
    width, height = SIZE
    views = [
        View(f"v{i}", width, height, FOCAL, FOCAL, width / 2, height / 2, matrix)
        for i, matrix in enumerate(ring(count))
    ]
    pixels = [torch.from_numpy(draw(view.matrix)).view(-1, 4) for view in views]
    starts = [0, *np.cumsum([len(p) for p in pixels]).tolist()]
    matrices = torch.from_numpy(np.stack([view.matrix for view in views])).float()
    return Pictures(
        views, torch.cat(pixels), starts, torch.tensor(starts), torch.tensor([v.width for v in views]),
        torch.tensor([[1 / v.fx, 1 / v.fy, v.cx, v.cy] for v in views]), matrices[:, :3, :3].contiguous(),
        matrices[:, :3, 3].contiguous(),
    )  # fmt: skip


def drawn_by_us(
    means: Any, quats: Any, scales: Any, opacities: Any, colors: Any, viewmats: Any, Ks: Any, width: int,
    height: int, *, sh_degree: int, render_mode: str, packed: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """gsplat.rasterization as its documentation has it, by the small rasteriser: from OpenCV cameras."""
    matrix = np.linalg.inv(viewmats[0].numpy().astype(np.float64))
    matrix[:3, 1:3] *= -1.0
    lens = Ks[0].numpy()
    view = View("", width, height, lens[0, 0], lens[1, 1], lens[0, 2], lens[1, 2], matrix)
    centres, conics, depths = project(means, quats, scales, view)
    towards = torch.nn.functional.normalize(means - torch.from_numpy(matrix[:3, 3]).float(), dim=-1)
    basis = harmonics(towards, sh_degree)
    shown = ((basis[..., None] * colors[:, : basis.shape[1]]).sum(1) + 0.5).clamp_min(0.0)
    found, opacity = rasterise(
        centres, conics, depths, opacities, torch.cat([shown, depths[:, None]], -1), (width, height)
    )
    last = found[..., 3:] / opacity[..., None].clamp_min(1e-6)
    picture = torch.cat([found[..., :3], last], -1) if render_mode == "RGB+ED" else found[..., :3]
    return picture[None], opacity[None, ..., None], {}


class Steady:
    """In the place of the MCMC strategy: no Gaussian moves house."""

    def __init__(self, **settings: Any) -> None:
        assert settings["cap_max"] == 60
        self.calls: list[int] = []
        self.refine_stop_iter = settings["refine_stop_iter"]
        self.refinable: list[int] = []

    def initialize_state(self) -> dict[str, Any]:
        return {}

    def step_post_backward(
        self, params: Any, optimizers: Any, state: Any, step: int, info: Any, lr: float
    ) -> None:
        self.calls.append(step)
        if step < self.refine_stop_iter:
            self.refinable.append(step)


@pytest.fixture
def splats(monkeypatch: pytest.MonkeyPatch) -> Any:
    package, strategy = ModuleType("gsplat"), ModuleType("gsplat.strategy")
    package.__spec__ = ModuleSpec("gsplat", None)
    package.rasterization, strategy.MCMCStrategy = drawn_by_us, Steady  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gsplat", package)
    monkeypatch.setitem(sys.modules, "gsplat.strategy", strategy)
    monkeypatch.setattr(extensions, "require_built", lambda package: None)
    return lambda: CudaSplats(Options(sh_degree=1, cap=60), True, 1.2, CPU)


def test_the_loop_around_gsplat_learns_and_goes_on_from_a_checkpoint_with_the_same_bits(splats: Any) -> None:
    seen, scene = pictures(4), Scene((), np.eye(4), True)
    look = Look("black", len(seen.views), False, CPU)

    def train(field: CudaSplats, first: int, last: int) -> list[float]:
        dice = torch.Generator()
        return [
            float(field.iterate(seen, look, dice, Progress(iteration=i), i / 20, Budget(1))[0])
            for i in range(first, last)
        ]

    straight = splats()
    straight.begin(scene, seen)
    errors = train(straight, 0, 20)
    assert sum(errors[16:]) < 0.9 * sum(errors[:4])
    # all pictures in each round; noise to the end, no relocation in the last 15 percent
    assert sorted(straight._next(i, 4) for i in range(4, 8)) == list(range(4))
    assert straight._strategy.calls == list(range(20)) and straight._strategy.refinable == list(range(17))
    # every rate has come down by then: that of the means to a hundredth, the others to a tenth
    last = {name: optimiser.param_groups[0]["lr"] for name, optimiser in straight._optimisers.items()}
    share = 0.1 ** ((19 / 20 - 0.6) / 0.4)
    assert last == {
        name: pytest.approx(rate * (0.01**0.95 * straight.reach if name == "means" else share))
        for name, rate in RATES.items()
    }
    parked = splats()
    parked.begin(scene, seen)
    train(parked, 0, 9)
    resumed = splats()
    resumed.load(parked.state(), parked.facts())
    assert train(resumed, 9, 20) == errors[9:]
    wanted, found = straight.state(), resumed.state()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_packed_rays_blend_as_spread_ones_do_and_have_the_right_gradient() -> None:
    dice = torch.Generator().manual_seed(3)
    optical = torch.rand(4, 6, dtype=D, generator=dice) * 2
    which = (torch.rand(4, 6, generator=dice) > 0.4).view(-1).nonzero()[:, 0]
    spread = torch.zeros(24, dtype=D).index_copy(0, which, optical.view(-1)[which]).view(4, 6)
    colours = torch.rand(len(which), 3, dtype=D, generator=dice)
    middles = torch.rand(4, 6, dtype=D, generator=dice)
    rays = which // 6
    wanted = composite(spread, which, colours, middles)

    def packed(values: torch.Tensor, shades: torch.Tensor) -> torch.Tensor:
        weights = through(values, rays) * (1 - torch.exp(-values))
        found = gathered(weights, rays, shades, middles.view(-1)[which], 4)
        return torch.cat([found.colour, found.opacity[:, None], found.distance[:, None]], -1)

    values = optical.view(-1)[which]
    found = packed(values, colours)
    assert torch.allclose(found[:, :3], wanted.colour) and torch.allclose(found[:, 3], wanted.opacity)
    assert torch.allclose(found[:, 4], wanted.distance)
    assert torch.autograd.gradcheck(packed, (values.requires_grad_(), colours.requires_grad_()))


def test_light_through_one_ray_is_not_blurred_by_a_million_samples_of_others() -> None:
    # float32 sums over all samples would be off by whole units here
    optical = torch.full((1_000_003,), 40.0)
    optical[-3:] = torch.tensor([0.5, 0.25, 0.125])
    rays = torch.zeros(len(optical), dtype=torch.int64)
    rays[-3:] = 1
    found = through(optical, rays)[-3:]
    assert torch.allclose(found, torch.exp(-torch.tensor([0.0, 0.5, 0.75])))
    assert torch.allclose(found * (1 - torch.exp(-optical[-3:])), weights_of(optical[None, -3:])[0])


def test_the_hull_holds_the_balls_and_no_place_that_a_picture_sees_through() -> None:
    seen = pictures(24)
    dice = torch.Generator().manual_seed(0)
    places, colours = inside_hull(seen, 500, 1.2, dice)
    assert places.shape == colours.shape == (500, 3)
    assert not seen_through(seen, places)[0].any()
    middles = torch.tensor([[0.0, 0, 0], [0.6, 0.1, 0.2], [-0.3, -0.5, 0.3]])
    clear, shade = seen_through(seen, middles)
    assert not clear.any()
    # the ball in front is green, that behind blue, in most of the pictures that show their middles
    assert shade[1].argmax() == 1 and shade[2].argmax() == 2
    assert float((places.norm(dim=-1) < 1.0).float().mean()) > 0.95


def test_the_loss_of_structure_is_the_figure_of_the_report() -> None:
    dice = torch.Generator().manual_seed(1)
    a, b = (torch.rand(20, 27, 3, dtype=D, generator=dice) for _ in range(2))
    assert np.isclose(float(structural_similarity(a, b)), ssim(a.numpy(), b.numpy()))
    part = a[:12, :12].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: structural_similarity(x, b[:12, :12]), part, fast_mode=True)


def blurred_by_convolution(maps: torch.Tensor) -> torch.Tensor:
    """The blur from its definition, in float64: every weight of the window by torch's own convolution."""
    line = torch.exp(-0.5 * ((torch.arange(11, dtype=D) - 5.0) / 1.5) ** 2)
    weights = torch.outer(line, line) / line.sum() ** 2
    return torch.nn.functional.conv2d(maps.to(D)[:, None], weights[None, None])[:, 0]


def check_blur(blur: Any) -> None:
    """Values and gradients of a blur of float32 maps, to the last bits of float32."""
    dice = torch.Generator().manual_seed(4)
    maps = torch.rand(5, 31, 279, generator=dice)
    grad = torch.rand(5, 21, 269, generator=dice)
    own, exact = maps.clone().requires_grad_(), maps.to(D).requires_grad_()
    found, wanted = blur(own), blurred_by_convolution(exact)
    assert found.shape == wanted.shape and found.dtype == torch.float32
    # TF32 would be off by 5e-4
    assert float((found.to(D) - wanted).detach().abs().max()) < 5e-7
    (slope,) = torch.autograd.grad(found, own, grad)
    (wanted_slope,) = torch.autograd.grad(wanted, exact, grad.to(D))
    assert float((slope.to(D) - wanted_slope).abs().max()) < 5e-7


def test_the_blur_of_the_loss_is_exact_in_float32() -> None:
    check_blur(structure.blur)


def test_a_fused_blur_is_exact_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's interpreter, where Triton is installed; the GPU benchmark does the same with the compiled
    one.
    """
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds")
    from jobs.nerf.methods.structure_kernel import along_fused

    monkeypatch.setattr(structure, "_along", along_fused)
    check_blur(structure.blur)


def test_neighbours_are_the_same_in_pieces() -> None:
    line = torch.arange(10, dtype=torch.float32)[:, None] * torch.tensor([[1.0, 0, 0]])
    whole = neighbours(line)
    assert whole[0] == 2.0 and whole[5] == (1 + 1 + 2) / 3
    assert torch.equal(neighbours(line, at_once=25), whole)


def test_a_fused_encoding_is_the_plain_one_with_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's interpreter, where Triton is installed; the GPU benchmark does the same with the compiled
    one.
    """
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    from jobs.nerf.methods.encoding_kernel import encode_fused

    levels = Levels((4, 9, 20, 63, 200), 2**12)
    assert [levels.side(r) for r in levels.resolutions] == [6, 11, 0, 0, 0]
    dice = torch.Generator().manual_seed(0)
    table = torch.rand(5 * 2**12, 2, generator=dice)
    cube = torch.rand(300, 3, generator=dice) * 2.4 - 1.2
    grad = torch.rand(300, 10, generator=dice)
    made = []
    for encoder in (encode_plain, encode_fused):
        own = table.clone().requires_grad_()
        found = encoder(own, cube, levels)
        made.append((found.detach(), *torch.autograd.grad(found, own, grad)))
    for wanted, found in zip(*made, strict=True):
        assert torch.allclose(wanted, found, atol=1e-5)


class Drawn:
    """A field on a device whose views are flat, and a look at which view is drawn when."""

    device = SimpleNamespace(type="cuda")

    def __init__(self) -> None:
        self.views: list[str] = []

    def look_at(self, view: View, check: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.views.append(view.name)
        shape = (view.height, view.width)
        return torch.full((*shape, 3), 0.5), torch.ones(shape), torch.ones(shape)


class Published:
    """A host that keeps what is published, and may want an end."""

    def __init__(self, folder: Path, end_after: int = 99) -> None:
        self.scratch, self.end_after = folder, end_after
        self.numbers: list[int] = []
        self.examined: list[tuple[int, bool]] = []
        self.log = SimpleNamespace(write=lambda text: None)
        self.phase = lambda name: nullcontext()
        self.progress = lambda share, note: None

    def check(self) -> None:
        if len(self.numbers) >= self.end_after:
            raise ParkRequested

    def examine(self, number: int, files: dict[str, Path]) -> None:
        assert all(path.is_file() for path in files.values())
        self.examined.append((number, threading.current_thread() is threading.main_thread()))

    def publish(self, number: int, files: dict[str, Path], **about: Any) -> None:
        assert (number, False) in self.examined
        assert about["duration_s"] > 0 and about["quality"] == {"mean_opacity": 1.0}
        for path in files.values():
            path.unlink()
        self.numbers.append(number)


@pytest.mark.parametrize("end_after", [99, 3])
def test_views_are_encoded_while_others_are_drawn_and_published_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_after: int
) -> None:
    """The first file is not written before the third view is drawn: a loop that waited would never end."""
    field, host = Drawn(), Published(tmp_path, end_after)
    third = threading.Event()
    written = views_module.write_bytes

    def slowly(*arguments: Any) -> Any:
        assert third.wait(30)
        return written(*arguments)

    def look_at(view: View, check: Any) -> Any:
        if len(field.views) == 2:
            third.set()
        return Drawn.look_at(field, view, check)

    monkeypatch.setattr(views_module, "write_bytes", slowly)
    monkeypatch.setattr(field, "look_at", look_at)
    held: Any = SimpleNamespace(field=field, look=Look("black", 1, False, CPU))
    seen = [(10 + i, replace(pictures(2).views[0], name=str(i))) for i in range(8)]
    spec = Spec.model_validate({"source": "set/transforms.json"})
    made = lambda: make_views(  # noqa: E731
        held,
        spec,
        seen,
        host,
        unit=1.0,
        threads=3,
        peak=lambda: None,  # type: ignore[arg-type]
    )
    if end_after > 8:
        made()
        assert host.numbers == list(range(10, 18)) and len(field.views) == 8
    else:
        with pytest.raises(ParkRequested):
            made()
        assert host.numbers == sorted(host.numbers) and 3 <= len(host.numbers) < 8
    assert list(tmp_path.iterdir()) == []
