"""Video spec to steps: for every seed one step that generates frames, and one that films them."""

from __future__ import annotations

from typing import Any, Final

from farm.errors import FieldFault, InvalidSpec
from farm.frame_range import FrameRange
from farm.plan import JobPlan, OutputDecl, StepPlan, TaskPlan
from jobs.encode.expand import SETTING_FIELDS, film_step
from jobs.encode.spec import FilmSettings
from jobs.kind import ExpandContext
from jobs.video.models import ModelVersion
from jobs.video.payload import OUTPUT, Generation, payload
from jobs.video.resolve import resolve
from jobs.video.spec import Film, Spec

SRGB: Final = "srgb"


def expand(spec: Spec, context: ExpandContext) -> JobPlan:
    """The plan of a video job.

    Raises :class:`farm.errors.InvalidSpec` for an unknown model, missing assets and all that
    :func:`jobs.video.resolve.resolve` refuses.
    """
    version = _version(spec, context)
    _check_assets(spec, context)
    first = resolve(spec, version)
    film = _film_settings(spec, first)
    samples = [first.model_copy(update={"seed": seed}) for seed in spec.seeds]
    # samples first: a slot that is alone keeps its model from one to the next, and films them afterwards
    plans = [_generate(spec, sample) for sample in samples]
    if film is not None:
        for sample in samples:
            suffix = f"-{sample.seed}" if len(samples) > 1 else ""
            plans.append(_film(spec, sample, {**film, "name": f"{film['name']}{suffix}"}))
    return JobPlan(plans)


def step_name(seed: int) -> str:
    """The name of the step that makes a sample."""
    return f"seed-{seed}"


def _version(spec: Spec, context: ExpandContext) -> ModelVersion:
    document = context.model(spec.model)
    if document is None:
        known = ", ".join(context.model_names()) or "none yet"
        text = f"this farm has no model {spec.model!r}; it has {known}; `farm models add` adds one"
        raise InvalidSpec(text, [FieldFault("/spec/model", text)])
    return ModelVersion.model_validate(document)


def _check_assets(spec: Spec, context: ExpandContext) -> None:
    named = {"image": spec.image, "last_image": spec.last_image, "video": spec.video}
    named |= {f"loras/{index}/path": lora.path for index, lora in enumerate(spec.loras)}
    faults = [
        FieldFault(f"/spec/{field}", f"{path!r} is not among the job's assets; attach it")
        for field, path in named.items()
        if path is not None and path not in context.assets
    ]
    if faults:
        raise InvalidSpec("; ".join(f"{f.pointer}: {f.message}" for f in faults), faults)


def _generate(spec: Spec, generation: Generation) -> StepPlan:
    bits = generation.bits
    output = OutputDecl(
        name=OUTPUT,
        format="png",
        width=generation.width,
        height=generation.height,
        channels=("R", "G", "B"),
        dtype="uint16" if bits == 16 else "uint8",
        color_space=SRGB,
    )
    requires: dict[str, Any] = {"device": "cuda"} if generation.device == "cuda" else {}
    if generation.gpus > 1:
        requires["min_gpu_count"] = generation.gpus
    return StepPlan(
        name=step_name(generation.seed),
        engine="video",
        pool="video",
        tasks=[TaskPlan(frames=FrameRange.of(range(1, generation.frames + 1)))],
        outputs=(output,),
        payload=payload(generation),
        warm_key=generation.warm_key,
        requires=requires,
        max_retries=spec.max_retries,
        timeout_s=spec.timeout_s,
        no_progress_s=spec.step_timeout_s,
    )


def _film_settings(spec: Spec, generation: Generation) -> dict[str, Any] | None:
    if spec.film is None:
        return None
    quality = spec.film.quality or {"draft": "draft", "standard": "good", "final": "high"}[spec.preset]
    look = spec.film.model_dump(mode="json", include=set(Film.model_fields) - {"quality"})
    settings = FilmSettings.model_validate(look | {"fps": generation.fps, "quality": quality})
    try:
        settings.film_size(generation.width, generation.height)
    except ValueError as error:
        raise InvalidSpec(str(error), [FieldFault("/spec/size", str(error))]) from None
    return settings.model_dump(mode="json", include=SETTING_FIELDS)


def _film(spec: Spec, generation: Generation, settings: dict[str, Any]) -> StepPlan:
    step = step_name(generation.seed)
    source = {"step": step, "output": OUTPUT, "frames": f"1-{generation.frames}"}
    return film_step(
        f"film-{generation.seed}",
        settings,
        source,
        metadata=generation.described(),
        max_retries=spec.max_retries,
    )
