"""Video diffusion on one GPU at real shapes, random weights: ``python -m tests.benchmarks.video_gpu``.

Arguments: ``--shapes 14b,1.3b`` (Wan's sizes at 832x480, 81 frames, in order of importance; ``smoke``: every
line at sizes that take seconds), ``--parts copy,engine,loop,speed`` (in the order in which they run),
``--minutes 5`` (what no longer fits is left out, and said), ``--skip 12,14,16 --of 50`` (a step schedule that
passed the gate on a trained model), and ``--out FILE`` for the figures as JSON, written after each.

- copy: frames from the device into the ring against a plain page-locked copy of as many bytes.
- engine: a tiny model through the whole engine, twice: warm start, and no second run of the text encoder.
- loop: the farm's loop around a real pipeline against the bare call, latents compared bit for bit; size of
  a checkpoint and how long it held the loop.
- speed: one forward pass, plain diffusers against cuDNN attention, compiled blocks and fp8 together; then a
  film of ``--of`` steps with the schedule; each variant's output is compared with the plain one.

Refuses where there is no GPU. Random weights say nothing about likeness: the gate is measured elsewhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch._dynamo.utils import counters

from farm.errors import PermanentFailure
from farm.stores import open_store
from jobs.engine import Host
from jobs.video import payload, pipelines, preview, saving
from jobs.video.attention import Attention
from jobs.video.engine import VideoEngine
from jobs.video.frames_out import FrameRing
from jobs.video.loop import Loop
from jobs.video.payload import Generation
from jobs.video.spec import Cache
from jobs.video.speed import compile_blocks
from tests.benchmarks.machine import Figure, judge
from tests.benchmarks.video_overhead import ControlledHost
from tests.benchmarks.video_shapes import DEVICE, SHAPES, Shape, inputs, transformer
from tests.unit.jobs.video.making import host as video_host
from tests.unit.jobs.video.making import spec, step_of, task_of

STARTED = time.monotonic()
ROUNDS = 3


def say(text: str) -> None:
    """A line with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


@dataclasses.dataclass
class Record:
    """The figures so far, in a file as soon as they are there; and the time that is left."""

    out: Path | None
    seconds: float
    figures: list[Figure] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    failed: bool = False

    def add(self, figure: Figure) -> None:
        """A figure."""
        self.figures.append(figure)
        say(str(figure))
        self._write()

    def note(self, text: str) -> None:
        """What is worth knowing beside the figures."""
        self.notes.append(text)
        say(text)
        self._write()

    def room(self, what: str, needs_s: float) -> bool:
        """Whether ``what`` still fits; says so where it does not."""
        left = self.seconds - (time.monotonic() - STARTED)
        if left < needs_s:
            self.note(f"left out: {what} needs about {needs_s:.0f} s, and {left:.0f} s are left")
        return left >= needs_s

    def attempt(self, what: str, action: Callable[[], None]) -> None:
        """Run ``action``: what fails must not cost the others."""
        try:
            action()
        except Exception as error:
            traceback.print_exc()
            self.failed = True
            self.note(f"FAILED: {what}: {type(error).__name__}: {str(error)[:400]}")

    def _write(self) -> None:
        if self.out is not None:
            rows = [dataclasses.asdict(figure) | {"kept": figure.kept} for figure in self.figures]
            self.out.write_text(json.dumps({"figures": rows, "notes": self.notes}, indent=2) + "\n")


def generation_of(shape: Shape, **changes: Any) -> Generation:
    """A film of that shape on the GPU."""
    small = payload.read_step(step_of(spec("wan")).payload)
    size = {"width": shape.width, "height": shape.height, "frames": shape.frames}
    return small.model_copy(update=size | {"device": "cuda", "dtype": "bfloat16"} | changes)


