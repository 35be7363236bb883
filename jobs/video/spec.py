"""What can be asked of a video job."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from jobs.encode.spec import FilmLook, FrameRate
from jobs.fields import Colour, JobPath, Model, Resolution, fault
from jobs.video.families import Backend, CacheName, Dtype, SchedulerName, Task

Preset = Literal["draft", "standard", "final"]
Fit = Literal["scale", "crop", "pad", "stretch"]
Quantisation = Literal["none", "fp8", "int8"]
Compile = Literal["none", "blocks"]
Offload = Literal["none", "model", "group"]
Expert = Literal["both", "high_noise", "low_noise"]
MAX_PROMPT: Final = 10_000
"""Characters; the model's own limit in tokens is checked as well, by the engine."""
MAX_SEED: Final = 2**63 - 1
_CACHE_FIELD: Final[dict[CacheName, str]] = {
    "first_block": "threshold",
    "mag": "threshold",
    "taylorseer": "interval",
    "pyramid": "interval",
    "faster": "interval",
    "schedule": "skip",
}


class Lora(Model):
    """Low-rank weights on top of the model, for this job alone."""

    path: JobPath = Field(description="Asset with the LoRA, a .safetensors file.")
    weight: float = Field(default=1.0, ge=-4, le=4, description="Strength; 1 is as trained.")
    expert: Expert = Field(
        default="both", description="Wan 2.2: which expert it changes; other models have one, both."
    )

    @model_validator(mode="after")
    def _safetensors(self) -> Self:
        if not self.path.lower().endswith(".safetensors"):
            raise fault("path", f"{self.path[:80]!r} is no .safetensors file; other formats can run code")
        return self


class Cache(Model):
    """Skip work that changes little from step to step: lossy, hence behind the model's quality gate."""

    kind: CacheName = Field(description="How steps are saved; which of them a model takes, its family says.")
    threshold: float | None = Field(
        default=None, gt=0, lt=1, description="first_block, mag: relative change below which work is skipped."
    )
    interval: int | None = Field(
        default=None, ge=2, le=16, description="taylorseer, pyramid, faster: steps between full passes."
    )
    skip: list[Annotated[int, Field(ge=1, le=999)]] = Field(
        default=[],
        max_length=500,
        description="schedule: step numbers (0 is the first) whose output is taken from the step before.",
    )

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        wants = {"first_block": "threshold", "mag": "threshold", "schedule": "skip"}.get(
            self.kind, "interval"
        )
        for name in ("threshold", "interval", "skip"):
            value = getattr(self, name)
            if name != wants and value not in (None, []):
                raise fault(name, f"{name} is not for {self.kind}; it takes {wants}")
        if wants == "skip" and not self.skip:
            raise fault("skip", "a schedule needs the step numbers to skip, such as [10, 12, 14]")
        return self


class Film(FilmLook):
    """The film of a sample; its frame rate is the job's."""

    quality: Literal["draft", "good", "high"] | None = Field(  # type: ignore[assignment]
        default=None, description="Speed and constant quality; left out: by the job's preset."
    )


