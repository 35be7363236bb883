"""What one model's own files say about it, as plain data that travels with jobs.

Found by :mod:`jobs.video.folder` when a model is added; every later check reads only this.
"""

from __future__ import annotations

from pydantic import Field

from jobs.fields import Model
from jobs.video.families import Counts, Dtype, Family, Resume, Task, family


class SavedDefaults(Model):
    """Settings that a model's own files recommend; absent ones are the family's.

    ``keep``: the model was trained at this size and count alone, so that a draft keeps them too.
    """

    keep: bool = False

    size: tuple[int, int] | None = None
    frames: int | None = None
    fps: str | None = None
    steps: int | None = None
    guidance: float | None = None
    guidance_2: float | None = None
    flow_shift: float | None = None
    negative_prompt: str | None = None
    dtype: Dtype | None = None


class Facts(Model):
    """A model, from its configuration files."""

    family: str
    pipeline_class: str
    """``_class_name`` of ``model_index.json``."""
    tasks: list[Task]
    denoisers: list[str]
    """Components that denoise, in order of use; ``transformer`` then ``transformer_2`` in Wan 2.2."""
    components: dict[str, str]
    """Component to class name, those that are there."""
    temporal: int
    """Frames per latent frame."""
    size_divisor: int
    fixed_size: tuple[int, int] | None = None
    """The one size that the model makes (learned position embeddings)."""
    most_side: int | None = None
    """Longest side in pixels (its table of positions ends there)."""
    most_frames: int
    temporal_patch: int | None = None
    latent_channels: int
    resume: Resume
    boundary_ratio: float | None = None
    max_sequence_length: int
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