class Film:
    """A pipeline of random weights at a shape, called bare or through the farm's loop."""

    def __init__(self, shape: Shape, model: Any, steps: int) -> None:
        self.shape, self.model, self.steps = shape, model, steps
        tiny = pipelines.load(payload.read_step(step_of(spec("wan")).payload)).pipeline
        self.vae, self._scheduler = tiny.vae.to(DEVICE), tiny.scheduler
        self._embeds = torch.randn(1, 512, 4096, device=DEVICE, dtype=torch.bfloat16)
        self.projection = preview.fit(self.vae)
        assert self.projection is not None

    def view(self) -> Any:
        """A pipeline of its own for each call."""
        from diffusers import WanPipeline

        made = WanPipeline(
            tokenizer=None,
            text_encoder=None,
            vae=self.vae,
            scheduler=type(self._scheduler).from_config(self._scheduler.config),
            transformer=self.model,
        )
        made.set_progress_bar_config(disable=True)
        return made

    def arguments(self, generator: Any) -> dict[str, Any]:
        """The call's arguments; one pass a step, since guidance is 1."""
        return {
            "prompt_embeds": self._embeds, "width": self.shape.width, "height": self.shape.height,
            "num_frames": self.shape.frames, "num_inference_steps": self.steps, "guidance_scale": 1.0,
            "generator": generator, "output_type": "latent",
        }  # fmt: skip

    def bare(self) -> tuple[float, Any]:
        """Seconds and latents of the plain call."""
        generator = torch.Generator().manual_seed(1)
        torch.cuda.synchronize()
        started = time.perf_counter()
        with torch.no_grad():
            latents = self.view()(**self.arguments(generator)).frames
        torch.cuda.synchronize()
        return time.perf_counter() - started, latents

    def farm(self, host: Any, **changes: Any) -> tuple[float, Any, Loop]:
        """The same through the loop, with control word, progress and preview."""
        asked = generation_of(self.shape, **{"steps": self.steps, "checkpoint_every": 1000} | changes)
        previews = preview.Previews(self.projection, asked, host.preview)
        try:
            generator = torch.Generator().manual_seed(1)
            torch.cuda.synchronize()
            started = time.perf_counter()
            made = Loop(
                cast(Host, host), asked, self.view(), [self.model], torch.device(DEVICE), {}, previews
            )
            latents = made.call(self.arguments(generator), generator)
            torch.cuda.synchronize()
            return time.perf_counter() - started, latents, made
        finally:
            previews.close()


class StoringHost(ControlledHost):
    """Also keeps checkpoints as a slot does: hashed, synced and moved into a store."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._store = open_store(str(folder / "store"), free_space_floor=0)

    def save(self, path: Path) -> None:
        """Into the store."""
        self.saves.append(path.stat().st_size)
        self._store.put_file(path)


def timed_ms(action: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median milliseconds on the GPU, and the last result; one run before to warm up."""
    out = action()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        out = action()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times), out


def graphs() -> str:
    """What torch compiled: more than a few graphs, or breaks in them, are a fault."""
    return f"{counters['stats']['unique_graphs']} graphs, {sum(counters['graph_break'].values())} breaks"


def error_of(out: Any, plain: Any) -> float:
    """Relative error, root mean square."""
    return float((out.float() - plain.float()).norm() / plain.float().norm())


def speed(record: Record, shape: Shape, skip: list[int], of: int) -> None:
    """A pass plainly and in the engine's fastest form; a film with the schedule; then what is between."""
    small = shape.name == "smoke"
    repeats = 2 if shape.name == "14b" else 3
    linear, attention = shape.tera_flop
    model, given = transformer(shape), inputs(shape)
    torch.cuda.synchronize()
    say(
        f"{shape.name}: weights made; a pass is {linear:.0f} TFLOP of linear layers and "
        f"{attention:.0f} of attention"
    )
    with torch.no_grad():
        plain_ms, first = timed_ms(lambda: model(**given)[0], repeats)
        plain = first.clone()
        record.note(f"{shape.name} plain: {plain_ms:.1f} ms")
        film_s = (of - len(skip)) * plain_ms / 1e3

        def attend(backend: Any) -> list[str]:
            return Attention().use(backend, [model], torch.device(DEVICE), torch.bfloat16)

        def measure(name: str, backend: Any, quantisation: str, compiled: bool) -> float:
            """Milliseconds of the model as the engine would set it up."""
            began = time.perf_counter()
            try:
                ran = attend(backend)
            except PermanentFailure as error:
                record.note(f"{shape.name} {name}: {error}; measured with native attention")
                ran = attend("native")
            if quantisation != "none":
                asked = generation_of(shape, quantisation=quantisation)
                pipelines.quantise(SimpleNamespace(transformer=model), asked)
            if compiled:
                compile_blocks(model)
            model(**given)
            torch.cuda.synchronize()
            ready_s = time.perf_counter() - began
            ms, out = timed_ms(lambda: model(**given)[0], repeats)
            record.note(
                f"{shape.name} {name} ({', '.join(ran)}): {ms:.1f} ms, {plain_ms / ms:.3f}x, "
                f"error {error_of(out, plain):.4f}, first pass after {ready_s:.0f} s"
                + (f", {graphs()}" if compiled else "")
            )
            return ms

        # the fastest first: should the time run out, the figure that is asked for is there
        if not record.room(f"{shape.name} at its fastest", 10 if small else 45):
            return
        best = measure("cuDNN attention, fp8, compiled blocks", "cudnn", "fp8", True)
        bound = 1.3 if shape.name == "14b" else None
        record.add(Figure(f"{shape.name}: plain over fastest, no caching", plain_ms / best, "x", bound, True))
        if skip and record.room(f"{shape.name} film of {of} steps with the schedule", film_s + 5):
            with tempfile.TemporaryDirectory() as folder:
                film = Film(shape, model, of)
                cache = Cache(kind="schedule", skip=skip)
                took, _, _ = film.farm(ControlledHost(Path(folder)), cache=cache)
            bound = 1.8 if shape.name == "14b" else None
            record.add(
                Figure(
                    f"{shape.name}: plain over fastest, {len(skip)} of {of} steps skipped",
                    plain_ms * of / 1e3 / took, "x", bound, True,
                )
            )  # fmt: skip
        del model
        release()
        if not record.room(f"{shape.name} compiled without fp8", 10 if small else 45):
            return
        model = transformer(shape)
        record.attempt("cuDNN attention", lambda: _none(measure("cuDNN attention", "cudnn", "none", False)))
        record.attempt(
            "cuDNN attention, compiled",
            lambda: _none(measure("cuDNN attention, compiled blocks", "cudnn", "none", True)),
        )
        if small:
            model = transformer(shape)
            record.attempt("int8", lambda: _none(measure("int8, compiled", "native", "int8", True)))


