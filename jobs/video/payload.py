"""What a generate step carries to its engine: everything resolved, nothing left to choose.

``expand`` fills it in; it is the step's payload under ``generation``, the same for every attempt and take of
the step. The model's digest in it never moves, whatever its alias does later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from jobs.engine import TaskContext
from jobs.fields import Model
from jobs.video import gates
from jobs.video.facts import Facts
from jobs.video.families import Backend, Dtype, Family, SchedulerName, Share, Task
from jobs.video.models import ModelFile
from jobs.video.spec import Cache, Compile, Fit, Lora, Offload, Quantisation

KEY: Final = "generation"
OUTPUT: Final = "frame.png"
"""Declared output of a generate step: one PNG a frame, 8 or 16 bits a channel, sRGB."""


class ModelRef(Model):
    """One immutable version of a model, and where its folder is."""

    name: str
    digest: str
    """SHA-256 over the paths and hashes of all of its files (:func:`jobs.video.models.digest_of`)."""
    folder: str
    pipeline_class: str
    """The class for this step's task."""
    remote_code: bool = False
    """An administrator allowed this version's own Python."""
    files: list[ModelFile]
    """All of its files: check them with :func:`jobs.video.models.check_folder` before loading."""
    facts: Facts

    def record(self) -> Family:
        """The capability record of its family."""
        return self.facts.record()


class Generation(Model):
    """One film to make: a model, a prompt, one seed, and every setting."""

    model: ModelRef
    task: Task
    prompt: str
    negative_prompt: str
    image: str | None = None
    """Job path of the first image; likewise ``last_image`` and ``video``."""
    last_image: str | None = None
    video: str | None = None
    fit: Fit = "scale"
    background: str | None = None
    strength: float | None = None
    """Video to video: how much is made anew, over 0 to 1."""

    frames: int
    """Frames to make; they are numbered 1 to ``frames``."""
    fps: str
    width: int
    height: int

    seed: int
    steps: int
    guidance: float
    guidance_2: float | None = None
    """Guidance of the low-noise expert (Wan 2.2)."""
    flow_shift: float | None = None
    scheduler: SchedulerName | None = None
    """``None``: the scheduler that the folder brings."""
    max_sequence_length: int
    loras: list[Lora] = []

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Dtype
    quantisation: Quantisation = "none"
    attention: Backend = "native"
    cache: Cache | None = None
    compile: Compile = "none"
    offload: Offload = "none"
    vae_tiling: bool = False
    gpus: int = 1
    gang: Literal["auto"] | Share = "auto"
    """With several GPUs: how they share (:mod:`jobs.video.gang_choice`)."""

    bits: Literal[8, 16] = 8
    """Bits a channel of the declared frames."""
    checkpoint_every: int
    """Steps between checkpoints; caches are cleared there in every run, so that resuming changes nothing."""
    preview: bool = True

    @property
    def warm_key(self) -> str:
        """What a slot has loaded after this: the version, and how its weights are held."""
        held = (self.dtype, self.quantisation, self.offload, self.compile, str(self.gpus))
        return ":".join(("video", self.model.digest[:24], *held))

    def described(self) -> dict[str, Any]:
        """What makes this film again: embedded in frames and film, and in the sidecar; no machine's paths."""
        settings = self.model_dump(mode="json", exclude={"model", "preview"}, exclude_none=True)
        return {
            "software": "Stillframe",
            "model": f"{self.model.name}@{self.model.digest}",
            "family": self.model.facts.family,
            "pipeline": self.model.pipeline_class,
            "lossy": gates.choice(self),
            **settings,
        }


def payload(generation: Generation) -> dict[str, Any]:
    """The step's payload."""
    return {KEY: generation.model_dump(mode="json"), "warm_key": generation.warm_key}


def read(task: TaskContext) -> Generation:
    """What a task is asked to make. Raises :class:`pydantic.ValidationError` for a payload not made here."""
    return read_step(task.step)


def read_step(step: Mapping[str, Any]) -> Generation:
    """The same from a step's payload."""
    return Generation.model_validate(step[KEY])
