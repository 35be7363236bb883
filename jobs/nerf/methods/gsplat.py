"""3D Gaussians on CUDA: gsplat's rasteriser with its MCMC strategy and a cap (Kheradmand 2024; Ye 2024)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Final

import torch

from farm.errors import NotInstalled
from jobs.nerf.methods.base import Budget, Options
from jobs.nerf.methods.splat import _RATES, Splats, _target
from jobs.nerf.rendering import Look
from jobs.nerf.scene import View

if TYPE_CHECKING:
    from jobs.nerf.methods.rays import Pictures

Tensor = torch.Tensor
_REFINE_FROM: Final = 500
_REFINE_EVERY: Final = 100
_SSIM_SHARE: Final = 0.2


class CudaSplats(Splats):
    """Gaussians that gsplat draws. Extensions must have been built: ``farm node warm``."""

    form = "gsplat"

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

    def drawn(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """See :meth:`Splats.drawn`; depth is the expected one."""
        values: Any = self._parameters if self._parameters is not None else self.values
        # OpenGL's camera-to-world to OpenCV's world-to-camera
        matrix = torch.from_numpy(view.matrix).float().to(self.device).clone()
        matrix[:3, 1:3] *= -1.0
        lens = torch.tensor([[view.fx, 0, view.cx], [0, view.fy, view.cy], [0, 0, 1.0]], device=self.device)
        found, opacity, _ = self._draw_all(
            values["means"], values["quats"], torch.exp(values["scales"]),
            torch.sigmoid(values["opacities"]), torch.cat([values["sh0"], values["shN"]], 1),
            torch.linalg.inv(matrix)[None], lens[None], view.width, view.height, sh_degree=self.degree,
            render_mode="RGB+ED", packed=False,
        )  # fmt: skip
        return found[0, ..., :3], opacity[0, ..., 0], found[0, ..., 3]

    def iterate(
        self, pictures: Pictures, look: Look, drawn: torch.Generator, at: Any, progress: float, budget: Budget
    ) -> tuple[float, int]:
        if self._parameters is None:
            self._begin_optimising()
        number = int(torch.randint(0, len(pictures.views), (1,), generator=drawn))
        behind = look.behind(1, drawn)[0]
        target, _ = _target(pictures, number, behind.detach())
        others = look.wanted()
        for value in others:
            value.requires_grad_(True)
        colour, opacity, _ = self.drawn(pictures.views[number])
        made = colour + (1.0 - opacity[..., None]) * (look.colour if look.background == "learned" else behind)
        picture = torch.full((1,), number, device=self.device)
        made = look.exposed(made.view(-1, 3), picture.expand(made.shape[0] * made.shape[1])).view_as(made)
        error = ((made - target) ** 2).mean()
        loss = (1 - _SSIM_SHARE) * (made - target).abs().mean() + _SSIM_SHARE * (1.0 - _ssim(made, target))
        loss = loss + 0.01 * torch.sigmoid(self._parameters["opacities"]).mean()
        loss = loss + 0.01 * torch.exp(self._parameters["scales"]).mean()
        torch.autograd.backward(loss)
        grads = [value.grad for value in others]
        for value in others:
            value.requires_grad_(False)
            value.grad = None
        rate = _RATES["means"] * 0.01**progress
        self._optimisers["means"].param_groups[0]["lr"] = rate
        for optimiser in self._optimisers.values():
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            look.learn(grads)
        if progress < 0.85:
            self._strategy.step_post_backward(
                self._parameters, self._optimisers, self._strategy_state, at.iteration, {}, lr=rate
            )
        self.values = {name: value.detach() for name, value in self._parameters.items()}
        return float(error.detach()), 0

    def _begin_optimising(self) -> None:
        self._parameters = torch.nn.ParameterDict(
            {name: torch.nn.Parameter(value.clone()) for name, value in self.values.items()}
        )
        self._optimisers = {
            name: torch.optim.Adam([value], lr=_RATES[name], eps=1e-15)
            for name, value in self._parameters.items()
        }
        for name, state in self._restored.items():
            self._optimisers[name].state[self._parameters[name]] = state

    _restored: dict[str, dict[str, Tensor]] = {}

    def state(self) -> dict[str, Tensor]:
        found = dict(self.values)
        for name, optimiser in self._optimisers.items():
            for key, value in optimiser.state.get(self._parameters[name], {}).items():
                found[f"adam.{key}.{name}"] = torch.as_tensor(value)
        return found

    def facts(self) -> dict[str, Any]:
        return {"degree": self.degree}

    def load(self, tensors: Any, facts: Any) -> None:
        self.degree = int(facts["degree"])
        self.values = {name: tensors[name].to(self.device) for name in _RATES}
        self._parameters, self._optimisers = None, {}
        self._restored = {}
        for key, value in tensors.items():
            if key.startswith("adam."):
                _, what, name = key.split(".")
                kept = value if what == "step" else value.to(self.device)
                self._restored.setdefault(name, {})[what] = kept

    def describe(self) -> str:
        return f"{len(self.values.get('opacities', ())):,} Gaussians (gsplat, MCMC)"


def _ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of two pictures (height, width, 3), differentiable."""
    line = torch.exp(-0.5 * ((torch.arange(11, device=a.device) - 5.0) / 1.5) ** 2)
    line = line / line.sum()
    window = (line[:, None] * line[None, :]).expand(3, 1, 11, 11)

    def blur(x: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, window, groups=3)

    x, y = a.permute(2, 0, 1)[None], b.permute(2, 0, 1)[None]
    mx, my = blur(x), blur(y)
    vx, vy, vxy = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    top = (2 * mx * my + 1e-4) * (2 * vxy + 9e-4)
    return (top / ((mx * mx + my * my + 1e-4) * (vx + vy + 9e-4))).mean()