def _none(value: float) -> None:
    del value


def loop(record: Record, shape: Shape) -> None:
    """The farm's loop around WanPipeline against the bare call."""
    steps = 4
    film = Film(shape, transformer(shape), steps)
    with tempfile.TemporaryDirectory() as folder:
        host = StoringHost(Path(folder))
        film.bare(), film.farm(host)
        say(f"{shape.name} loop: warm")
        ratios, step_ms = [], []
        for _ in range(ROUNDS):
            plain, farm, again, last = film.bare(), film.farm(host), film.farm(host), film.bare()
            assert all(torch.equal(one[1], plain[1]) for one in (farm, again, last))
            ratios.append((farm[0] + again[0]) / (plain[0] + last[0]))
            step_ms.append((plain[0] + last[0]) / (2 * steps) * 1e3)
        over = (statistics.median(ratios) - 1) * 100
        record.note(
            f"{shape.name} loop: a step takes {statistics.median(step_ms):.1f} ms, {host.previews} previews, "
            f"ratios {', '.join(f'{ratio:.4f}' for ratio in ratios)}"
        )
        bound = None if shape.name == "smoke" else 1.0
        record.add(Figure(f"{shape.name}: farm overhead in a denoise step", over, "%", bound))
        # as often as it can be, rather than as seldom as it may
        spacing, cost = saving._LEAST_SPACING_S, saving._COST
        saving._LEAST_SPACING_S, saving._COST = 0.0, 1e9  # type: ignore[misc]
        try:
            film.steps = 8
            expected = film.bare()[1]
            _, latents, made = film.farm(host, checkpoint_every=2)
        finally:
            saving._LEAST_SPACING_S, saving._COST = spacing, cost  # type: ignore[misc]
        assert torch.equal(latents, expected)
    saver = made.saver
    assert saver.saved >= 1, "no checkpoint was taken"
    record.note(f"{shape.name} loop: {saver.saved} checkpoints")
    record.add(Figure(f"{shape.name}: checkpoint", saver.nbytes / 1e6, "MB", 42.0))
    record.add(Figure(f"{shape.name}: checkpoint holds the loop", saver.longest_hold_s * 1e3, "ms", 50.0))
    first = (made.watch.first_pass or float("inf")) - made.watch.started
    record.add(Figure(f"{shape.name}: from the call to the first pass", first, "s", 1.0))


