"""A spec and a model version to a settled :class:`~jobs.video.payload.Generation`, or the spec's faults.

Pure. What a model cannot make is refused here, with the nearest that it can; nothing is changed in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from farm.errors import FieldFault, InvalidSpec
from jobs.video import gates
from jobs.video.facts import Facts
from jobs.video.families import CUDA_ONLY, RING_BACKENDS, Counts, Defaults, Dtype, Task
from jobs.video.models import ModelVersion
from jobs.video.payload import Generation, ModelRef
from jobs.video.spec import Cache, Lora, Preset, Spec

STRENGTH: Final = 0.8
MAX_VOLUME: Final = 2**31
"""Pixels times frames of one sample."""
CACHE_DEFAULTS: Final[Mapping[str, dict[str, Any]]] = {
    "first_block": {"threshold": 0.05},
    "mag": {"threshold": 0.06},
    "taylorseer": {"interval": 5},
    "pyramid": {"interval": 2},
    "faster": {"interval": 2},
    "schedule": {},
}
_TASK_INPUT: Final[Mapping[Task, str]] = {
    "t2v": "prompt",
    "i2v": "image",
    "flf2v": "last_image",
    "v2v": "video",
}


class _Faults:
    """Collects faults, so that one answer names them all."""

    def __init__(self) -> None:
        self.found: list[FieldFault] = []

    def add(self, field: str, message: str) -> None:
        self.found.append(FieldFault(f"/spec/{field}", message))

    def settle(self) -> None:
        if self.found:
            text = "; ".join(f"{fault.pointer}: {fault.message}" for fault in self.found[:5])
            raise InvalidSpec(text, self.found)


def resolve(spec: Spec, version: ModelVersion) -> Generation:
    """The generation of the spec's first seed; the others differ in ``seed`` alone.

    Raises :class:`farm.errors.InvalidSpec` that names every field that the model cannot do.
    """
    facts, record, faults = version.facts, version.facts.record(), _Faults()
    task = spec.inferred_task
    _check_task(spec, facts, faults)
    defaults = preset_defaults(facts, spec.preset)
    fps = spec.fps or defaults.fps
    frames = _frames(spec, facts, task, fps, defaults.frames, faults)
    width, height = _size(spec, facts, defaults.size, faults)
    if width * height * frames > MAX_VOLUME:
        faults.add("frames", f"{frames} frames of {width}x{height} are more than one sample may have")
    steps = spec.steps or defaults.steps
    strength = (spec.strength or STRENGTH) if task == "v2v" else None
    if strength is not None and int(steps * strength) < 1:
        faults.add("strength", f"strength {strength} of {steps} steps leaves no step; at least {1 / steps:g}")
    _check_model_choices(spec, facts, faults)
    _check_machine_choices(spec, facts, faults)
    cache = _cache(spec, facts, steps, faults)
    _check_loras(spec.loras, facts, faults)
    limit = facts.max_sequence_length
    length = spec.max_sequence_length or limit
    if length > limit or (record.fixed_sequence_length and length != limit):
        faults.add("max_sequence_length", f"{version.name} takes {limit} prompt tokens; nearest: {limit}")
    wants_2 = facts.boundary_ratio is not None
    generation = Generation(
        model=ModelRef(
            name=version.name,
            digest=version.digest,
            folder=version.folder,
            pipeline_class=facts.pipeline_for(task) if task in facts.tasks else facts.pipeline_class,
            remote_code=version.remote_code,
            files=version.files,
            facts=facts,
        ),
        task=task,
        prompt=spec.prompt,
        negative_prompt=defaults.negative_prompt if spec.negative_prompt is None else spec.negative_prompt,
        image=spec.image,
        last_image=spec.last_image,
        video=spec.video,
        fit=spec.fit,
        background=spec.background,
        strength=strength,
        frames=frames,
        fps=fps,
        width=width,
        height=height,
        seed=spec.seeds[0],
        steps=steps,
        guidance=defaults.guidance if spec.guidance is None else spec.guidance,
        guidance_2=(defaults.guidance_2 if spec.guidance_2 is None else spec.guidance_2) if wants_2 else None,
        flow_shift=spec.flow_shift or defaults.flow_shift,
        scheduler=spec.scheduler,
        max_sequence_length=length,
        loras=spec.loras,
        device=spec.device,
        dtype=_dtype(spec, facts),
        quantisation=spec.quantisation,
        attention=spec.attention,
        cache=cache,
        compile=spec.compile,
        offload=spec.offload,
        vae_tiling=spec.vae_tiling,
        gpus=spec.gpus,
        gang=spec.gang,
        bits=spec.bits or (16 if spec.preset == "final" else 8),
        checkpoint_every=min(steps, spec.checkpoint_every or _spacing(steps, cache)),
        preview=spec.preview,
    )
    gates.check(generation, version.gates, spec.untested, faults.add)
    faults.settle()
    return generation


def _spacing(steps: int, cache: Cache | None) -> int:
    """Steps between checkpoints: about ten in a sample, or two where each of them empties a cache."""
    return math.ceil(steps / (10 if cache is None or cache.kind == "schedule" else 2))


def preset_defaults(facts: Facts, preset: Preset) -> Defaults:
    """What is taken where a spec of that preset names nothing: the folder's own wishes, then the family's."""
    base, saved = facts.record().defaults, facts.defaults
    size, frames, steps = saved.size or base.size, saved.frames or base.frames, saved.steps or base.steps
    draft_steps = math.ceil(steps * base.draft_steps / base.steps)
    if preset == "draft":
        # a draft is never larger than the whole, and a model trained at one size alone keeps to it
        size = size if saved.keep else min(size, base.draft_size, key=math.prod)
        frames = frames if saved.keep else min(frames, base.draft_frames)
        steps = draft_steps
    elif preset == "final":
        steps = math.ceil(steps * 1.2)
    return Defaults(
        size=facts.fixed_size or size,
        frames=min(frames, facts.most_frames),
        fps=saved.fps or base.fps,
        steps=steps,
        guidance=base.guidance if saved.guidance is None else saved.guidance,
        guidance_2=base.guidance_2 if saved.guidance_2 is None else saved.guidance_2,
        flow_shift=saved.flow_shift or base.flow_shift,
        negative_prompt=saved.negative_prompt or base.negative_prompt,
        draft_size=base.draft_size,
        draft_frames=base.draft_frames,
        draft_steps=draft_steps,
    )


def _check_task(spec: Spec, facts: Facts, faults: _Faults) -> None:
    task = spec.inferred_task
    if task in facts.tasks:
        return
    can = ", ".join(f"{one} ({_TASK_INPUT[one]})" for one in facts.tasks)
    faults.add(
        _TASK_INPUT[task] if task != "t2v" else "model", f"{spec.model} does not do {task}; it does {can}"
    )


def _frames(spec: Spec, facts: Facts, task: Task, fps: str, default: int, faults: _Faults) -> int:
    counts = facts.counts(task)
    rate = Fraction(fps)
    if spec.seconds is None:
        wanted = default if spec.frames is None else spec.frames
        if spec.frames is None and not counts.legal(wanted):
            wanted = counts.nearest(wanted)[-1]
        if not counts.legal(wanted):
            nearest = " and ".join(map(str, counts.nearest(wanted)))
            faults.add("frames", f"{spec.model} makes {_rule(counts)}, not {wanted}; nearest: {nearest}")
        return wanted
    exact = Fraction(spec.seconds).limit_denominator(100_000) * rate
    # a film of n frames lasts n / fps, or (n - 1) / fps from its first picture to its last
    for count in (exact, exact + 1):
        if count.denominator == 1 and counts.legal(int(count)):
            return int(count)
    near = counts.nearest(max(1, math.floor(exact)))
    near = near if len(near) == 2 or near[0] in (counts.least, counts.most) else counts.nearest(near[0] + 1)
    text = " and ".join(f"{n} frames ({float(n / rate):g} s)" for n in near)
    faults.add(
        "seconds",
        f"{spec.seconds:g} s at {fps} frames/s are {float(exact):g} frames, and {spec.model} makes "
        f"{_rule(counts)}; nearest: {text}",
    )
    return near[0]


def _rule(counts: Counts) -> str:
    ends = f"{counts.least} to {counts.most} frames"
    return ends if counts.every == 1 else f"{counts.describe()} frames, {ends}"


def _size(spec: Spec, facts: Facts, default: tuple[int, int], faults: _Faults) -> tuple[int, int]:
    width, height = spec.size or default
    if facts.fixed_size is not None and (width, height) != facts.fixed_size:
        only = "x".join(map(str, facts.fixed_size))
        faults.add("size", f"{spec.model} makes {only} only, not {width}x{height}; nearest: {only}")
        return facts.fixed_size
    divisor, most = facts.size_divisor, facts.record().most_pixels
    if spec.size is None:
        # a default that this very model cannot make (a larger patch than its family's) is the next one up
        limit = facts.most_side or math.inf
        up = [math.ceil(side / divisor) * divisor for side in (width, height)]
        return int(min(up[0], limit)), int(min(up[1], limit))
    if width % divisor or height % divisor:
        low, high = _sides(width, height, divisor)
        faults.add(
            "size",
            f"{spec.model} makes sides that are multiples of {divisor}, not {width}x{height}; nearest: "
            f"{low[0]}x{low[1]} and {high[0]}x{high[1]}",
        )
    elif facts.most_side is not None and max(width, height) > facts.most_side:
        limit = facts.most_side
        faults.add(
            "size",
            f"{spec.model} makes sides of at most {limit} pixels, not {width}x{height}; nearest: "
            f"{min(width, limit)}x{min(height, limit)}",
        )
    elif width * height > most:
        scale = math.sqrt(most / (width * height))
        fit = tuple(max(divisor, int(side * scale) // divisor * divisor) for side in (width, height))
        faults.add(
            "size",
            f"{width}x{height} is over {most:,} pixels, the most of {spec.model}; nearest: {fit[0]}x{fit[1]}",
        )
    return width, height


def _sides(width: int, height: int, divisor: int) -> tuple[tuple[int, int], tuple[int, int]]:
    low = tuple(max(divisor, side // divisor * divisor) for side in (width, height))
    high = tuple(math.ceil(side / divisor) * divisor for side in (width, height))
    return (low[0], low[1]), (high[0], high[1])


def _dtype(spec: Spec, facts: Facts) -> Dtype:
    # few CPUs have half-precision units: there float32 is the quicker one
    usual: Dtype = "float32" if spec.device == "cpu" else facts.record().default_dtype
    return spec.dtype or facts.defaults.dtype or usual


def _check_model_choices(spec: Spec, facts: Facts, faults: _Faults) -> None:
    record = facts.record()
    if spec.guidance_2 is not None and facts.boundary_ratio is None:
        faults.add("guidance_2", f"{spec.model} has one expert, so one guidance; leave guidance_2 out")
    if spec.flow_shift is not None and record.defaults.flow_shift is None:
        faults.add("flow_shift", f"{record.title} has no flow shift to set; leave it out")
    if spec.scheduler is not None and spec.scheduler not in record.schedulers:
        choices = ", ".join(record.schedulers) or "its own alone; leave scheduler out"
        faults.add("scheduler", f"{record.title} does not run with {spec.scheduler}; it takes {choices}")
    dtype = _dtype(spec, facts)
    if dtype not in record.dtypes:
        faults.add("dtype", f"{record.title} does not run in {dtype}; it takes {', '.join(record.dtypes)}")
    if spec.attention not in record.backends:
        faults.add(
            "attention",
            f"{record.title} does not run with {spec.attention}; it takes {', '.join(record.backends)}",
        )


def _check_machine_choices(spec: Spec, facts: Facts, faults: _Faults) -> None:
    if spec.device == "cpu":
        if spec.attention in CUDA_ONLY:
            faults.add(
                "attention", f"{spec.attention} needs an NVIDIA GPU; set device to cuda, or take native"
            )
        if spec.offload != "none":
            faults.add("offload", "on a CPU the weights are in host memory anyway; leave offload out")
        if spec.quantisation == "fp8":
            faults.add("quantisation", "fp8 needs an NVIDIA GPU; set device to cuda, or take int8")
    elif spec.quantisation == "fp8" and (dtype := _dtype(spec, facts)) != "bfloat16":
        faults.add("dtype", f"fp8 layers take bfloat16 in and out, not {dtype}; nearest: bfloat16")
    if spec.gpus == 1:
        return
    record = facts.record()
    if spec.gang == "guidance" and not record.guidance_split:
        faults.add(
            "gang",
            f"{record.title} runs both passes as one batch, so there is nothing to split; leave it out",
        )
    elif spec.gang == "ring" and spec.attention not in RING_BACKENDS:
        faults.add(
            "attention",
            f"a ring merges partial results, which {spec.attention} does not give; take "
            f"{' or '.join(RING_BACKENDS)}",
        )
    elif spec.gang != "guidance" and not record.context_parallel:
        faults.add("gpus", f"{record.title} has no context-parallel plan; nearest: 1")
    if spec.offload != "none":
        faults.add("offload", "several GPUs hold the weights; leave offload out, or set gpus to 1")


def _cache(spec: Spec, facts: Facts, steps: int, faults: _Faults) -> Cache | None:
    cache, record = spec.cache, facts.record()
    if cache is None:
        return None
    if cache.kind not in record.caches:
        choices = ", ".join(record.caches) or "none"
        faults.add("cache/kind", f"{record.title} does not take {cache.kind}; it takes {choices}")
        return cache
    beyond = [step for step in cache.skip if step >= steps]
    if beyond:
        faults.add(
            "cache/skip", f"step {beyond[0]} is not among the {steps} steps, which are 0 to {steps - 1}"
        )
    filled = CACHE_DEFAULTS[cache.kind] | cache.model_dump(exclude_none=True)
    return Cache.model_validate(filled | {"skip": sorted(set(cache.skip))})


def _check_loras(loras: list[Lora], facts: Facts, faults: _Faults) -> None:
    for index, lora in enumerate(loras):
        if lora.expert != "both" and len(facts.denoisers) == 1:
            faults.add(f"loras/{index}/expert", "this model has one expert; leave expert out")
    paths = [(lora.path, lora.expert) for lora in loras]
    if len(set(paths)) != len(paths):
        faults.add("loras", "the same LoRA stands here twice; name it once, with the sum of the weights")
