"""Training a field as farm work: budgets, curve, previews, checkpoints, parking at an iteration."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from farm.errors import ParkRequested, PermanentFailure, TaskFailed
from jobs.engine import Host
from jobs.nerf.methods.base import Budget, Field
from jobs.nerf.methods.loader import create, device_of, options_of, read_checkpoint, write_checkpoint
from jobs.nerf.methods.rays import Pictures
from jobs.nerf.preview import SIDE, compose
from jobs.nerf.rendering import Look
from jobs.nerf.scene import Scene
from jobs.nerf.spec import Spec

Tensor = torch.Tensor
ITERATIONS: Final = {"dense": 4000, "hash": 20_000, "torch": 2000, "gsplat": 15_000}
"""Iterations where the job names no budget, by form."""
SAMPLES: Final = {"dense": 30_000, "hash": 2**18, "torch": 1, "gsplat": 1}
MAX_RAYS: Final = {"cpu": 8192, "cuda": 2**16}
_UNREAD: Final = {"cpu": 1, "cuda": 10}
"""Iterations whose losses are read together: each reading waits for all that runs on the device."""
BYTES_PER_SAMPLE: Final = 1400
"""Bytes of GPU memory that one sample of a hash grid takes through forward and backward pass."""
BYTES_PER_PLACE: Final = 96
"""Bytes that a sample takes while it is found out whether it is worth a look."""
LOOK_SHARE: Final = 0.15
"""Curve and preview take at most about this share of the time, however often they are asked for."""
_TESTED_PIXELS: Final = 20_000
"""Held-out pixels that the curve is measured on; the evaluation looks at all of them."""
_CURVE: Final = 240


@dataclass(slots=True)
class Progress:
    """Where a training is. All of it goes into a checkpoint."""

    iteration: int = 0
    seconds: float = 0.0
    rays: int = 1024
    loss: float = 0.0
    best: float = 0.0
    curve: list[list[float]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "iteration": self.iteration, "seconds": self.seconds, "rays": self.rays, "loss": self.loss,
            "best": self.best, "curve": self.curve,
        }  # fmt: skip


class Trainer:
    """One training. :meth:`run` ends at a budget; every wish of the farm is obeyed between iterations."""

    def __init__(self, spec: Spec, scene: Scene, folder: Path, host: Host) -> None:
        self.spec, self.scene, self.host = spec, scene, host
        self.form = spec.chosen_form
        self.device = device_of(spec)
        options = adapted(spec, options_of(spec), self.device, host)
        self.field: Field = create(self.form, options, scene, self.device)
        self.pictures = Pictures.load(scene.of("train"), folder, self.device)
        held = scene.of("test")
        self.tested = Pictures.load(held, folder, self.device) if held else None
        self.look = Look.of(spec, scene, self.device, len(self.pictures.views))
        self.drawn = torch.Generator(self.device).manual_seed(spec.seed)
        self.samples = spec.train.ray_samples or SAMPLES[self.form]
        if self.form == "hash":
            self.samples = fit_samples(self.samples, spec.train.vram, self.device, host)
        self.at = Progress(rays=max(64, self.samples // getattr(self.field, "count", spec.train.samples)))
        self.most_rays = most_rays(self.field, spec.train.vram, self.device)
        self._losses: list[Tensor] = []
        self.limit = spec.train.iterations or (
            10_000_000 if spec.train.seconds or spec.train.target_psnr else ITERATIONS[self.form]
        )
        self._tested_index = self._choose_tested()
        self._previewed = self._saved = time.monotonic()
        self._look_cost = 0.0

    # --- the loop ------------------------------------------------------------------------------------

    def run(self) -> str:
        """Train until a budget is reached; says which. Raises what the farm asks for, after saving."""
        restored = self.host.restore()
        if restored is not None:
            self.restore(restored)
        else:
            self.field.prepare(self.pictures.views)
            self.field.begin(self.scene, self.pictures)
        began, before = time.monotonic(), self.at.seconds
        self._previewed = self._saved = began
        try:
            while (why := self._finished()) is None:
                self.host.check()
                self._iterate()
                self.at.seconds = before + time.monotonic() - began
                self._report()
        except ParkRequested:
            # what is parked goes on from here; what is cancelled or fenced off keeps nothing
            self.save()
            raise
        self._measure()
        return why

    def _finished(self) -> str | None:
        train = self.spec.train
        if self.at.iteration >= self.limit:
            return f"{self.at.iteration} iterations"
        if train.seconds is not None and self.at.seconds >= train.seconds:
            return f"{train.seconds:g} seconds"
        if train.target_psnr is not None and self.at.best >= train.target_psnr:
            return f"{self.at.best:.2f} dB"
        return None

    def progress(self) -> float:
        """Share of the budget that is used, 0 to 1; what the learning rates and the refinement go by."""
        shares = [self.at.iteration / self.limit]
        if self.spec.train.seconds is not None:
            shares.append(self.at.seconds / self.spec.train.seconds)
        return min(1.0, max(shares))

    def _iterate(self) -> None:
        at = self.at
        share = self.progress()
        budget = Budget(self.samples)
        self.field.adapt(share, at.iteration, budget)
        loss, looked = self.field.iterate(self.pictures, self.look, self.drawn, at, share, budget)
        self._losses.append(loss)
        if looked:
            at.rays = max(64, min(self.most_rays, int(0.9 * at.rays + 0.1 * at.rays * self.samples / looked)))
        at.iteration += 1
        if len(self._losses) >= _UNREAD[self.device.type]:
            self._read_losses()

    def _read_losses(self) -> None:
        """Bring the running loss up to date. Raises :class:`TaskFailed` where one is not finite."""
        if not self._losses:
            return
        at, losses = self.at, torch.stack(self._losses).tolist()
        first = at.iteration - len(losses)
        self._losses = []
        for iteration, loss in enumerate(losses, first):
            if not math.isfinite(loss):
                raise TaskFailed(
                    f"the loss is {loss} at iteration {iteration}: the training left the finite numbers; "
                    "look for wrong cameras, or choose another seed"
                )
            at.loss = loss if iteration == 0 else 0.97 * at.loss + 0.03 * loss

    def reserved(self) -> AbstractContextManager[None]:
        """A buffer in the ledger for the GPU memory of the training; nothing on a CPU."""
        if self.device.type != "cuda":
            return nullcontext()
        if self.form == "hash":
            nbytes = self.samples * BYTES_PER_SAMPLE
        else:
            nbytes = self.field.options.cap * 2000
        nbytes += 6 * sum(v.numel() * v.element_size() for v in self.field.state().values())
        return self.host.reserve(
            min(nbytes, vram_budget(self.spec.train.vram, self.device)), "vram", "training"
        )

    def summary(self, why: str) -> dict[str, Any]:
        """What a training came to, for pages and for later steps."""
        at = self.at
        return {
            "method": self.field.name, "form": self.form, "version": self.field.version, "ended": why,
            "iterations": at.iteration, "seconds": round(at.seconds, 2),
            "train_psnr": round(psnr_of(at.loss), 3),
            "psnr": at.curve[-1][3] if self.tested and at.curve else None, "size": self.field.describe(),
            "curve": at.curve, "curve_columns": ["iteration", "seconds", "train_psnr", "psnr", "loss"],
            "device": str(self.device), "peak_vram": _peak(self.device),
        }  # fmt: skip

    # --- what people see -----------------------------------------------------------------------------

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._previewed >= max(self.spec.train.preview_s, self._look_cost / LOOK_SHARE):
            self._measure()
            self.host.preview(self.preview())
            self.host.progress(0.99 * self.progress(), self.note())
            self._previewed = time.monotonic()
            self._look_cost = self._previewed - now
        elif self.at.iteration % 20 == 0:
            self.host.progress(0.99 * self.progress())
        if now - self._saved >= self.spec.train.checkpoint_s:
            self._saved = now
            self.save()

    def note(self) -> str:
        """One line: iteration, loss and PSNR."""
        tested = f", held out {self.at.curve[-1][3]:.2f} dB" if self.tested and self.at.curve else ""
        return f"iteration {self.at.iteration}, {psnr_of(self.at.loss):.2f} dB{tested}"

    def _measure(self) -> None:
        self._read_losses()
        at = self.at
        tested = self.tested_psnr()
        at.best = max(at.best, tested)
        at.curve.append(
            [
                at.iteration,
                round(at.seconds, 3),
                round(psnr_of(at.loss), 3),
                round(tested, 3),
                round(at.loss, 7),
            ]
        )
        if len(at.curve) > _CURVE:
            # every second one of the older half goes
            at.curve = at.curve[: _CURVE // 2 : 2] + at.curve[_CURVE // 2 :]
        self.host.log.write(f"{self.note()}, {at.seconds:.1f} s, {self.field.describe()}")

    def _choose_tested(self) -> Tensor | None:
        if self.tested is None:
            return None
        usable = self.tested.usable
        count = len(self.tested.pixels) if usable is None else len(usable)
        chosen = torch.linspace(0, count - 1, min(count, _TESTED_PIXELS), dtype=torch.float64).long()
        chosen = chosen.to(self.device)
        return chosen if usable is None else usable[chosen]

    @torch.no_grad()
    def tested_psnr(self) -> float:
        """PSNR in dB on (some of) the pixels of the held-out pictures; 0 where none are held out."""
        if self.tested is None or self._tested_index is None:
            return 0.0
        return self.field.score(self.tested, self._tested_index, self.look)

    def preview(self) -> bytes:
        """One view, held out where there is one, with the curve beside it, as PNG."""
        views = self.tested.views if self.tested else self.pictures.views
        view = views[0]
        scale = min(1.0, SIDE / max(view.width, view.height))
        small = view.scaled(max(8, int(view.width * scale)), max(8, int(view.height * scale)))
        return compose(self.field.picture(small, self.look, self.host.check), self.at.curve)

    # --- checkpoints ---------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that resuming needs: the field, the optimisers, the dice, where it is."""
        self._read_losses()
        tensors = {
            **{f"field.{name}": value for name, value in self.field.state().items()},
            **{f"look.{name}": value for name, value in self.look.state().items()},
            "drawn": self.drawn.get_state(),
        }
        facts = {
            "form": self.form, "version": self.field.version, "method": self.field.name,
            "seed": self.spec.seed,
            "field": self.field.facts(), "look": self.look.facts(), "at": self.at.facts(),
        }  # fmt: skip
        return tensors, facts

    def write(self, path: Path) -> None:
        """Write a checkpoint to ``path``."""
        tensors, facts = self.state()
        write_checkpoint(path, tensors, facts)

    def save(self) -> None:
        """Keep a checkpoint with the farm."""
        path = self.host.scratch / "checkpoint.safetensors"
        self.write(path)
        self.host.save(path)

    def restore(self, path: Path) -> None:
        """Back to a checkpoint. Raises :class:`PermanentFailure` for another method's or version's."""
        tensors, facts = read_checkpoint(path, self.form, self.field.version)
        load_field(self.field, self.look, tensors, facts)
        self.drawn.set_state(tensors["drawn"])
        self.at = Progress(**facts["at"])
        self.host.log.write(f"resumed at iteration {self.at.iteration}")


