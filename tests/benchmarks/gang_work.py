"""The process that ``gang_gpu`` measures: the first rank of its gangs, as a slot would be.

``python -m tests.benchmarks.gang_work FOLDER SHAPE DEVICE`` reads a request a line and answers with a line;
what happens in a hang or a death is the matter of the process that asks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from farm.errors import CancelRequested, ParkRequested
from jobs.engine import Host
from jobs.video import checkpoint, gang_choice
from jobs.video.payload import Generation
from tests.benchmarks.gang_model import GUIDANCE, PARTS, KeepingHost, engine, generation, save_parts, task
from tests.benchmarks.wan_shapes import SHAPES

WARM = 1
"""Steps before the measured ones, in every variant: the first one also makes groups and buffers."""


class Work:
    """One engine and what was made with it."""

    def __init__(self, folder: Path, shape: str, device: str) -> None:
        self.folder, self.shape, self.device = folder, shape, device
        self.threads = 1 if device == "cpu" else 8
        self.slow_s = 0.0 if device == "cuda" else 0.5
        """A tiny model's steps are too short for checkpoints and for anything to happen within one."""
        if not (folder / PARTS[-1]).exists():
            save_parts(folder, shape)
        self.engine = engine()
        self.engine.open(cast(Host, KeepingHost(folder / "open")))
        self.latents: dict[str, Any] = {}
        self.gpus = 0

    # --- speed -----------------------------------------------------------------------------------------

    def speed(self, name: str, gpus: int, gang: str, attention: str, steps: int) -> dict[str, Any]:
        """Seconds of a step: a film of ``steps`` + 1, parked after ``steps``; its latents then."""
        made = self._generation(gpus=gpus, gang=gang, attention=attention, steps=steps + 1)

        def enough(host: KeepingHost) -> None:
            if len(host.steps) >= steps:
                raise ParkRequested

        host = self._host(name, enough)
        began = time.perf_counter()
        with contextlib.suppress(ParkRequested):
            self._run(made, host)
        took = time.perf_counter() - began
        each = [later - earlier for earlier, later in itertools.pairwise(host.steps)]
        path = host.restore()
        assert path is not None, "a parked film has left no checkpoint"
        saved = checkpoint.read(path)
        assert saved.step == steps
        self.latents[name] = saved.outputs[0][0].float()
        assert bool(torch.isfinite(self.latents[name]).all())
        group = self.engine._gang
        return {
            "step_s": statistics.median(each[WARM:]),
            "steps_s": [round(value, 4) for value in each],
            "first_step_after_s": round(host.steps[0] - began, 2),
            "took_s": round(took, 2),
            "peak_vram": [self._peak(), *(told.get("peak_vram") for told in (group.told if group else []))],
            "share": group.member.share if group else None,
            **self._against(name, gpus, attention),
        }

    def batched(self, attention: str, repeats: int) -> dict[str, Any]:
        """Both passes of a step as one batch of two: the denoiser alone, which is nearly all of a step."""
        made = self._generation(gpus=max(1, self.gpus), attention=attention, steps=2)
        loaded = self.engine.residency.get(made, contextlib.nullcontext)
        denoisers = loaded.denoisers(made)
        dtype, of = getattr(torch, made.dtype), SHAPES[self.shape]
        width, height = of.size
        self.engine.attention.use(made.attention, denoisers, loaded.device, dtype)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

        def given(batch: int) -> dict[str, Any]:
            latents = (batch, 16, (of.frames - 1) // 4 + 1, height // 8, width // 8)
            return {
                "hidden_states": torch.randn(latents, device=loaded.device, dtype=dtype),
                "timestep": torch.full((batch,), 500, device=loaded.device),
                "encoder_hidden_states": torch.randn(batch, 512, of.text, device=loaded.device, dtype=dtype),
                "return_dict": False,
            }

        wanted, times = given(2), []
        try:
            with torch.no_grad():
                for _ in range(WARM + repeats):
                    self._wait()
                    began = time.perf_counter()
                    denoisers[0](**wanted)
                    self._wait()
                    times.append(time.perf_counter() - began)
        finally:
            self.engine.attention.reset(denoisers)
        return {"batch_of_two_s": statistics.median(times[WARM:]), "peak_vram": [self._peak()]}

    def chosen(self, attention: str) -> dict[str, Any]:
        """What the engine would pick by itself, and why."""
        made = self._generation(gpus=2, attention=attention, steps=2)
        loaded = self.engine.residency.get(
            made if self.gpus == 2 else self._generation(gpus=1, steps=2), contextlib.nullcontext
        )
        gpu = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        choice = gang_choice.choose(made, loaded.denoisers(made), gpu)
        facts = made.model.facts
        return {
            "share": choice.share,
            "why": choice.why,
            "gpu": gpu,
            "width": facts.denoiser_width,
            "layers": facts.denoiser_layers,
            "tokens": gang_choice.tokens_of(facts, made.width, made.height, made.frames),
        }

    # --- faults ----------------------------------------------------------------------------------------

    def whole(self, gang: str, steps: int) -> dict[str, Any]:
        """The film that nobody interrupts."""
        host = self._host(f"whole-{gang}")
        began = time.perf_counter()
        self._run(self._film(gang, steps), host)
        took = round(time.perf_counter() - began, 2)
        return {"frames": host.frames, "took_s": took, "gang": host.facts["gang"]}

    def kill(self, gang: str, steps: int) -> dict[str, Any]:
        """Kill the other rank in the middle of a step; how this one comes out of it."""
        host = self._host(f"kill-{gang}")
        at: dict[str, float] = {}
        pids: list[int] = []

        def act() -> None:
            assert self.engine._gang is not None
            pids.extend(self.engine._gang.pids)
            at["killed"] = time.perf_counter()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)

        self._within_a_step(host, steps // 2, act)
        error = "none: the film was finished"
        try:
            self._run(self._film(gang, steps), host)
        except Exception as found:  # its kind is what is looked at
            error = f"{type(found).__name__}: {found}"
        over = time.perf_counter()
        left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        saved = host.restore()
        return {
            "came_out_s": round(over - at["killed"], 3),
            "error": error[:300],
            "ranks_left": left,
            "gang_ended": self.engine._gang is None,
            "frames_published": len(host.frames),
            "checkpoint_step": checkpoint.read(saved).step if saved else None,
        }

    def resume(self, gang: str, steps: int, of: str, expected: dict[str, str]) -> dict[str, Any]:
        """Go on with the film of ``of`` from its checkpoint; compare its frames with the whole one's."""
        host = self._host(f"{of}-{gang}", again=True)
        began = time.perf_counter()
        self._run(self._film(gang, steps), host)
        same = sum(host.frames.get(int(number)) == digest for number, digest in expected.items())
        return {
            "resumed_from": host.facts["resumed_from"],
            "took_s": round(time.perf_counter() - began, 2),
            "frames": len(host.frames),
            "equal_frames": same,
            "levels_apart": self._levels_apart(host, gang) if same < len(expected) else 0,
            "last_latents": self._last_latents(host, gang),
            "ranks": self.engine._gang.pids if self.engine._gang else [],
        }

    def stop(self, gang: str, steps: int, how: str) -> dict[str, Any]:
        """``park`` or ``cancel`` given in the middle of a step; how long until the engine has obeyed."""
        wish: dict[str, Any] = {}

        def obey(host: KeepingHost) -> None:
            if "at" in wish:
                raise ParkRequested if how == "park" else CancelRequested

        host = self._host(f"{how}-{gang}", obey)
        self._within_a_step(host, steps // 2, lambda: wish.update(at=time.perf_counter()))
        error = "none: the film was finished"
        try:
            self._run(self._film(gang, steps), host)
        except (ParkRequested, CancelRequested) as found:
            error = type(found).__name__
        over = time.perf_counter()
        group, times = self.engine._gang, host.steps
        return {
            "obeyed_s": round(over - wish["at"], 3),
            "step_s": round(statistics.median(b - a for a, b in itertools.pairwise(times)), 3),
            "error": error,
            "ranks_stay": bool(group and group.alive()),
            "ranks": group.pids if group else [],
            "frames_published": len(host.frames),
            "checkpoint": host.restore() is not None,
        }

    # --- inside ----------------------------------------------------------------------------------------

    def _generation(self, **wish: Any) -> Generation:
        if self.device == "cpu":
            wish.pop("attention", None)
        return generation(self.folder, self.shape, self.device, **wish)

    def _film(self, gang: str, steps: int) -> Generation:
        return self._generation(gpus=2, gang=gang, steps=steps, checkpoint_every=1)

    def _host(
        self, name: str, on_check: Callable[[KeepingHost], None] = lambda host: None, again: bool = False
    ) -> KeepingHost:
        host = KeepingHost(self.folder / name, on_check)
        if not again:
            (host.folder / "checkpoint").unlink(missing_ok=True)
        if self.slow_s:
            host.on_step = lambda step: time.sleep(self.slow_s)
        return host

    def _run(self, made: Generation, host: KeepingHost) -> None:
        if made.gpus != self.gpus:
            # the same weights twice on one device would stand in the figures of memory
            self.engine.residency.clear()
            self.gpus = made.gpus
        self.engine.run(task(made, self.threads), cast(Host, host))

    def _within_a_step(self, host: KeepingHost, step: int, act: Callable[[], None]) -> None:
        """Let ``act`` run in the middle of the step after ``step``: half a step after it has begun."""

        def soon() -> None:
            each = statistics.median(b - a for a, b in itertools.pairwise(host.steps))
            time.sleep(each / 2)
            act()

        def on_step(done: int) -> None:
            if done == step:
                threading.Thread(target=soon, daemon=True).start()
            if self.slow_s:
                time.sleep(self.slow_s)

        host.on_step = on_step

    def _against(self, name: str, gpus: int, attention: str) -> dict[str, Any]:
        """How far the latents are from those of one GPU: with the same kernel, and with the other one."""
        if gpus == 1:
            others = [other for other in self.latents if other.startswith("one ") and other != name]
        else:
            others = [other for other in (f"one {attention}", "one native") if other in self.latents][:1]
        if not others:
            return {}
        ours, theirs = self.latents[name], self.latents[others[0]]
        error = float((ours - theirs).norm() / theirs.norm())
        rms = float((ours - theirs).square().mean().sqrt())
        span = float(theirs.max() - theirs.min())
        return {
            "compared_with": others[0],
            "bit_for_bit": bool(torch.equal(ours, theirs)),
            "relative_error": error,
            "psnr_db": None if rms == 0 else round(20 * math.log10(span / rms), 1),
            "tolerance": tolerance(self.shape, self.device),
        }

    def _last_latents(self, host: KeepingHost, gang: str) -> str:
        """The newest checkpoint against the whole film's, where both are of the same step."""
        ours = checkpoint.read(host.folder / "checkpoint")
        whole = checkpoint.read(self.folder / f"whole-{gang}" / "checkpoint")
        if ours.step != whole.step:
            return f"of other steps ({ours.step}, {whole.step})"
        same = bool(torch.equal(ours.outputs[0][0], whole.outputs[0][0]))
        return f"{'equal' if same else 'NOT equal'} at step {ours.step}"

    def _levels_apart(self, host: KeepingHost, gang: str) -> int:
        import numpy as np
        from PIL import Image

        def picture(folder: Path, number: int) -> Any:
            return np.asarray(Image.open(folder / f"frame-{number}.png")).astype(int)

        whole = self.folder / f"whole-{gang}"
        return max(
            int(np.abs(picture(host.folder, number) - picture(whole, number)).max()) for number in host.frames
        )

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _peak(self) -> int | None:
        return int(torch.cuda.max_memory_allocated()) if self.device == "cuda" else None


def tolerance(shape: str, device: str) -> float:
    """Most relative error that rounding explains.

    A block adds three sums to its sequence, each rounded to half a unit of the number type's last place; sums
    in another order round otherwise, independently, so that errors grow as the root of their number. The
    guided result is g times one pass less g - 1 times the other, which multiplies the error by their norm.
    """
    unit = torch.finfo(torch.bfloat16 if device == "cuda" else torch.float32).eps / 2
    return unit * math.sqrt(3 * SHAPES[shape].layers) * math.hypot(GUIDANCE, GUIDANCE - 1)


def main() -> int:
    """Serve requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    work = Work(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    if sys.argv[3] == "cpu":
        torch.set_num_threads(1)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        action = getattr(work, request.pop("do"))
        try:
            answer = action(**request)
        except BaseException as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
        answers.write(json.dumps(answer) + "\n")
    work.engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
