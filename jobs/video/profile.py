"""Where a film's time goes, stage by stage, and what each stage is bound by: ``farm profile video``.

A stage's arithmetic and its bytes are counted operator by operator; its time is taken in a run without the
counters. Their ratio, the arithmetic intensity, stands against the ridge of this very device, measured in the
same run (the roofline model of Williams, Waterman and Patterson, 2009): below the ridge memory is the limit,
above it arithmetic, unless the device waits for the host to launch its kernels.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np

from jobs.encode.film import FilmWriter
from jobs.encode.spec import FilmSettings
from jobs.video import calls, pipelines
from jobs.video.attention import Attention
from jobs.video.frames_out import FrameRing
from jobs.video.payload import Generation

torch: Any = importlib.import_module("torch")
_dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
_pytree: Any = importlib.import_module("torch.utils._pytree")

_STEPS: Final = 2
_HOST_BOUND: Final = 0.9
"""Share of a stage's time that its launches take on the host, from which on the host is the limit."""
_FAR_BELOW: Final = 0.1


@dataclass(slots=True)
class Stage:
    """One stage of a film. ``calls`` model calls take ``seconds`` together."""

    name: str
    calls: int
    seconds: float
    flop: float
    bytes: float
    intensity: float
    """Operations per byte moved between memory and the processor, counted as if nothing were fused."""
    bound: str
    """``compute``, ``memory``, ``host`` or ``copy``."""
    reached: float
    """Share of what the device could do at this intensity."""
    advice: str


@dataclass(slots=True)
class Device:
    """What the device really does, measured just before."""

    name: str
    flop_per_s: float
    bytes_per_s: float

    @property
    def ridge(self) -> float:
        """Operations per byte at which memory and arithmetic take equally long."""
        return self.flop_per_s / self.bytes_per_s


@dataclass(slots=True)
class Profile:
    """The whole report."""

    device: Device
    stages: list[Stage]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"ridge": self.device.ridge}


@dataclass(slots=True)
class _Sums:
    calls: int = 0
    seconds: float = 0.0
    launch_s: float = 0.0
    flop: float = 0.0
    bytes: float = 0.0


def profile(generation: Generation) -> Profile:
    """Make a film of two steps and tell what each stage of the whole one costs.

    Raises what loading the model raises.
    """
    pipelines.quiet_libraries()
    loaded = pipelines.load(generation)
    view = loaded.view(generation)
    dtype = getattr(torch, generation.dtype)
    denoisers = loaded.denoisers(generation)
    attention = Attention()
    attention.use(generation.attention, denoisers, loaded.device, dtype)
    device = measure(loaded.device, dtype)
    short = generation.model_copy(update={"steps": _STEPS})
    stages = {
        "encode": [
            part for name, part in view.components.items() if name.startswith("text_encoder") and part
        ],
        "denoise": denoisers,
        "decode": [view.vae.decoder],
    }

    def film(count: bool) -> tuple[dict[str, _Sums], Any]:
        sums = {name: _Sums() for name in stages}
        arguments = calls.arguments(view, short, torch.Generator().manual_seed(0), {})
        with ExitStack() as stack, torch.no_grad():
            for name, modules in stages.items():
                for module in modules:
                    stack.enter_context(_metered(module, sums[name], loaded.device, count=count))
            return sums, view(**arguments).frames

    try:
        film(count=False)
        timed, frames = film(count=False)
        counted, _ = film(count=True)
    finally:
        attention.reset(denoisers)
    reports = []
    for name in stages:
        sums, scale = timed[name], generation.steps / _STEPS if name == "denoise" else 1.0
        sums.flop, sums.bytes = counted[name].flop, counted[name].bytes
        reports.append(_stage(name, sums, scale, device, generation))
    return Profile(
        device, [*reports, _copy(frames[0], generation, loaded.device), _film(frames[0], generation)]
    )


def measure(device: Any, dtype: Any) -> Device:
    """Arithmetic of a large matrix product and speed of a large copy on the device."""
    cuda = torch.device(device).type == "cuda"
    side, megabytes = (8192, 1024) if cuda else (1024, 64)
    a = torch.randn(side, side, device=device, dtype=dtype)
    data = torch.empty(megabytes * 2**20, dtype=torch.uint8, device=device)
    target = torch.empty_like(data)
    product_s = _median_s(lambda: a @ a, device)
    copy_s = _median_s(lambda: target.copy_(data), device)
    name = torch.cuda.get_device_name(device) if cuda else "CPU"
    return Device(name, 2 * side**3 / product_s, 2 * data.numel() / copy_s)