def engine(record: Record) -> None:
    """A tiny model through the engine on the GPU: frames out, warm start, the encoder not asked twice."""
    made = VideoEngine()
    try:
        with tempfile.TemporaryDirectory() as folder:
            made.open(at := video_host(Path(folder)))
            encoded: list[int] = []
            hashes: list[list[bytes]] = []
            for seed, bits, moved in ((1, 8, False), (2, 16, False), (2, 16, True)):
                at.saves.clear()
                at.published.clear()
                if moved:
                    # out of the way into page-locked memory, and back
                    [loaded] = made.residency._kept.values()
                    loaded.move("cpu")
                    loaded.resident = False
                given = spec("wan", seeds=[seed], bits=bits, device="cuda", dtype="bfloat16")
                task = task_of(at, given)
                made.run(dataclasses.replace(task, device={"kind": "cuda", "threads": 2}), at)
                encoded.append(made.prompts.misses)
                hashes.append([one.files["frame.png"].read_bytes() for one in at.published.values()])
                say(f"engine: seed {seed}, {bits} bits{', after a stay in host memory' if moved else ''}")
            facts = at.results["seed-2"][0]
            record.note(f"engine: {facts['attention']}, seconds {facts['seconds']}, {len(hashes[1])} frames")
            assert [len(one) for one in hashes] == [5, 5, 5]
            assert hashes[1] == hashes[2], "a model that came back makes other frames"
            assert made.prompts.hits > 0
    finally:
        made.close()
    record.add(Figure("warm start: a task to its first pass", facts["to_first_pass_s"], "s", 1.0))
    record.add(Figure("text encoder runs for a known prompt", encoded[1] - encoded[0], "", 0.0))


def copy(record: Record, shape: Shape) -> None:
    """A film's frames into the ring, conversion included, against a plain page-locked copy."""
    frames = torch.rand(shape.frames, 3, shape.height, shape.width, device=DEVICE)
    frame_bytes = shape.width * shape.height * 3
    nbytes = shape.frames * frame_bytes
    chunks = -(-shape.frames // 8)
    ring = FrameRing(frame_bytes, "cuda", chunks=chunks)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=DEVICE)
    target = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def plain() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    def film() -> None:
        with torch.no_grad():
            for chunk in range(chunks):
                ring.fill(chunk, frames, list(range(chunk * 8, min(shape.frames, chunk * 8 + 8))), 8)
        torch.cuda.synchronize()

    def wall(action: Callable[[], None]) -> float:
        times = []
        for _ in range(22):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        return statistics.median(times[2:])

    try:
        before, ours, after = wall(plain), wall(film), wall(plain)
        wanted = frames.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
        sizes = [min(8, shape.frames - chunk * 8) for chunk in range(chunks)]
        there = torch.cat([ring.chunk(i, torch.uint8, (n, *wanted.shape[1:])) for i, n in enumerate(sizes)])
        assert torch.equal(there, wanted), "the ring holds other frames"
    finally:
        ring.close()
    plain_s = (before + after) / 2
    record.note(
        f"{nbytes / 1e6:.0f} MB: page-locked {nbytes / plain_s / 2**30:.1f} GiB/s, "
        f"frames {nbytes / ours / 2**30:.1f} GiB/s ({ours * 1e3:.2f} ms)"
    )
    bound = None if shape.name == "smoke" else 0.8
    record.add(Figure("frames over page-locked copy rate", plain_s / ours, "", bound, True))


def release() -> None:
    """Give the device its memory back."""
    torch.compiler.reset()
    counters.clear()
    gc.collect()
    torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", default="14b,1.3b")
    parser.add_argument("--parts", default="copy,engine,loop,speed")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--skip", default="")
    parser.add_argument("--of", type=int, default=50)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs an NVIDIA GPU, and torch sees none here", file=sys.stderr)
        return 2
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    pipelines.quiet_libraries()
    record = Record(asked.out, asked.minutes * 60)
    skip = [int(step) for step in asked.skip.split(",") if step]
    shapes = [SHAPES[name] for name in asked.shapes.split(",")]
    one = SHAPES["smoke" if "smoke" in asked.shapes else "1.3b"]
    for part in asked.parts.split(","):
        runs: list[tuple[str, float, Callable[[], None]]]
        if part == "copy":
            runs = [("copy", 5, lambda: copy(record, one))]
        elif part == "engine":
            runs = [("engine", 10, lambda: engine(record))]
        elif part == "loop":
            runs = [("loop", 5 if one.name == "smoke" else 60, lambda: loop(record, one))]
        elif part == "speed":
            runs = [
                (f"speed {shape.name}", 5 if shape.name == "smoke" else 60,
                 lambda shape=shape: speed(record, shape, skip, asked.of))
                for shape in shapes
            ]  # fmt: skip
        else:
            parser.error(f"no part {part}")
        for what, needs_s, action in runs:
            if record.room(what, needs_s):
                say(f"{what} begins")
                record.attempt(what, action)
                release()
    return max(judge(record.figures), int(record.failed))


if __name__ == "__main__":
    sys.exit(main())
