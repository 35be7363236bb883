"""What a pipeline is called with for a job: every family's names for the same things."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from farm.errors import PermanentFailure
from jobs.video.payload import Generation


def arguments(
    view: Any, generation: Generation, generator: Any, pictures: Mapping[str, Any]
) -> dict[str, Any]:
    """Keyword arguments for ``view``; ``pictures`` has ``image``, ``last_image`` or ``video`` where given.

    Frames come back as ``output_type`` ``pt``: (1, frames, 3, height, width) in 0 to 1, on the device.
    Raises :class:`farm.errors.PermanentFailure` for a wish that the pipeline has no argument for.
    """
    takes = inspect.signature(type(view).__call__).parameters
    wishes: dict[str, Any] = {
        "prompt": generation.prompt,
        "negative_prompt": generation.negative_prompt,
        "width": generation.width,
        "height": generation.height,
        "num_frames": generation.frames,
        "num_inference_steps": generation.steps,
        "guidance_scale": generation.guidance,
        "generator": generator,
        "output_type": "pt",
        "max_sequence_length": generation.max_sequence_length,
    }
    if generation.guidance_2 is not None:
        wishes["guidance_scale_2"] = generation.guidance_2
    if "frame_rate" in takes:
        # LTX times its position embeddings in seconds
        fps = Fraction(generation.fps)
        wishes["frame_rate"] = int(fps) if fps.denominator == 1 else float(fps)
    if generation.strength is not None and "conditions" not in takes:
        wishes["strength"] = generation.strength
    facts = generation.model.facts
    if facts.decode_timestep is not None:
        wishes |= {"decode_timestep": facts.decode_timestep, "decode_noise_scale": facts.decode_noise_scale}
    wishes |= _pictures(view, generation, pictures, takes)
    dropped = {"max_sequence_length", "negative_prompt", "num_frames"}
    unknown = sorted(set(wishes) - set(takes) - dropped)
    if unknown:
        raise PermanentFailure(f"/model: {type(view).__name__} takes no {', '.join(unknown)}")
    if generation.negative_prompt and "negative_prompt" not in takes:
        raise PermanentFailure(f"/negative_prompt: {type(view).__name__} takes none; leave it out")
    return {name: value for name, value in wishes.items() if name in takes}


def _pictures(
    view: Any, generation: Generation, pictures: Mapping[str, Any], takes: Mapping[str, Any]
) -> dict[str, Any]:
    if "conditions" not in takes:
        return dict(pictures)
    condition = importlib.import_module("diffusers.pipelines.ltx.pipeline_ltx_condition").LTXVideoCondition
    if generation.task == "t2v":
        return {}
    if generation.task == "v2v":
        # a condition of strength s begins at a noise level of 1 - s, and its default keeps the video as it is
        kept = 1.0 - (generation.strength if generation.strength is not None else 1.0)
        return {"conditions": [condition(video=pictures["video"], frame_index=0, strength=kept)]}
    conditions = [condition(image=pictures["image"], frame_index=0)]
    if "last_image" in pictures:
        # a condition at a frame other than the first begins a group of latent frames
        temporal = generation.model.facts.temporal
        last = (generation.frames - 1) // temporal * temporal
        conditions.append(condition(image=pictures["last_image"], frame_index=last))
    return {"conditions": conditions}
