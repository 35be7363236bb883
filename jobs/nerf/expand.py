"""Nerf spec to steps: pose, train, evaluate, export, views and encode, each of which restarts alone.

``views`` and ``encode`` are planned once ``pose`` knows the cameras: the size of the views and the length
of a path in a file come from there. Pure: no files, no clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from farm.errors import FieldFault, InvalidSpec
from farm.frame_range import FrameRange
from farm.plan import DependencyPlan, JobPlan, OutputDecl, StepPlan, TaskPlan
from jobs.encode.expand import SETTING_FIELDS, film_step
from jobs.kind import ExpandContext
from jobs.nerf.paths import DEFAULT_FRAMES, FilePath
from jobs.nerf.sources import ColmapSource, ImagesSource, JobSource
from jobs.nerf.spec import Spec
from jobs.render.outputs import declare

SECONDS_PER_RAY: Final = {"cpu": 1.5e-5, "cuda": 5.0e-8}
"""Rough time per pixel of a view. It only sizes chunks; a wrong guess makes tasks shorter or longer."""
SECONDS_PER_VIEW: Final = 0.05
CHUNK_SECONDS: Final = 15.0
_NOT_TRAINED: Final = {
    "path", "frames", "resolution", "outputs", "film", "exports", "chunk_frames", "max_retries", "timeout_s",
    "transparent", "mesh_resolution",
}  # fmt: skip


def expand(spec: Spec, context: ExpandContext) -> JobPlan:
    """The plan of a nerf job. Raises :class:`farm.errors.InvalidSpec` where an asset is missing."""
    _check_assets(spec, context)
    key = warm_key(spec, context)
    steps = [
        _step(spec, key, "pose", [TaskPlan(payload={"stage": "pose"})], cuda=False),
        _step(spec, key, "train", [TaskPlan(payload={"stage": "train"})], needs=("pose",)),
        _step(spec, key, "evaluate", [TaskPlan(payload={"stage": "evaluate"})], needs=("pose", "train")),
    ]
    if spec.exports:
        steps.append(
            _step(spec, key, "export", [TaskPlan(payload={"stage": "export"})], needs=("pose", "train"))
        )
    if spec.path is not None:
        views = _step(spec, key, "views", (), needs=("train",))
        views.deferred, views.deferred_on = True, "pose"
        steps.append(views)
        if spec.film is not None:
            film = film_step("encode", {"formats": []}, {"step": "views"}, max_retries=spec.max_retries)
            film.tasks, film.deferred, film.deferred_on = (), True, "pose"
            steps.append(film)
    return JobPlan(steps)


def expand_deferred(
    spec: Spec, step_name: str, results: list[dict[str, Any]], context: ExpandContext
) -> StepPlan:
    """The tasks of ``views`` or ``encode``, from what ``pose`` found.

    Raises :class:`farm.errors.InvalidSpec` for a film of odd size, and for too many frames.
    """
    found = results[0]
    frames = spec.frame_range() or FrameRange.parse(str(found.get("path_frames") or DEFAULT_FRAMES))
    if len(frames) > context.max_frames:
        text = f"the path has {len(frames):,} frames, over the limit of {context.max_frames:,}; name some"
        raise InvalidSpec(text, [FieldFault("/spec/frames", text)])
    width, height = spec.resolution or (int(found["width"]), int(found["height"]))
    if step_name == "encode":
        assert spec.film is not None
        try:
            spec.film.film_size(width, height)
        except ValueError as error:
            text = f"for the film, {error}"
            raise InvalidSpec(text, [FieldFault("/spec/resolution", text)]) from None
        settings = spec.film.model_dump(mode="json", include=SETTING_FIELDS)
        source = {"step": "views", "output": spec.film_output(), "frames": str(frames)}
        return film_step("encode", settings, source, max_retries=spec.max_retries)
    seconds = SECONDS_PER_VIEW + width * height * SECONDS_PER_RAY[spec.device]
    size = spec.chunk_frames or max(1, min(1000, round(CHUNK_SECONDS / seconds)))
    outputs = tuple(declare(output, (width, height), spec.transparent) for output in spec.outputs)
    key = warm_key(spec, context)
    plan = _step(
        spec, key, "views", _chunks(frames, size, seconds), needs=("train",), outputs=outputs,
        payload={"first": frames.first, "last": frames.last, "size": [width, height]},
    )  # fmt: skip
    plan.deferred, plan.deferred_on = True, "pose"
    return plan


def warm_key(spec: Spec, context: ExpandContext) -> str:
    """Names what a slot has loaded: the pictures by hash, and all of the spec that training depends on."""
    trained = {
        "assets": sorted((a.path, a.sha256) for a in context.assets.values()),
        "spec": spec.model_dump(mode="json", exclude=_NOT_TRAINED),
    }
    text = json.dumps(trained, sort_keys=True, separators=(",", ":"))
    return f"nerf:{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _chunks(frames: FrameRange, size: int, seconds: float) -> Iterator[TaskPlan]:
    for rank, chunk in enumerate(frames.chunks(size)):
        yield TaskPlan(frames=chunk, payload={"stage": "views"}, rank=rank, seconds=seconds * len(chunk))


def _step(
    spec: Spec,
    key: str,
    name: str,
    tasks: Any,
    *,
    needs: tuple[str, ...] = (),
    outputs: tuple[OutputDecl, ...] = (),
    payload: dict[str, Any] | None = None,
    cuda: bool = True,
) -> StepPlan:
    return StepPlan(
        name=name,
        engine="nerf",
        pool="nerf",
        tasks=tasks,
        outputs=outputs,
        payload={"warm_key": key, **(payload or {})},
        depends_on=tuple(DependencyPlan(step) for step in needs),
        warm_key=key,
        requires={"device": "cuda"} if cuda and spec.device == "cuda" else {},
        max_retries=spec.max_retries,
        timeout_s=spec.timeout_s,
        no_progress_s=1800.0,
    )


def _check_assets(spec: Spec, context: ExpandContext) -> None:
    source = spec.source
    if isinstance(source, JobSource):
        _path_file(spec, context)
        return
    path = source.path
    folder = isinstance(source, ImagesSource | ColmapSource) and not path.lower().endswith(".zip")
    inside = [name for name in context.assets if PurePosixPath(path) in PurePosixPath(name).parents]
    if path not in context.assets and not (folder and (inside or path == ".")):
        what = "no asset lies in the folder" if folder else "among the job's assets there is no"
        text = (
            f"{what} {path!r} ({', '.join(sorted(context.assets)[:5]) or 'the job has no assets'}); attach it"
        )
        raise InvalidSpec(text, [FieldFault("/spec/source/path", text)])
    _path_file(spec, context)


def _path_file(spec: Spec, context: ExpandContext) -> None:
    if isinstance(spec.path, FilePath) and spec.path.path not in context.assets:
        text = f"the camera path {spec.path.path!r} is not among the job's assets; attach it"
        raise InvalidSpec(text, [FieldFault("/spec/path/path", text)])
