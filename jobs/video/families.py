"""What each family of video models can do, as data: tasks, legal sizes and counts, number types, resume.

Facts are those of diffusers' own pipelines and models; what a single model's configuration files say
(:class:`jobs.video.facts.Facts`) goes before what its family says. No heavy import here: the API reads this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

FamilyName = Literal["wan2.1", "wan2.2", "ltx", "cogvideox", "generic"]
Task = Literal["t2v", "i2v", "flf2v", "v2v"]
"""Text to video; first image to video; first and last image to video; video to video."""
Dtype = Literal["bfloat16", "float16", "float32"]
Resume = Literal["exact", "restart"]
Share = Literal["guidance", "ulysses", "ring"]
"""How a gang shares a sample: the two passes of a step, or the sequence in one of two ways."""
CacheName = Literal["first_block", "taylorseer", "pyramid", "faster", "mag", "schedule"]
SchedulerName = Literal[
    "unipc", "dpmpp_2m", "dpmpp_sde", "deis", "sa_solver", "flow_euler", "flow_heun", "flow_lcm",
    "cogvideox_ddim", "cogvideox_dpm",
]  # fmt: skip
Backend = Literal[
    "native", "cudnn", "efficient", "flash_native", "math", "flash", "flash3", "flex", "sage", "xformers"
]

BACKENDS: Final[Mapping[Backend, str]] = {
    "native": "native",
    "cudnn": "_native_cudnn",
    "efficient": "_native_efficient",
    "flash_native": "_native_flash",
    "math": "_native_math",
    "flash": "flash",
    "flash3": "_flash_3",
    "flex": "flex",
    "sage": "sage",
    "xformers": "xformers",
}
"""Attention backends by our name and by diffusers' (``AttentionBackendName``)."""
CUDA_ONLY: Final = frozenset({"cudnn", "efficient", "flash_native", "flash", "flash3", "sage", "xformers"})
"""Backends that need an NVIDIA GPU. The engine probes each with a small call before it is used."""
RING_BACKENDS: Final[tuple[Backend, ...]] = ("cudnn", "flash_native", "flash")
"""Those that give the log-sum-exp, which merging partial results in a ring needs; ``native`` does not."""
APPROXIMATE: Final = frozenset({"sage"})
"""Backends that quantise inside: lossy, behind the quality gate like a cache."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Legal frame counts: ``offset + k * every``, from ``least`` to ``most``."""

    every: int = 1
    offset: int = 0
    least: int = 1
    most: int = 1025

    def legal(self, count: int) -> bool:
        """Whether the model makes exactly that many frames."""
        return self.least <= count <= self.most and (count - self.offset) % self.every == 0

    def nearest(self, count: int) -> list[int]:
        """The nearest legal counts, below and above, or the one end of the range; ascending."""
        low = self.least + (self.offset - self.least) % self.every
        high = self.most - (self.most - self.offset) % self.every
        if count <= low:
            return [low]
        if count >= high:
            return [high]
        below = count - (count - self.offset) % self.every
        return [below] if below == count else [below, below + self.every]

    def describe(self) -> str:
        """The rule in words: ``4k + 1``."""
        return "any" if self.every == 1 else f"{self.every}k + {self.offset}"


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is taken where a job names nothing. ``draft_*`` are those of the preset ``draft``."""

    size: tuple[int, int]
    frames: int
    fps: str
    steps: int
    guidance: float
    draft_size: tuple[int, int]
    draft_frames: int
    draft_steps: int
    flow_shift: float | None = None
    guidance_2: float | None = None
    negative_prompt: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A capability record.

    ``pipelines`` maps a task to the diffusers class that does it over the shared components;
    ``float32_components`` are loaded in float32 whatever dtype a job asks for, and ``float32_modules`` stay
    float32 inside the denoiser (its ``_keep_in_fp32_modules``). ``context_parallel``: the denoiser carries a
    ``_cp_plan``; ``ring`` and ``ulysses`` degrees split the sequence. ``guidance_split``: conditional and
    unconditional passes are two calls, one a GPU. ``max_sequence_length`` counts prompt tokens; longer
    prompts are refused, never cut. ``temporal`` and ``spatial`` are the VAE's compression and ``patch`` the
    denoiser's, where the model's own files do not say.
    """

    name: FamilyName
    title: str
    pipelines: Mapping[Task, str]
    denoisers: tuple[str, ...]
    temporal: int
    spatial: int
    patch: int
    defaults: Defaults
    max_sequence_length: int
    resume: Resume
    schedulers: Mapping[SchedulerName, str]
    caches: tuple[CacheName, ...] = ()
    backends: tuple[Backend, ...] = ("native",)
    default_dtype: Dtype = "bfloat16"
    dtypes: tuple[Dtype, ...] = ("bfloat16", "float16", "float32")
    float32_components: tuple[str, ...] = ()
    float32_modules: tuple[str, ...] = ()
    context_parallel: bool = False
    guidance_split: bool = False
    most_frames: int = 1025
    most_pixels: int = 1920 * 1088
    scheduler_options: Mapping[str, Any] = field(default_factory=dict)
    fixed_sequence_length: bool = False


