"""Video diffusion on one GPU at real shapes, random weights: ``python -m tests.benchmarks.video_gpu``.

Arguments: ``--shapes 1.3b,14b`` (Wan's sizes at 832x480, 81 frames), ``--parts speed,loop,copy``,
``--skip 12,14,16 --of 50`` (a step schedule that passed the gate on a trained model, for the last line), and
``--out FILE`` for the figures as JSON, written after each part.

- speed: one forward pass, plain diffusers against cuDNN attention, compiled blocks and fp8, in one process;
  each variant's outputs are compared with the plain ones.
- loop: the farm's loop around a real pipeline against the bare call, latents compared bit for bit; size of
  a checkpoint and how long it held the loop.
- copy: frames from the device into the ring against a plain page-locked copy of as many bytes.

Refuses where there is no GPU. Random weights say nothing about likeness: the gate is measured elsewhere.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from farm.stores import open_store
from jobs.engine import Host
from jobs.video import payload, pipelines, preview
from jobs.video.attention import probe
from jobs.video.frames_out import FrameRing
from jobs.video.loop import Loop
from tests.benchmarks.machine import Figure, judge
from tests.benchmarks.video_overhead import ControlledHost
from tests.unit.jobs.video.making import spec, step_of

DEVICE = "cuda"
WIDTH, HEIGHT, FRAMES = 832, 480, 81
LATENTS = (1, 16, (FRAMES - 1) // 4 + 1, HEIGHT // 8, WIDTH // 8)
WAN = {
    "1.3b": {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
    "14b": {"num_attention_heads": 40, "ffn_dim": 13824, "num_layers": 40},
}
FLOAT32 = ("time_embedder", "scale_shift_table", "norm1", "norm2", "norm3")
"""What Wan keeps in float32 whatever the number type."""
REPEATS = 3


def transformer(shape: str) -> Any:
    """A Wan transformer of that size with random weights on the GPU, number types as when it is loaded."""
    from diffusers import WanTransformer3DModel

    with torch.device("meta"):
        model = WanTransformer3DModel(
            attention_head_dim=128,
            in_channels=16,
            out_channels=16,
            text_dim=4096,
            freq_dim=256,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=1024,
            **WAN[shape],
        )
    rope = type(model.rope)(128, (1, 2, 2), 1024)
    model = model.to(torch.bfloat16).to_empty(device=DEVICE).eval().requires_grad_(False)
    model.rope = rope.to(DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(0)
    for name, module in model.named_modules():
        if any(part in name.split(".") for part in FLOAT32):
            module.to(torch.float32)
    for name, weight in model.named_parameters():
        if "scale_shift_table" in name:
            weight.data = weight.data.float()
        if "norm" in name and name.endswith("weight"):
            weight.fill_(1.0)
        else:
            weight.normal_(0.0, 0.02, generator=generator)
    return model


def inputs() -> dict[str, Any]:
    """One pass at the real shape: 32,760 tokens of film, 512 of text."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    made = {"device": DEVICE, "dtype": torch.bfloat16, "generator": generator}
    return {
        "hidden_states": torch.randn(LATENTS, **made),
        "timestep": torch.tensor([500], device=DEVICE),
        "encoder_hidden_states": torch.randn(1, 512, 4096, **made),
        "return_dict": False,
    }


def timed_ms(action: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, Any]:
    """Median milliseconds on the GPU, and the last result; two runs before to warm up."""
    for _ in range(2):
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


def error_of(out: Any, plain: Any) -> float:
    """Relative error, root mean square."""
    return float((out.float() - plain.float()).norm() / plain.float().norm())


