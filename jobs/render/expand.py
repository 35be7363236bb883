"""Render spec to steps.

Mitsuba: ``render``, one task per chunk of frames, then ``film`` where one is wanted. Blender looks into the
file first (:mod:`jobs.render.blender.plan`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

from farm.errors import FieldFault, InvalidSpec
from farm.frame_range import FrameRange
from farm.plan import JobPlan, StepPlan, TaskPlan
from jobs.encode.expand import SETTING_FIELDS, film_step
from jobs.kind import ExpandContext
from jobs.render.blender import plan as blender
from jobs.render.camera import OrbitCamera
from jobs.render.outputs import declare
from jobs.render.spec import DEFAULT_SAMPLES, Spec

SECONDS_PER_SAMPLE: Final = {"scalar": 1.0e-6, "cuda": 1.0e-8}
"""Rough time per pixel sample of a small path-traced scene: two CPU cores (scalar), one GPU. It only sizes
chunks; a wrong guess makes tasks shorter or longer, never wrong."""
SECONDS_PER_FRAME: Final = 0.05
"""Rough time per frame beside its samples: writing and checking the files."""
MAX_CHUNK: Final = 1000
_NOT_LOADED = {"frames", "film", "chunk_frames", "chunk_seconds", "max_retries", "frame_timeout_s"}


def expand(spec: Spec, context: ExpandContext) -> JobPlan:
    """The plan of a render job. Raises :class:`farm.errors.InvalidSpec` where the scene is not an asset."""
    if spec.scene not in context.assets:
        text = (
            f"scene {spec.scene!r} is not among the job's assets "
            f"({', '.join(sorted(context.assets)[:5]) or 'it has none'}); attach it"
        )
        raise InvalidSpec(text, [FieldFault("/spec/scene", text)])
    if spec.engine == "blender":
        ocio = spec.settings.ocio
        if ocio is not None and ocio not in context.assets:
            text = f"ocio {ocio!r} is not among the job's assets; attach it with the files that it names"
            raise InvalidSpec(text, [FieldFault("/spec/blender/ocio", text)])
        return blender.steps(spec, warm_key(spec, context))
    frames = spec.frame_range()
    seconds = estimate_seconds(spec)
    size = spec.chunk_frames or max(1, min(MAX_CHUNK, round(spec.chunk_seconds / seconds)))
    key = warm_key(spec, context)
    render = StepPlan(
        name="render",
        engine="render",
        pool="render",
        tasks=_tasks(frames, size, seconds),
        outputs=tuple(declare(o, spec.size, bool(spec.transparent)) for o in spec.outputs),
        payload={"warm_key": key, "scene_key": scene_key(context)},
        warm_key=key,
        requires={"device": "cuda"} if spec.device == "cuda" else {},
        max_retries=spec.max_retries,
        no_progress_s=spec.frame_timeout_s + 60.0,
    )
    if spec.film is None:
        return JobPlan([render])
    settings = spec.film.model_dump(mode="json", include=SETTING_FIELDS)
    source = {"step": "render", "output": spec.film_output(), "frames": str(frames)}
    return JobPlan([render, film_step("film", settings, source, max_retries=spec.max_retries)])


def expand_deferred(
    spec: Spec, step_name: str, results: list[dict[str, Any]], context: ExpandContext
) -> StepPlan:
    """A step of a Blender job, from what the step before it found."""
    return blender.expand_deferred(spec, warm_key(spec, context), step_name, results, context)


def estimate_seconds(spec: Spec) -> float:
    """Expected seconds per frame, from pixels and samples alone."""
    width, height = spec.size
    samples = spec.samples or DEFAULT_SAMPLES
    rate = SECONDS_PER_SAMPLE["cuda" if spec.device == "cuda" else "scalar"]
    return SECONDS_PER_FRAME + width * height * samples * rate


def warm_key(spec: Spec, context: ExpandContext) -> str:
    """Names what a child has loaded: the job's assets by hash and all of the spec that loading depends on."""
    # a turntable spreads its turns over the frame range, and Blender's auto camera looks at its ends
    moving = spec.engine == "blender" or isinstance(spec.resolved_camera, OrbitCamera)
    loaded = {
        "frames": spec.frames if moving else None,
        "assets": sorted((a.path, a.sha256) for a in context.assets.values()),
        "spec": spec.model_dump(mode="json", exclude=_NOT_LOADED),
    }
    text = json.dumps(loaded, sort_keys=True, separators=(",", ":"))
    return f"{spec.engine}:{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def scene_key(context: ExpandContext) -> str:
    """Names all that a job's child reads and nothing else: its assets, by path and hash."""
    read = sorted((asset.path, asset.sha256) for asset in context.assets.values())
    return hashlib.sha256(json.dumps(read, separators=(",", ":")).encode()).hexdigest()


def _tasks(frames: FrameRange, size: int, seconds: float) -> Iterator[TaskPlan]:
    for rank, chunk in enumerate(frames.chunks(size)):
        yield TaskPlan(frames=chunk, payload={"frames": str(chunk)}, rank=rank, seconds=seconds * len(chunk))
