"""What ``gang_gpu`` makes films with: the project's engine, a random model, a host that keeps things."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from farm.frame_range import FrameRange
from jobs.engine import TaskContext
from jobs.video import payload
from jobs.video.engine import VideoEngine
from jobs.video.facts import Facts
from jobs.video.payload import Generation, ModelRef
from jobs.video.pipelines import Loaded, device_of
from jobs.video.residency import Residency
from tests.benchmarks.wan_shapes import SHAPES, transformer
from tests.kinds.tiny_pipelines import tokenizer

GUIDANCE = 5.0
PARTS = ("tokenizer", "text_encoder", "vae", "scheduler")


def save_parts(folder: Path, shape: str) -> None:
    """All of the model but the transformer, small, once for every process: text must become the same."""
    import transformers
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler

    torch.manual_seed(0)
    config = transformers.UMT5Config(
        vocab_size=160, d_model=SHAPES[shape].text, d_kv=8, num_heads=4, d_ff=37, num_layers=1,
        dropout_rate=0.0, decoder_start_token_id=0, feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=8,
    )  # fmt: skip
    made = {
        "tokenizer": tokenizer(),
        "text_encoder": transformers.UMT5EncoderModel(config),
        "vae": AutoencoderKLWan(
            base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
            temperal_downsample=[False, True, True],
        ),
        "scheduler": UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=3.0
        ),
    }  # fmt: skip
    for name, part in made.items():
        part.save_pretrained(folder / name)


def load(generation: Generation) -> Loaded:
    """In place of :func:`jobs.video.pipelines.load`: the transformer is made where the others are read."""
    import transformers
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline

    folder, device = Path(generation.model.folder), device_of(generation)
    dtype = getattr(torch, generation.dtype)
    shape = SHAPES[generation.model.name]
    pipeline = WanPipeline(
        tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"),
        text_encoder=transformers.UMT5EncoderModel.from_pretrained(folder / "text_encoder").to(device, dtype),
        vae=AutoencoderKLWan.from_pretrained(folder / "vae").to(device),
        scheduler=UniPCMultistepScheduler.from_pretrained(folder / "scheduler"),
        transformer=transformer(shape, device, dtype),
    )
    modules = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    for module in modules:
        module.eval().requires_grad_(False)
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Loaded(generation.warm_key, pipeline, device, nbytes, movable=False)


def engine() -> VideoEngine:
    """The project's engine over that model, in every rank."""
    return VideoEngine(Residency(load=load), rank_module="tests.benchmarks.gang_rank")


def generation(folder: Path, shape: str, device: str, **wish: Any) -> Generation:
    """A film of that shape; ``wish`` sets fields, ``steps`` among them."""
    of = SHAPES[shape]
    facts = Facts(
        family="wan2.1",
        pipeline_class="WanPipeline",
        tasks=["t2v"],
        denoisers=["transformer"],
        components={},
        temporal=4,
        size_divisor=16,
        most_frames=1025,
        latent_channels=16,
        resume="exact",
        max_sequence_length=512,
        denoiser_width=of.heads * of.head,
        denoiser_layers=of.layers,
    )
    model = ModelRef(
        name=shape, digest="0" * 64, folder=str(folder), pipeline_class="WanPipeline", files=[], facts=facts
    )
    width, height = of.size
    settings: dict[str, Any] = {
        "task": "t2v", "prompt": "a red cat runs", "negative_prompt": "blurry", "frames": of.frames,
        "fps": "16", "width": width, "height": height, "seed": 5, "guidance": GUIDANCE, "flow_shift": 3.0,
        "max_sequence_length": 512, "device": device, "preview": False, "checkpoint_every": 1000,
        "dtype": "bfloat16" if device == "cuda" else "float32",
    }  # fmt: skip
    return Generation(model=model, **(settings | wish))


def task(made: Generation, threads: int) -> TaskContext:
    """Its task, all frames."""
    return TaskContext(
        task_id="task", job_id="job", step_name="seed-5", engine="video", take=1, attempt_number=1,
        frames=FrameRange.of(range(1, made.frames + 1)), spec={}, step=payload.payload(made), payload={},
        outputs=[], device={"kind": made.device, "threads": threads},
    )  # fmt: skip


class KeepingHost:
    """A slot's host for one film: its checkpoints and frames stay in ``folder``, and when each step came."""

    def __init__(self, folder: Path, on_check: Callable[[KeepingHost], None] = lambda host: None) -> None:
        self.folder, self.on_check = folder, on_check
        self.scratch = folder / "attempt" / "scratch"
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        self.log = self
        self.steps: list[float] = []
        self.total = 0
        self.frames: dict[int, str] = {}
        self.facts: dict[str, Any] = {}
        self.on_step: Callable[[int], None] = lambda step: None

    def write(self, text: str) -> None:
        """The log is not looked at."""

    def check(self) -> None:
        """The control word."""
        self.on_check(self)

    def progress(self, fraction: float, note: str = "") -> None:
        """The clock: the engine's loop is at most one step ahead of the device, so that from call to call
        passes what a step takes on it."""
        if note.startswith("step "):
            self.steps.append(time.perf_counter())
            self.on_step(int(note.split()[1]))

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Not counted."""
        yield

    @contextlib.contextmanager
    def reserve(self, nbytes: int, medium: str, purpose: str = "") -> Iterator[None]:
        """There is room."""
        yield

    @contextlib.contextmanager
    def frozen(self, pids: Sequence[int]) -> Iterator[None]:
        """Nobody freezes."""
        yield

    def keep_warm(self, *keys: str | None) -> None:
        """No scheduler."""

    def save(self, path: Path) -> None:
        """The newest checkpoint, moved at once: a process may die right after."""
        path.replace(self.folder / "checkpoint")

    def restore(self) -> Path | None:
        """The newest checkpoint."""
        path = self.folder / "checkpoint"
        return path if path.exists() else None

    def publish(self, number: int, files: Mapping[str, Path], **_: Any) -> None:
        """A frame's hash, and its file for a look at what differs."""
        path = files[payload.OUTPUT]
        self.frames[number] = hashlib.sha256(path.read_bytes()).hexdigest()
        path.replace(self.folder / f"frame-{number}.png")

    def publish_artifact(self, name: str, path: Path, media_type: str, meta: Any = None) -> str:
        """Not kept."""
        path.unlink()
        return name

    def result(self, data: Mapping[str, Any]) -> None:
        """The film's record."""
        self.facts = dict(data)

    def preview(self, png: bytes) -> None:
        """Not shown."""