def _median_s(action: Callable[[], Any], device: Any) -> float:
    times = []
    for _ in range(7):
        _settle(device)
        started = time.perf_counter()
        action()
        _settle(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def _settle(device: Any) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _metered(module: Any, sums: _Sums, device: Any, *, count: bool) -> Iterator[None]:
    inner, own = module.forward, module.__dict__.get("forward")
    counter = importlib.import_module("torch.utils.flop_counter").FlopCounterMode

    def forward(*args: Any, **kwargs: Any) -> Any:
        sums.calls += 1
        if count:
            traffic = _Traffic()
            with counter(display=False) as flops, traffic:
                out = inner(*args, **kwargs)
            sums.flop += flops.get_total_flops()
            sums.bytes += traffic.bytes
            return out
        _settle(device)
        started = time.perf_counter()
        out = inner(*args, **kwargs)
        sums.launch_s += time.perf_counter() - started
        _settle(device)
        sums.seconds += time.perf_counter() - started
        return out

    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


class _Traffic(_dispatch.TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    """Bytes that operators read and write, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not getattr(func, "is_view", False):
            for tensor in _pytree.tree_leaves((args, kwargs, out)):
                if isinstance(tensor, torch.Tensor):
                    self.bytes += tensor.numel() * tensor.element_size()
        return out


def _stage(name: str, sums: _Sums, scale: float, device: Device, generation: Generation) -> Stage:
    intensity = sums.flop / sums.bytes if sums.bytes else 0.0
    possible = min(device.flop_per_s, intensity * device.bytes_per_s)
    reached = sums.flop / sums.seconds / possible if sums.seconds and possible else 0.0
    if generation.device == "cuda":
        waits = sums.launch_s >= _HOST_BOUND * sums.seconds
    else:
        # the processor launches its own work: what is far below its roof was not spent on that work
        waits = reached < _FAR_BELOW
    if waits:
        bound = "host"
    else:
        bound = "memory" if intensity < device.ridge else "compute"
    return Stage(
        name=name,
        calls=round(sums.calls * scale),
        seconds=sums.seconds * scale,
        flop=sums.flop * scale,
        bytes=sums.bytes * scale,
        intensity=intensity,
        bound=bound,
        reached=reached,
        advice=_advice(name, bound, generation),
    )


def _advice(name: str, bound: str, generation: Generation) -> str:
    if name == "encode":
        return "runs once a prompt: the slot keeps its result"
    if bound == "host":
        return (
            "compile the blocks (compile: blocks): fewer launches"
            if name == "denoise"
            else "decode larger tiles"
        )
    if name == "decode":
        if generation.vae_tiling:
            return "leave vae_tiling out if it fits: tiles overlap"
        return "a VAE in bfloat16 takes two thirds of the time, where its family allows it"
    if bound == "memory":
        if generation.compile == "none":
            return "compile the blocks (compile: blocks): what lies between the products is fused"
        return "int8 or fp8 weights halve what is read"
    ways = [
        text
        for text, missing in (
            ("fp8 (quantisation: fp8)", generation.quantisation == "none" and generation.device == "cuda"),
            ("a measured step schedule (cache)", generation.cache is None),
            ("fewer steps", True),
        )
        if missing
    ]
    return "less arithmetic: " + ", ".join(ways)


def _copy(frames: Any, generation: Generation, device: Any) -> Stage:
    """Conversion to integers and the way into the ring."""
    size = generation.width * generation.height * 3 * (generation.bits // 8)
    ring = FrameRing(size + -size % 64, device)
    try:

        def all_frames() -> None:
            with torch.inference_mode():
                for begin in range(0, len(frames), ring.frames):
                    indices = list(range(begin, min(len(frames), begin + ring.frames)))
                    done = ring.fill((begin // ring.frames) % ring.chunks, frames, indices, generation.bits)
            if done is not None:
                done.synchronize()

        seconds = _median_s(all_frames, device)
    finally:
        ring.close()
    moved = float(frames.numel() * frames.element_size() + len(frames) * size)
    return Stage("copy", 1, seconds, 0.0, moved, 0.0, "copy", 0.0, "nothing: it is a small part")


def _film(frames: Any, generation: Generation) -> Stage:
    """Encoding, on the host's cores."""
    pictures = frames.permute(0, 2, 3, 1).mul(255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    settings = FilmSettings(fps=generation.fps, odd_size="crop")
    size = settings.film_size(generation.width, generation.height)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with FilmWriter(Path(folder) / "film.mp4", "mp4", settings, size, torch.get_num_threads()) as writer:
            for picture in pictures:
                writer.add(np.ascontiguousarray(picture))
        seconds = time.perf_counter() - started
    length = float(len(pictures) / Fraction(generation.fps))
    return Stage(
        "film", 1, seconds, 0.0, float(pictures.nbytes), 0.0, "host", 0.0,
        f"runs beside the next sample, in a slot of its own ({length:.1f} s of film)",
    )  # fmt: skip
