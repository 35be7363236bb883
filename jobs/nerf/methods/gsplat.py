"""3D Gaussians on CUDA: gsplat's rasteriser with its MCMC strategy and a cap (Kheradmand 2024; Ye 2024).

Nothing in an iteration waits for the device but the rasteriser's own count of tiles; cameras and pictures lie
there.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from farm.errors import NotInstalled
from jobs.nerf.methods.base import Budget, Options
from jobs.nerf.methods.hull import inside_hull
from jobs.nerf.methods.splat import NAMES, Splats, left_by_masks, target_of
from jobs.nerf.methods.structure import structural_similarity
from jobs.nerf.rendering import Look
from jobs.nerf.scene import Scene, View

if TYPE_CHECKING:
    from jobs.nerf.methods.rays import Pictures

Tensor = torch.Tensor
START: Final = 100_000
"""Gaussians to begin with where there are no sparse points; MCMC adds a twentieth at each refinement."""
RATES: Final = {
    "means": 1.6e-4, "scales": 5e-3, "quats": 1e-3, "opacities": 5e-2, "sh0": 2.5e-3, "shN": 1.25e-4,
}  # fmt: skip
"""Learning rates; that of the means is in units of how far the cameras stand. That one falls to a hundredth
through the whole training, the others to a tenth from :data:`_CALM_FROM` on."""
_CALM_FROM: Final = 0.6
_REFINE_FROM: Final = 300
_REFINE_EVERY: Final = 100
_REFINE_UNTIL: Final = 0.85
"""Share of the training after which no Gaussian moves house: that empties what Adam knows of it. The noise on
faint ones goes on, as in gsplat, and falls with the means' rate."""
_DEGREE_EVERY: Final = 0.12
"""Share of the training after which colours may depend on the view by one more degree."""
_SSIM_SHARE: Final = 0.2
_REGULAR: Final = 0.01