def speed(shape: str, skip: list[int], of: int) -> list[Figure]:
    """A forward pass in each variant."""
    model, given = transformer(shape), inputs()
    rows: list[tuple[str, float, float]] = []
    with torch.no_grad():
        plain_ms, first = timed_ms(lambda: model(**given)[0])
        plain = first.clone()
        rows.append(("plain", plain_ms, 0.0))
        print(f"{shape} plain: {plain_ms:.1f} ms ({', '.join(probe('native', 'cuda', torch.bfloat16, 128))})")

        def variant(name: str, prepare: Callable[[], Any]) -> None:
            try:
                began = time.perf_counter()
                prepare()
                model(**given)
                torch.cuda.synchronize()
                ready_s = time.perf_counter() - began
                ms, out = timed_ms(lambda: model(**given)[0])
            except Exception as error:  # one variant's failure must not cost the others
                print(f"{shape} {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                return
            rows.append((name, ms, error_of(out, plain)))
            print(
                f"{shape} {name}: {ms:.1f} ms, {plain_ms / ms:.3f}x, error {rows[-1][2]:.4f}, "
                f"first pass after {ready_s:.0f} s",
                flush=True,
            )

        def fp8() -> None:
            small = payload.read_step(step_of(spec("wan")).payload)
            asked = small.model_copy(update={"quantisation": "fp8", "device": "cuda"})
            pipelines.quantise(SimpleNamespace(transformer=model), asked)

        variant("cuDNN attention", lambda: model.set_attention_backend("_native_cudnn"))
        variant("cuDNN attention, compiled blocks", lambda: model.compile_repeated_blocks())
        variant("cuDNN attention, compiled blocks, fp8", fp8)
    best = max(plain_ms / ms for _, ms, _ in rows)
    figures = [
        Figure(f"{shape}: plain over best, no caching", best, "x", 1.3 if shape == "14b" else None, True)
    ]
    if skip:
        share = 1 - len(skip) / of
        figures.append(
            Figure(
                f"{shape}: with {len(skip)} of {of} steps skipped", best / share, "x",
                1.8 if shape == "14b" else None, True,
            )
        )  # fmt: skip
    return figures


class StoringHost(ControlledHost):
    """Also keeps checkpoints as a slot does: hashed, synced and moved into a store."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._store = open_store(str(folder / "store"), free_space_floor=0)

    def save(self, path: Path) -> None:
        """Into the store."""
        self.saves.append(path.stat().st_size)
        self._store.put_file(path)


def loop(shape: str) -> list[Figure]:
    """The farm's loop around WanPipeline against the bare call."""
    from diffusers import WanPipeline

    steps, every = 10, 4
    small = payload.read_step(step_of(spec("wan", checkpoint_every=every)).payload)
    generation = small.model_copy(
        update={"width": WIDTH, "height": HEIGHT, "frames": FRAMES, "steps": steps, "device": "cuda"}
    )
    tiny = pipelines.load(small)
    vae = tiny.pipeline.vae.to(DEVICE)
    model = transformer(shape)
    projection = preview.fit(vae)
    assert projection is not None
    embeds = torch.randn(1, 512, 4096, device=DEVICE, dtype=torch.bfloat16)

    def view() -> Any:
        made = WanPipeline(
            tokenizer=None,
            text_encoder=None,
            vae=vae,
            scheduler=type(tiny.pipeline.scheduler).from_config(tiny.pipeline.scheduler.config),
            transformer=model,
        )
        made.set_progress_bar_config(disable=True)
        return made

    def arguments(generator: Any) -> dict[str, Any]:
        return {
            "prompt_embeds": embeds, "width": WIDTH, "height": HEIGHT, "num_frames": FRAMES,
            "num_inference_steps": steps, "guidance_scale": 1.0, "generator": generator,
            "output_type": "latent",
        }  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        host = StoringHost(Path(folder))

        def run(farm: bool, saving: bool = False) -> tuple[float, Any, Any]:
            generator = torch.Generator().manual_seed(1)
            torch.cuda.synchronize()
            started = time.perf_counter()
            if not farm:
                with torch.no_grad():
                    latents = view()(**arguments(generator)).frames
                torch.cuda.synchronize()
                return time.perf_counter() - started, latents, None
            previews = preview.Previews(projection, generation, host.preview)
            asked = generation.model_copy(update={"checkpoint_every": every if saving else 1000})
            made = Loop(cast(Host, host), asked, view(), [model], torch.device(DEVICE), {}, previews)
            latents = made.call(arguments(generator), generator)
            torch.cuda.synchronize()
            took = time.perf_counter() - started
            previews.close()
            return took, latents, made.saver

        run(False), run(True)
        ratios = []
        for _ in range(REPEATS):
            rounds = [run(farm) for farm in (False, True, True, False)]
            assert all(torch.equal(latents, rounds[0][1]) for _, latents, _ in rounds)
            ratios.append((rounds[1][0] + rounds[2][0]) / (rounds[0][0] + rounds[3][0]))
        _, latents, saver = run(True, saving=True)
        assert torch.equal(latents, rounds[0][1])
    over = (statistics.median(ratios) - 1) * 100
    print(
        f"{shape} loop: a step takes {rounds[0][0] / steps * 1e3:.1f} ms, {host.previews} previews, "
        f"{saver.saved} checkpoints of {saver.nbytes / 1e6:.1f} MB"
    )
    return [
        Figure(f"{shape}: farm overhead in a denoise step", over, "%", 1.0),
        Figure(f"{shape}: checkpoint", saver.nbytes / 1e6, "MB", 42.0),
        Figure(f"{shape}: checkpoint holds the loop", saver.longest_hold_s * 1e3, "ms", 50.0),
    ]


def copy() -> list[Figure]:
    """A film's frames into the ring, conversion included, against a plain page-locked copy."""
    frames = torch.rand(FRAMES, 3, HEIGHT, WIDTH, device=DEVICE)
    frame_bytes = WIDTH * HEIGHT * 3
    nbytes = FRAMES * frame_bytes
    chunks = -(-FRAMES // 8)
    ring = FrameRing(frame_bytes, "cuda", chunks=chunks)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=DEVICE)
    target = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def plain() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    def film() -> None:
        with torch.no_grad():
            for chunk in range(chunks):
                ring.fill(chunk, frames, list(range(chunk * 8, min(FRAMES, chunk * 8 + 8))), 8)
        torch.cuda.synchronize()

    def wall(action: Callable[[], None]) -> float:
        times = []
        for _ in range(12):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        return statistics.median(times[2:])

    before, ours, after = wall(plain), wall(film), wall(plain)
    plain_s = (before + after) / 2
    print(
        f"{nbytes / 1e6:.0f} MB: page-locked {nbytes / plain_s / 2**30:.1f} GiB/s, "
        f"frames {nbytes / ours / 2**30:.1f} GiB/s ({ours * 1e3:.2f} ms)"
    )
    ring.close()
    return [Figure("frames over page-locked copy rate", plain_s / ours, "", 0.8, True)]


def release() -> None:
    """Give the device its memory back."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.compiler.reset()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", default="1.3b,14b")
    parser.add_argument("--parts", default="copy,loop,speed")
    parser.add_argument("--skip", default="")
    parser.add_argument("--of", type=int, default=50)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs an NVIDIA GPU, and torch sees none here", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    skip = [int(step) for step in asked.skip.split(",") if step]
    figures: list[Figure] = []
    for part in asked.parts.split(","):
        for shape in ["1.3b"] if part in ("copy", "loop") else asked.shapes.split(","):
            figures += (
                copy() if part == "copy" else loop(shape) if part == "loop" else speed(shape, skip, asked.of)
            )
            release()
            if asked.out is not None:
                asked.out.write_text(json.dumps([vars_of(figure) for figure in figures], indent=2))
    return judge(figures)


def vars_of(figure: Figure) -> dict[str, Any]:
    """A figure as JSON."""
    return {"name": figure.name, "value": figure.value, "unit": figure.unit, "bound": figure.bound}


if __name__ == "__main__":
    sys.exit(main())
