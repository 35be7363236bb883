"""Encode spec to one step with a task per film."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farm.errors import FieldFault, InvalidSpec
from farm.frame_range import FrameRange
from farm.plan import DependencyPlan, JobPlan, StepPlan, TaskPlan
from jobs.encode.spec import FilmSettings, Spec
from jobs.kind import ExpandContext

SETTING_FIELDS = set(FilmSettings.model_fields)


def expand(spec: Spec, context: ExpandContext) -> JobPlan:
    """One task per format. Raises :class:`farm.errors.InvalidSpec` that names the frames that are missing."""
    numbers = spec.numbers()
    gone = [number for number in numbers if spec.source.path(number) not in context.assets]
    if gone:
        missing = FrameRange.of(gone)
        text = (
            f"{len(missing)} of {len(numbers)} frames of {spec.source.pattern!r} are not among the job's "
            f"assets: {str(missing)[:200]} (the first is {spec.source.path(missing.first)}); "
            "attach them or take them out of frames"
        )
        raise InvalidSpec(text, [FieldFault("/spec/source/frames", text)])
    settings = spec.model_dump(mode="json", include=SETTING_FIELDS)
    source = {"assets": spec.source.model_dump(mode="json")}
    return JobPlan(
        [film_step("film", settings, source, timeout_s=spec.timeout_s, max_retries=spec.max_retries)]
    )


def film_step(
    name: str,
    settings: dict[str, Any],
    source: dict[str, Any],
    *,
    metadata: Mapping[str, Any] | None = None,
    timeout_s: float = 3600.0,
    max_retries: int = 2,
) -> StepPlan:
    """A step that makes one film per format of ``settings`` (:class:`FilmSettings` as a dictionary).

    ``source`` is ``{"assets": {"pattern", "frames"}}`` or ``{"step", "output", "frames"}``; a step as source
    is depended on whole, for a film needs every frame. ``metadata`` is embedded in the film, as JSON.
    """
    depends_on = (DependencyPlan(source["step"]),) if "step" in source else ()
    return StepPlan(
        name=name,
        engine="encode",
        pool="encode",
        tasks=[TaskPlan(payload={"format": f}, rank=i) for i, f in enumerate(settings["formats"])],
        payload={"film": settings, "source": source, **({"metadata": dict(metadata)} if metadata else {})},
        depends_on=depends_on,
        timeout_s=timeout_s,
        max_retries=max_retries,
    )