class CudaSplats(Splats):
    """Gaussians that gsplat draws. Extensions must have been built: ``farm node warm``."""

    form = "gsplat"
    version = 2

    def __init__(self, options: Options, bounded: bool, extent: float, device: torch.device) -> None:
        super().__init__(options, bounded, extent, device)
        if importlib.util.find_spec("gsplat") is None:
            raise NotInstalled(
                "form gsplat needs the package gsplat: pip install gsplat, then farm node warm"
            )
        from jobs.nerf.extensions import require_built

        require_built("gsplat")
        import gsplat
        from gsplat.strategy import MCMCStrategy

        self._draw_all: Any = gsplat.rasterization
        self._strategy: Any = MCMCStrategy(
            cap_max=options.cap, refine_start_iter=_REFINE_FROM, refine_every=_REFINE_EVERY,
            refine_stop_iter=10**9, verbose=False,
        )  # fmt: skip
        self._strategy_state: Any = self._strategy.initialize_state()
        self._optimisers: dict[str, Any] = {}
        self._parameters: Any = None
        self._restored: dict[str, dict[str, Tensor]] = {}
        self._cameras: tuple[Tensor, Tensor] | None = None
        self._order: tuple[int, list[int]] = (-1, [])
        self.reach = 1.0
        self.degree_now = self.degree

    # --- where to start from -------------------------------------------------------------------------

    def begin(self, scene: Scene, pictures: Pictures) -> None:
        """From sparse points where there are enough, else inside of what the pictures' alpha leaves."""
        self.reach = 1.1 * max(float(np.linalg.norm(view.matrix[:3, 3])) for view in pictures.views)
        inside = scene.points[np.linalg.norm(scene.points[:, :3], axis=1) < 4.0] if len(scene.points) else []
        drawn = torch.Generator(self.device).manual_seed(self.options.seed + 1)
        if len(inside) >= 100:
            chosen = torch.from_numpy(np.asarray(inside)).float().to(self.device)
            order = torch.randperm(len(chosen), generator=drawn, device=self.device)
            chosen = chosen[order[: self.options.cap]]
            places, colours = chosen[:, :3], chosen[:, 3:]
        else:
            count = min(self.options.cap, START)
            places, colours = inside_hull(pictures, count, self.extent if self.bounded else 1.0, drawn)
        self.values = self.started(places, colours, size=0.5, opacity=0.0)

    # --- looking -------------------------------------------------------------------------------------

    def drawn(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """See :meth:`Splats.drawn`; depth is the expected one."""
        matrix, lens = (torch.from_numpy(values).to(self.device) for values in _camera(view))
        return self._drawn(matrix[None], lens[None], view.width, view.height, depth=True)

    def _drawn(
        self, matrix: Tensor, lens: Tensor, width: int, height: int, *, depth: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        values: Any = self._parameters if self._parameters is not None else self.values
        found, opacity, _ = self._draw_all(
            values["means"], values["quats"], torch.exp(values["scales"]),
            torch.sigmoid(values["opacities"]), torch.cat([values["sh0"], values["shN"]], 1),
            matrix, lens, width, height, sh_degree=self.degree_now,
            render_mode="RGB+ED" if depth else "RGB", packed=False,
        )  # fmt: skip
        return found[0, ..., :3], opacity[0, ..., 0], found[0, ..., 3] if depth else opacity[0, ..., 0]

    # --- training ------------------------------------------------------------------------------------

    def iterate(
        self, pictures: Pictures, look: Look, drawn: torch.Generator, at: Any, progress: float, budget: Budget
    ) -> tuple[Tensor, int]:
        if self._parameters is None:
            self._begin_optimising(at.iteration)
        self.degree_now = min(self.degree, int(progress / _DEGREE_EVERY))
        number = self._next(at.iteration, len(pictures.views))
        view = pictures.views[number]
        behind = look.behind(1, drawn)[0]
        target = target_of(pictures, number, behind.detach())
        others = look.wanted()
        for value in others:
            value.requires_grad_(True)
        matrices, lenses = self._cameras_of(pictures)
        colour, opacity, _ = self._drawn(
            matrices[number : number + 1], lenses[number : number + 1], view.width, view.height, depth=False
        )
        made = colour + (1.0 - opacity[..., None]) * (look.colour if look.background == "learned" else behind)
        if look.appearance:
            picture = torch.full((1,), number, device=self.device)
            made = look.exposed(made.view(-1, 3), picture.expand(made.shape[0] * made.shape[1])).view_as(made)
        made = left_by_masks(pictures, number, made, target)
        error = ((made - target) ** 2).mean()
        unlike = 1.0 - structural_similarity(made, target)
        loss = (1 - _SSIM_SHARE) * (made - target).abs().mean() + _SSIM_SHARE * unlike
        loss = loss + _REGULAR * torch.sigmoid(self._parameters["opacities"]).mean()
        loss = loss + _REGULAR * torch.exp(self._parameters["scales"]).mean()
        torch.autograd.backward(loss)
        grads = [value.grad for value in others]
        for value in others:
            value.requires_grad_(False)
            value.grad = None
        calm = 0.1 ** (max(0.0, progress - _CALM_FROM) / (1.0 - _CALM_FROM))
        rate = RATES["means"] * self.reach * 0.01**progress
        for name, optimiser in self._optimisers.items():
            optimiser.param_groups[0]["lr"] = rate if name == "means" else RATES[name] * calm
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            look.learn(grads)
        self._strategy.refine_stop_iter = 10**9 if progress < _REFINE_UNTIL else 0
        self._strategy.step_post_backward(
            self._parameters, self._optimisers, self._strategy_state, at.iteration, {}, lr=rate
        )
        self.values = {name: value.detach() for name, value in self._parameters.items()}
        return error.detach(), 0

    def _next(self, iteration: int, count: int) -> int:
        """The picture of an iteration: all of them in each round, in an order drawn anew."""
        turn, place = divmod(iteration, count)
        if self._order[0] != turn or len(self._order[1]) != count:
            dice = torch.Generator().manual_seed(self.options.seed * 1_000_003 + turn)
            self._order = (turn, torch.randperm(count, generator=dice).tolist())
        return self._order[1][place]

    def _cameras_of(self, pictures: Pictures) -> tuple[Tensor, Tensor]:
        if self._cameras is None:
            found = [_camera(view) for view in pictures.views]
            matrices, lenses = (np.stack([pair[i] for pair in found]) for i in (0, 1))
            self._cameras = (
                torch.from_numpy(matrices).to(self.device), torch.from_numpy(lenses).to(self.device)
            )  # fmt: skip
        return self._cameras

    def _begin_optimising(self, iteration: int) -> None:
        # gsplat draws from the device's own dice
        torch.cuda.manual_seed(self.options.seed + iteration)
        self._parameters = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(value.clone()) for name, value in self.values.items()}
        )
        self._optimisers = {
            name: torch.optim.Adam([value], lr=RATES[name], eps=1e-15, fused=True)
            for name, value in self._parameters.items()
        }
        for name, state in self._restored.items():
            self._optimisers[name].state[self._parameters[name]] = state
        self._restored = {}

    # --- checkpoint ----------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        found = dict(self.values)
        for name, optimiser in self._optimisers.items():
            for key, value in optimiser.state.get(self._parameters[name], {}).items():
                found[f"adam.{key}.{name}"] = torch.as_tensor(value)
        return found

    def facts(self) -> dict[str, Any]:
        return {"degree": self.degree, "reach": self.reach}

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.degree, self.reach = int(facts["degree"]), float(facts["reach"])
        self.degree_now = self.degree
        self.values = {name: tensors[name].to(self.device) for name in NAMES}
        self._parameters, self._optimisers, self._restored = None, {}, {}
        for key, value in tensors.items():
            if key.startswith("adam."):
                _, what, name = key.split(".")
                self._restored.setdefault(name, {})[what] = value.to(self.device)

    def describe(self) -> str:
        return f"{len(self.values.get('opacities', ())):,} Gaussians (gsplat, MCMC)"


def _camera(view: View) -> tuple[Any, Any]:
    """World-to-camera in OpenCV's axes (4, 4) and the lens (3, 3), float32."""
    matrix = view.matrix.copy()
    matrix[:3, 1:3] *= -1.0
    lens = np.array([[view.fx, 0, view.cx], [0, view.fy, view.cy], [0, 0, 1.0]], dtype=np.float32)
    return np.linalg.inv(matrix).astype(np.float32), lens
