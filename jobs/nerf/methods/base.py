"""What the training loop and the renderer ask of a method, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.optim.adam import adam as adam_

from jobs.nerf.scene import Scene, View

if TYPE_CHECKING:
    from jobs.nerf.methods.rays import Pictures
    from jobs.nerf.rendering import Look, Picture

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Options:
    """What a person may set of a method."""

    resolution: int = 96
    samples: int = 96
    sh_degree: int = 1
    smoothness: float = 0.002
    cap: int = 20_000
    hash_log2: int = 19
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one iteration may take: samples looked at, and bytes of memory."""

    samples: int
    nbytes: int | None = None


@dataclass(slots=True)
class Lit:
    """What rays see, before a background lies behind it: premultiplied colour, opacity, distance."""

    colour: Tensor
    opacity: Tensor
    distance: Tensor
    looked_at: int
    weights: Tensor | None = None
    """Weight (k), colour (k, 3) and ray (k) of each sample that was looked at, for losses per sample."""
    colours: Tensor | None = None
    rays: Tensor | None = None


class Field(ABC):
    """What is trained: something that can be looked at from a camera."""

    name: ClassVar[str]
    form: ClassVar[str]
    version: ClassVar[int]

    def __init__(self, options: Options, bounded: bool, extent: float, device: torch.device) -> None:
        self.options = options
        self.bounded = bounded
        self.extent = extent
        self.device = device

    def prepare(self, views: Sequence[View]) -> None:  # noqa: B027  optional
        """Before training: what the cameras tell about space."""

    def begin(self, scene: Scene, pictures: Pictures) -> None:  # noqa: B027  optional
        """Before training: where to start from."""

    def adapt(self, progress: float, iteration: int, budget: Budget) -> None:  # noqa: B027  optional
        """Before an iteration: refine, skip what is empty."""

    @abstractmethod
    def iterate(
        self,
        pictures: Pictures,
        look: Look,
        drawn: torch.Generator,
        at: Any,
        progress: float,
        budget: Budget,
    ) -> tuple[Tensor, int]:
        """One step of training; its mean squared error, as a tensor that nobody waits for, and the samples
        looked at (0: no matter).

        ``at`` (:class:`jobs.nerf.training.Progress`) holds the iteration and how many rays to take;
        ``progress`` is the share of the training that is done. All that is drawn comes from ``drawn``.
        """

    @abstractmethod
    def picture(self, view: View, look: Look, check: Callable[[], None]) -> Any:
        """Colours (height, width, 3), 0 to 1, on the background, as float32."""

    @abstractmethod
    def look_at(self, view: View, check: Callable[[], None]) -> tuple[Tensor, Tensor, Tensor]:
        """A view on the device, before any background: premultiplied colour (height, width, 3), opacity and
        depth (height, width). ``check`` is called now and then.
        """

    def render(self, view: View, check: Callable[[], None]) -> Picture:
        """The same in the host's memory."""
        from jobs.nerf.rendering import Picture

        return Picture(*(part.float().cpu().numpy() for part in self.look_at(view, check)))

    @abstractmethod
    def score(self, pictures: Pictures, index: Tensor, look: Look) -> float:
        """PSNR in dB on the pixels ``index`` of held-out pictures."""

    @abstractmethod
    def density(self, points: Tensor) -> Tensor:
        """Density (n) at points (n, 3) of normalised space."""

    @abstractmethod
    def albedo(self, points: Tensor) -> Tensor:
        """Colour (n, 3) at points, seen from nowhere in particular."""

    def describe(self) -> str:
        """How big it is, in words."""
        return self.form

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All tensors of a checkpoint."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a checkpoint needs beside its tensors. JSON."""

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""


class Adam:
    """Adam (Kingma and Ba) with state that goes into a checkpoint and learning rates per column."""

    def __init__(self, beta1: float = 0.9, beta2: float = 0.99, epsilon: float = 1e-12) -> None:
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self._first: dict[str, Tensor] = {}
        self._second: dict[str, Tensor] = {}
        self._steps: dict[str, int] = {}

    @torch.no_grad()
    def step(self, name: str, value: Tensor, grad: Tensor, rate: float) -> None:
        """Change ``value`` in place, in one pass over memory: on a CPU that is what a grid's step costs."""
        if name not in self._first:
            self._first[name], self._second[name] = torch.zeros_like(value), torch.zeros_like(value)
            self._steps[name] = 0
        # filled on the device: copying a number there would wait for all that runs on it
        count = torch.full((), float(self._steps[name]), device=value.device)
        adam_(
            [value], [grad], [self._first[name]], [self._second[name]], [], [count],
            foreach=False, fused=True, amsgrad=False, beta1=self.beta1, beta2=self.beta2, lr=rate,
            weight_decay=0.0, eps=self.epsilon, maximize=False,
        )  # fmt: skip
        self._steps[name] += 1

    def forget(self, name: str) -> None:
        """Begin anew with a parameter."""
        for kept in (self._first, self._second, self._steps):
            kept.pop(name, None)

    def rearrange(self, name: str, keep: Tensor, added: int) -> None:
        """Follow a parameter whose rows were chosen by ``keep`` and to which ``added`` rows came."""
        for kept in (self._first, self._second):
            if name in kept:
                old = kept[name][keep]
                kept[name] = torch.cat([old, old.new_zeros(added, *old.shape[1:])])

    def clear_rows(self, name: str, rows: Tensor) -> None:
        """Forget what was learnt about some rows."""
        for kept in (self._first, self._second):
            if name in kept:
                kept[name][rows] = 0.0

    def state(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint."""
        return {
            **{f"adam.first.{name}": value for name, value in self._first.items()},
            **{f"adam.second.{name}": value for name, value in self._second.items()},
        }

    def facts(self) -> dict[str, Any]:
        """What a checkpoint needs beside its tensors."""
        return {"adam": dict(self._steps)}

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], device: torch.device) -> None:
        """Back to a checkpoint."""
        self._steps = {str(k): int(v) for k, v in facts["adam"].items()}
        self._first = {name: tensors[f"adam.first.{name}"].to(device) for name in self._steps}
        self._second = {name: tensors[f"adam.second.{name}"].to(device) for name in self._steps}