_EVERY_BACKEND: Final[tuple[Backend, ...]] = tuple(BACKENDS)
# flash, flash3 and sage take no attention mask; LTX masks its prompt
_MASKED: Final[tuple[Backend, ...]] = ("native", "cudnn", "efficient", "math", "flex", "xformers")
_FLOW_MULTISTEP: Final[Mapping[SchedulerName, str]] = {
    "unipc": "UniPCMultistepScheduler",
    "dpmpp_2m": "DPMSolverMultistepScheduler",
    "dpmpp_sde": "DPMSolverMultistepScheduler",
    "deis": "DEISMultistepScheduler",
    "sa_solver": "SASolverScheduler",
    "flow_euler": "FlowMatchEulerDiscreteScheduler",
    "flow_heun": "FlowMatchHeunDiscreteScheduler",
    "flow_lcm": "FlowMatchLCMScheduler",
}
STOCHASTIC: Final = frozenset({"dpmpp_sde", "sa_solver", "flow_lcm", "cogvideox_dpm"})
"""Schedulers that draw noise in ``step``; they are given the job's generator."""
_WAN_FLOAT32: Final = ("rope", "time_embedder", "scale_shift_table", "norm1", "norm2", "norm3")
_WAN_CACHES: Final[tuple[CacheName, ...]] = ("first_block", "taylorseer", "schedule")
# pyramid and faster keep one state a layer, and Wan's passes with and without the prompt would take each
# other's; mag needs ratios that were measured on the very model

WAN_2_1: Final = Family(
    name="wan2.1",
    title="Wan 2.1",
    pipelines={
        "t2v": "WanPipeline",
        "i2v": "WanImageToVideoPipeline",
        "flf2v": "WanImageToVideoPipeline",
        "v2v": "WanVideoToVideoPipeline",
    },
    denoisers=("transformer",),
    temporal=4,
    spatial=8,
    patch=2,
    defaults=Defaults(
        size=(832, 480),
        frames=81,
        fps="16",
        steps=50,
        guidance=5.0,
        flow_shift=3.0,
        draft_size=(480, 272),
        draft_frames=33,
        draft_steps=20,
    ),
    max_sequence_length=512,
    resume="exact",
    schedulers=_FLOW_MULTISTEP,
    caches=_WAN_CACHES,
    backends=_EVERY_BACKEND,
    float32_components=("vae", "image_encoder"),
    float32_modules=_WAN_FLOAT32,
    context_parallel=True,
    guidance_split=True,
)

WAN_2_2: Final = replace(
    WAN_2_1,
    name="wan2.2",
    title="Wan 2.2",
    # video to video has one denoiser in diffusers, and Wan 2.2's two experts do not fit into it
    pipelines={task: cls for task, cls in WAN_2_1.pipelines.items() if task != "v2v"},
    denoisers=("transformer", "transformer_2"),
    defaults=replace(WAN_2_1.defaults, steps=40, guidance=4.0, guidance_2=3.0, draft_steps=16),
)

LTX: Final = Family(
    name="ltx",
    title="LTX-Video",
    pipelines={
        "t2v": "LTXPipeline",
        "i2v": "LTXImageToVideoPipeline",
        "flf2v": "LTXConditionPipeline",
        "v2v": "LTXConditionPipeline",
    },
    denoisers=("transformer",),
    temporal=8,
    spatial=32,
    patch=1,
    defaults=Defaults(
        size=(704, 512),
        frames=161,
        fps="25",
        steps=50,
        guidance=3.0,
        draft_size=(512, 352),
        draft_frames=49,
        draft_steps=20,
    ),
    max_sequence_length=256,
    resume="exact",
    # LTX hands its own sigmas and a shift (mu) to the scheduler
    schedulers={"flow_euler": "FlowMatchEulerDiscreteScheduler"},
    caches=("first_block", "taylorseer", "schedule"),
    backends=_MASKED,
    dtypes=("bfloat16", "float32"),
    context_parallel=True,
)

COGVIDEOX: Final = Family(
    name="cogvideox",
    title="CogVideoX",
    pipelines={
        "t2v": "CogVideoXPipeline",
        "i2v": "CogVideoXImageToVideoPipeline",
        "v2v": "CogVideoXVideoToVideoPipeline",
    },
    denoisers=("transformer",),
    temporal=4,
    spatial=8,
    patch=2,
    defaults=Defaults(
        size=(720, 480),
        frames=49,
        fps="8",
        steps=50,
        guidance=6.0,
        draft_size=(720, 480),
        draft_frames=17,
        draft_steps=20,
    ),
    max_sequence_length=226,
    fixed_sequence_length=True,
    resume="exact",
    schedulers={"cogvideox_ddim": "CogVideoXDDIMScheduler", "cogvideox_dpm": "CogVideoXDPMScheduler"},
    caches=("first_block", "taylorseer", "pyramid", "faster", "schedule"),
    backends=_EVERY_BACKEND,
    most_frames=161,
)

GENERIC: Final = Family(
    name="generic",
    title="any diffusers pipeline that makes a video",
    pipelines={},
    denoisers=("transformer", "unet"),
    temporal=1,
    spatial=8,
    patch=2,
    defaults=Defaults(
        size=(512, 512),
        frames=17,
        fps="16",
        steps=30,
        guidance=5.0,
        draft_size=(256, 256),
        draft_frames=9,
        draft_steps=12,
    ),
    max_sequence_length=512,
    resume="restart",
    schedulers={},
    caches=(),
    backends=("native",),
)

FAMILIES: Final[Mapping[FamilyName, Family]] = {
    family.name: family for family in (WAN_2_1, WAN_2_2, LTX, COGVIDEOX, GENERIC)
}
EXACT_GENERIC: Final = frozenset(
    {
        "LTX2Pipeline",
        "SkyReelsV2Pipeline",
        "MochiPipeline",
        "HunyuanVideo15Pipeline",
        "AnimateDiffPipeline",
    }
)
"""Pipelines of the generic family that were seen to resume bit for bit; the others start again."""


def family(name: FamilyName) -> Family:
    """The family of that name."""
    return FAMILIES[name]
