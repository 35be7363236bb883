"""What one model's own files say about it, as plain data that travels with jobs.

Found by :mod:`jobs.video.folder` when a model is added; every later check reads only this.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from jobs.encode.spec import FrameRate
from jobs.fields import MAX_SIDE, Model
from jobs.video.families import Counts, Dtype, Family, FamilyName, Resume, Task, family

Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class SavedDefaults(Model):
    """Settings that a model's own files recommend; absent ones are the family's.

    ``keep``: the model was trained at this size and count alone, so that a draft keeps them too.
    """

    keep: bool = False

    size: tuple[Side, Side] | None = None
    frames: Annotated[int, Field(ge=1, le=100_000)] | None = None
    fps: FrameRate | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    guidance: Annotated[float, Field(ge=0, le=50)] | None = None
    guidance_2: Annotated[float, Field(ge=0, le=50)] | None = None
    flow_shift: Annotated[float, Field(gt=0, le=50)] | None = None
    negative_prompt: Annotated[str, Field(max_length=10_000)] | None = None
    dtype: Dtype | None = None


class Facts(Model):
    """A model, from its configuration files."""

    family: FamilyName
    pipeline_class: str
    """``_class_name`` of ``model_index.json``."""
    tasks: list[Task] = Field(min_length=1, max_length=4)
    denoisers: list[str]
    """Components that denoise, in order of use; ``transformer`` then ``transformer_2`` in Wan 2.2."""
    components: dict[str, str]
    """Component to class name, those that are there."""
    temporal: int = Field(ge=1, le=64)
    """Frames per latent frame."""
    size_divisor: int = Field(ge=1, le=1024)
    fixed_size: tuple[Side, Side] | None = None
    """The one size that the model makes (learned position embeddings)."""
    most_side: Annotated[int, Field(ge=1)] | None = None
    """Longest side in pixels (its table of positions ends there)."""
    most_frames: int = Field(ge=1, le=100_000)
    temporal_patch: Annotated[int, Field(ge=1, le=64)] | None = None
    latent_channels: int = Field(ge=1)
    resume: Resume
    boundary_ratio: float | None = None
    max_sequence_length: int = Field(ge=1)
    decode_timestep: float | None = None
    """LTX with a VAE that denoises while it decodes: to be passed on, with ``decode_noise_scale``."""
    decode_noise_scale: float | None = None
    denoiser_width: int | None = None
    """Channels of the denoiser's blocks, and how many blocks: what a LoRA must match."""
    denoiser_layers: int | None = None
    parameters: dict[str, int] = Field(default_factory=dict)
    """Component to number of parameters."""
    weight_bytes: int = 0
    """Bytes of all safetensors."""
    defaults: SavedDefaults = SavedDefaults()
    remote_code: bool = False
    """Whether the folder brings Python of its own, which runs only where an administrator allowed it."""

    def record(self) -> Family:
        """The capability record of the family."""
        return family(self.family)

    def counts(self, task: Task) -> Counts:
        """The rule of legal frame counts for a task."""
        every, offset = self.temporal, 1
        if task == "v2v" and self.temporal_patch and self.temporal_patch > 1:
            # CogVideoX 1.5 refuses a video whose latent frames do not fill its temporal patches
            every = self.temporal * self.temporal_patch
            offset = self.temporal * (self.temporal_patch - 1) + 1
        return Counts(every=every, offset=offset, least=offset, most=self.most_frames)

    def pipeline_for(self, task: Task) -> str:
        """The diffusers class that does a task with this model's components."""
        if self.family == "generic":
            return self.pipeline_class
        if self.pipeline_class == "LTXConditionPipeline":
            return self.pipeline_class
        return self.record().pipelines[task]
