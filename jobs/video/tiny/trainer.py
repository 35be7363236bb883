"""What both training stages share: length, averages, optimiser, data on the device, recorded steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from jobs.video.tiny.clips import FRAMES, SIZE, TRAINING, Scenes, Wish, draw_scenes, render


@dataclass
class Length:
    """How long a stage lasts: a number of steps, or seconds after the warm-up."""

    steps: int | None
    seconds: float | None
    warm_up: int = 16

    def walk(self) -> Iterator[tuple[int, float]]:
        """Yield (step, progress in 0..1) until the length is reached."""
        started, step = time.perf_counter(), 0
        while True:
            if step == self.warm_up:
                started = time.perf_counter()  # compilation is over
            if self.steps is not None:
                progress = step / max(1, self.steps)
            else:
                assert self.seconds is not None
                progress = 0.0 if step < self.warm_up else (time.perf_counter() - started) / self.seconds
            if progress >= 1.0:
                return
            yield step, progress
            step += 1


def learning_rate(peak: float, step: int, progress: float, warm_up: int = 100) -> float:
    """Linear warm-up by step, then a cosine to zero by progress."""
    return peak * min(1.0, (step + 1) / warm_up) * 0.5 * (1.0 + math.cos(math.pi * progress))


class Averager:
    """An exponential moving average of a module's parameters, taken every few steps."""

    EVERY = 8

    def __init__(self, module: Any) -> None:
        self.live = list(module.parameters())
        self.mean = [p.detach().clone() for p in self.live]

    def update(self, step: int) -> None:
        """Take the parameters in after a step; young averages move faster."""
        if step % self.EVERY == 0:
            decay = min(0.9995**self.EVERY, (step + 1) / (step + 10 * self.EVERY))
            torch._foreach_lerp_(self.mean, [p.detach() for p in self.live], 1.0 - decay)

    def apply(self) -> None:
        """Put the averages into the module and drop its gradients."""
        with torch.no_grad():
            for parameter, mean in zip(self.live, self.mean, strict=True):
                parameter.copy_(mean)
                parameter.grad = None


class Optimizer:
    """AdamW with clipped gradients, in a form that a CUDA graph can record."""

    def __init__(self, module: Any, device: str) -> None:
        self.parameters = list(module.parameters())
        cuda = device == "cuda"
        # A graph bakes Python numbers in, so on CUDA the rate is a tensor.
        self.rate = torch.zeros((), device=device) if cuda else 0.0
        self.adamw = torch.optim.AdamW(
            self.parameters, lr=self.rate, betas=(0.9, 0.98), weight_decay=0.01, fused=cuda, capturable=cuda
        )

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the next step."""
        for group in self.adamw.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def step(self, loss: Any) -> None:
        """Backward and one update."""
        self.adamw.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adamw.step()


@dataclass
class Trainer:
    """What both stages share: device, precision, randomness and the log."""

    device: str
    rng: np.random.Generator
    log: Callable[[str], None]

    def autocast(self) -> Any:
        """Bfloat16 on CUDA, nothing elsewhere."""
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda")

    def wishes(self, n: int) -> list[Wish]:
        """Training wishes at random."""
        return [TRAINING[i] for i in self.rng.integers(len(TRAINING), size=n)]

    def scenes(self, wishes: list[Wish]) -> Scenes:
        """Random scenes of the wishes, on the device."""
        return draw_scenes(wishes, self.rng).map(lambda a: torch.as_tensor(a).to(self.device))

    def windows(self, wishes: list[Wish], size: int, frames: int) -> Scenes:
        """Random scenes of the wishes, moved so that a window at the origin shows the object somewhere."""
        whole = draw_scenes(wishes, self.rng)
        first = self.rng.integers(0, FRAMES - frames + 1, (len(wishes), 1))
        start = whole.start + whole.velocity * first
        middle = start + whole.velocity * (frames - 1) / 2
        corner = middle - size / 2 + self.rng.uniform(-10.0, 10.0, middle.shape)
        start = start - corner.round().clip(0, SIZE - size)
        seen = replace(whole, start=start.astype(np.float32))
        return seen.map(lambda a: torch.as_tensor(a).to(self.device))

    def clips(self, scenes: Scenes, size: int = SIZE, frames: int = FRAMES) -> Any:
        """Their clips: (N, 3, frames, size, size) in -1..1."""
        columns = torch.arange(size, device=self.device, dtype=torch.float32)
        times = torch.arange(frames, device=self.device, dtype=torch.float32)
        return render(scenes, columns, times).transpose(1, 2) * 2.0 - 1.0

    def recorded(self, step: Callable[[], None]) -> Callable[[], None]:
        """On CUDA the step as a CUDA graph, after three real runs; elsewhere the step itself.

        A step is thousands of small kernels: launched one by one they keep the GPU waiting.
        """
        if self.device != "cuda":
            return step
        cuda: Any = torch.cuda
        side = cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        replay: Callable[[], None] = graph.replay
        return replay