class Spec(Model):
    """A video job: one prompt and one model; a film and its frames for every seed."""

    model: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,63}(@[0-9a-f]{8,64})?$",
        description="Name of a model of this farm; name@digest pins a version.",
    )
    prompt: str = Field(min_length=1, max_length=MAX_PROMPT, description="What is to be seen.")
    negative_prompt: str | None = Field(
        default=None, max_length=MAX_PROMPT, description="What is not; left out: what the model recommends."
    )
    task: Task | None = Field(
        default=None,
        description="t2v, i2v (image), flf2v (image and last_image) or v2v (video); left out: by the inputs.",
    )
    image: JobPath | None = Field(default=None, description="Asset that the film starts from.")
    last_image: JobPath | None = Field(default=None, description="Asset that the film ends in.")
    video: JobPath | None = Field(default=None, description="Asset with the video that is made over.")
    fit: Fit = Field(
        default="scale",
        description=(
            "An input of another shape: scale refuses it (only the scale may differ), crop cuts it about the "
            "centre, pad puts black beside it, stretch distorts it."
        ),
    )
    background: Colour | None = Field(
        default=None, description="Colour (#rrggbb) under a transparent image; without it that is refused."
    )
    strength: float | None = Field(
        default=None, gt=0, le=1, description="v2v: how much is made anew; left out: 0.8."
    )
    preset: Preset = Field(
        default="standard",
        description="Where fields are left out: draft is small and quick, final slow, 16 bit and lossless.",
    )
    frames: int | None = Field(default=None, description="Number of frames; or say `seconds`.")
    seconds: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Length; seconds times fps, or one frame more, must be a count that the model makes.",
    )
    fps: FrameRate | None = Field(default=None, description="Frames per second; left out: the model's.")
    size: Resolution | None = Field(
        default=None, description="Width and height in pixels, or 832x480; left out: the preset's."
    )
    steps: int | None = Field(default=None, ge=1, le=1000, description="Denoise steps.")
    guidance: float | None = Field(
        default=None, ge=0, le=50, description="How closely the prompt is kept to."
    )
    guidance_2: float | None = Field(
        default=None, ge=0, le=50, description="Guidance of the low-noise expert (Wan 2.2)."
    )
    flow_shift: float | None = Field(
        default=None, gt=0, le=50, description="Shift of the noise levels; larger for larger pictures."
    )
    scheduler: SchedulerName | None = Field(default=None, description="Left out: the model's own.")
    seeds: list[Annotated[int, Field(ge=0, le=MAX_SEED)]] = Field(
        default=[0], min_length=1, max_length=256, description="One sample, a step of its own, for each."
    )
    loras: list[Lora] = Field(default=[], max_length=8, description="LoRAs, applied in this order.")
    max_sequence_length: int | None = Field(
        default=None, ge=1, le=4096, description="Prompt tokens that the text encoder sees."
    )

    device: Literal["cpu", "cuda"] = Field(
        default="cpu", description="What runs it; what is not there fails, never falls back."
    )
    dtype: Dtype | None = Field(
        default=None, description="Number type; left out: the model's own on a GPU, float32 on a CPU."
    )
    quantisation: Quantisation = Field(default="none", description="fp8 or int8 linear layers (lossy).")
    attention: Backend = Field(default="native", description="Attention kernel; probed before it is used.")
    cache: Cache | None = Field(default=None, description="Step caching (lossy).")
    untested: bool = Field(
        default=False,
        description="Take lossy choices (cache, quantisation) that were never measured on this model.",
    )
    compile: Compile = Field(default="none", description="blocks: the repeated blocks, compiled once.")
    offload: Offload = Field(
        default="none", description="Keep weights in host memory: whole models, or groups of layers."
    )
    vae_tiling: bool = Field(default=False, description="Decode in tiles: less memory, slower.")
    gpus: int = Field(default=1, ge=1, le=8, description="GPUs that work on one sample together.")
    gang: Literal["auto", "guidance", "ulysses", "ring"] = Field(
        default="auto",
        description=(
            "How several GPUs share a sample: guidance (two: one with the prompt, one without), or the "
            "sequence, by heads (ulysses) or in a ring; auto takes the best for model and size."
        ),
    )

    film: Film | None = Field(default=Film(), description="Film of each sample; null for frames alone.")
    bits: Literal[8, 16] | None = Field(
        default=None, description="Bits a channel of the frames; left out: 8 (final: 16)."
    )
    checkpoint_every: int | None = Field(
        default=None, ge=1, le=1000, description="Steps between checkpoints; left out: about ten a sample."
    )
    preview: bool = Field(default=True, description="Show thumbnails while it denoises.")
    timeout_s: float = Field(default=86_400.0, gt=0, le=604_800, description="Longest time of one sample.")
    step_timeout_s: float = Field(
        default=900.0, gt=0, le=86_400, description="Longest time without a step, the loading included."
    )
    max_retries: int = Field(default=2, ge=0, le=20, description="Retries after the first attempt.")

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if not self.prompt.strip():
            raise fault("prompt", "the prompt is blank; say what is to be seen")
        if self.frames is not None and self.seconds is not None:
            raise fault("seconds", "give frames or seconds, not both")
        if len(set(self.seeds)) != len(self.seeds):
            raise fault("seeds", "seeds names the same seed twice; each is one sample")
        if self.video and (self.image or self.last_image):
            raise fault("video", "video goes with no image; v2v takes the video alone")
        if self.last_image and not self.image:
            raise fault("last_image", "last_image needs image, the first one")
        if self.task is not None and self.task != self.inferred_task:
            raise fault(
                "task", f"task {self.task} does not fit the inputs, which are those of {self.inferred_task}"
            )
        if self.strength is not None and not self.video:
            raise fault("strength", "strength is for video to video; attach a video, or leave it out")
        if self.gang == "guidance" and self.gpus != 2:
            raise fault("gang", "the guidance split is for two GPUs; set gpus to 2")
        if self.gang != "auto" and self.gpus == 1:
            raise fault("gang", f"one GPU has nobody to share with; set gpus to 2 for {self.gang}")
        if self.gpus > 1 and self.device != "cuda":
            raise fault("gpus", "several GPUs need device: cuda")
        return self

    @property
    def inferred_task(self) -> Task:
        """The task that the inputs make."""
        if self.video:
            return "v2v"
        if self.last_image:
            return "flf2v"
        return "i2v" if self.image else "t2v"