def load_field(field_: Field, look: Look, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Give a field and its look what a checkpoint holds."""
    try:
        field_.load(_below(tensors, "field."), facts["field"])
        look.load(_below(tensors, "look."), facts["look"])
    except (KeyError, RuntimeError, TypeError) as error:
        raise PermanentFailure(
            f"the checkpoint does not fit this job's settings ({error}); retry the step train from its "
            f"beginning"
        ) from None


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def psnr_of(loss: float) -> float:
    """dB of a mean squared error of colours 0 to 1."""
    return -10.0 * math.log10(max(loss, 1e-10))


def adapted(spec: Spec, options: Any, device: torch.device, host: Host) -> Any:
    """The options, with the Gaussian cap lowered before the start where GPU memory would not hold it."""
    from dataclasses import replace

    if spec.chosen_form != "gsplat":
        return options
    free = vram_budget(spec.train.vram, device)
    coefficients = (options.sh_degree + 1) ** 2
    each = 4 * (11 + 3 * coefficients) * 4 + 400
    most = int(free * 0.7 / each)
    if options.cap > most:
        host.log.write(
            f"the cap is lowered from {options.cap:,} to {most:,} Gaussians: {free:,} bytes are free"
        )
        return replace(options, cap=most)
    return options


def fit_samples(wanted: int, vram: int | None, device: torch.device, host: Host) -> int:
    """Samples an iteration may look at in the memory there is; says so where it lowers them."""
    if device.type != "cuda":
        return wanted
    most = int(vram_budget(vram, device) * 0.6 / BYTES_PER_SAMPLE)
    if wanted > most:
        host.log.write(f"samples of an iteration are lowered from {wanted:,} to {most:,} for lack of memory")
    return min(wanted, max(most, 4096))


def most_rays(field_: Field, vram: int | None, device: torch.device) -> int:
    """Rays an iteration may look along: each has its samples placed before those worth a look are known."""
    if device.type != "cuda":
        return MAX_RAYS["cpu"]
    each = BYTES_PER_PLACE * int(getattr(field_, "count", 1))
    return max(64, min(MAX_RAYS["cuda"], int(vram_budget(vram, device) * 0.3 / each)))


def vram_budget(vram: int | None, device: torch.device) -> int:
    """Bytes of GPU memory that may be used: what is free, or less where the job says so."""
    free, _ = torch.cuda.mem_get_info(device)
    return min(int(free), vram) if vram else int(free)


def _peak(device: torch.device) -> int | None:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None
