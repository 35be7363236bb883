"""A Blender job as steps: look first, then one frame to measure by, then the rest, then the film.

``preflight`` opens the file; ``canary`` is planned from what it found and renders the middle frame;
``render`` is planned from the canary's times and publishes every frame (the canary's own is taken over). A
huge still goes ``preflight``, ``parts``, ``merge`` instead. Pure: no files, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from farm import chunks
from farm.errors import FieldFault, InvalidSpec
from farm.frame_range import FrameRange
from farm.plan import DependencyPlan, JobPlan, OutputDecl, StepPlan, TaskPlan
from jobs.encode.expand import SETTING_FIELDS, film_step
from jobs.fields import size_within
from jobs.kind import ExpandContext
from jobs.render.outputs import DATA, LINEAR, ExrOutput, declare
from jobs.render.spec import Spec

PART_NAME: Final = "part.exr"
_SHOWN: Final = 4


def steps(spec: Spec, key: str) -> JobPlan:
    """The steps of a job, all but the first still without tasks."""
    plan = [
        _step(spec, key, "preflight", tasks=[TaskPlan(payload={"stage": "preflight"})]),
    ]
    if spec.settings.parted:
        plan.append(_step(spec, key, "parts", after="preflight"))
        plan.append(_step(spec, key, "merge", after="preflight", needs="parts"))
        return JobPlan(plan)
    plan.append(_step(spec, key, "canary", after="preflight"))
    plan.append(_step(spec, key, "render", after="canary"))
    if spec.film is not None:
        film = film_step("film", {"formats": []}, {"step": "render"}, max_retries=spec.max_retries)
        film.tasks = ()
        film.deferred, film.deferred_on = True, "canary"
        plan.append(film)
    return JobPlan(plan)


def expand_deferred(
    spec: Spec, key: str, step: str, results: list[dict[str, Any]], context: ExpandContext
) -> StepPlan:
    """Tasks of ``step`` from the result of the step before it.

    Raises :class:`farm.errors.InvalidSpec` with the findings that stop the job, and for what only the file
    could tell (too many frames, a film of odd size, a compositor over parts).
    """
    (found,) = results
    report: Mapping[str, Any] = found["preflight"]
    if step in ("canary", "parts", "merge"):
        judge(spec, report)
        _check_size(report["facts"])
    facts = report["facts"]
    slim = {"facts": facts, "version": report["version"]}
    frames = frames_of(spec, facts)
    outputs = outputs_of(spec, facts)
    if step == "parts":
        _check_parts(spec, facts)
        return _step(spec, key, step, slim, tasks=_parts(spec, facts))
    if step == "merge":
        task = TaskPlan(frames=frames, payload={"stage": "merge"})
        return _step(spec, key, step, slim, tasks=[task], outputs=outputs, needs="parts")
    if len(frames) > context.max_frames:
        limit = f"{context.max_frames:,}"
        raise _refused("frames", f"the file has {len(frames):,} frames, over the limit of {limit}; name some")
    if step == "canary":
        _check_film(spec, facts)
        # it makes no frames of its own: what it renders is taken over by the step that does
        task = TaskPlan(payload={"stage": "canary", "number": canary_of(frames)})
        return _step(spec, key, step, slim, tasks=[task])
    if step == "render":
        return _step(spec, key, step, slim, tasks=_chunks(spec, frames, found), outputs=outputs)
    assert spec.film is not None
    settings = spec.film.model_dump(mode="json", include=SETTING_FIELDS)
    source = {"step": "render", "output": spec.film_output(), "frames": str(frames)}
    return film_step("film", settings, source, max_retries=spec.max_retries)


def judge(spec: Spec, report: Mapping[str, Any]) -> None:
    """Refuse a file by what the preflight found. Raises :class:`farm.errors.InvalidSpec`.

    What is missing fails the job unless ``allow_missing``; a wish that the file cannot grant always does.
    """
    errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
    missing = [finding for finding in errors if finding.get("missing")]
    # an engine that is gone, and wishes that the file cannot grant
    words = [str(finding["message"]) for finding in errors if not finding.get("missing")]
    if missing and not spec.settings.allow_missing:
        words.append(f"{_sentence(missing)}; attach what is missing, or set blender.allow_missing: true")
    if words:
        raise _refused("scene", "; ".join(words))


def frames_of(spec: Spec, facts: Mapping[str, Any]) -> FrameRange:
    """The job's frames, or the file's own. Raises :class:`farm.errors.InvalidSpec` for an empty range."""
    if spec.frames is not None:
        return spec.frame_range()
    first, last, step = (int(facts[name]) for name in ("frame_start", "frame_end", "frame_step"))
    if last < first:
        raise _refused("frames", f"the file's frame range {first} to {last} is empty; name frames")
    return FrameRange.of(range(first, last + 1, step))


def outputs_of(spec: Spec, facts: Mapping[str, Any]) -> tuple[OutputDecl, ...]:
    """What each frame's files must read back as."""
    size = (int(facts["width"]), int(facts["height"]))
    made = []
    for output in spec.outputs:
        if isinstance(output, ExrOutput):
            # depth, normals and cryptomatte stay 32 bits wide beside colours of 16
            wide = output.dtype == "float" or bool(facts["wide"])
            made.append(
                OutputDecl(
                    output.name, "exr", *size, tuple(facts["channels"]), "float32" if wide else "float16",
                    LINEAR if any(".Combined." in c for c in facts["channels"]) else DATA,
                )
            )  # fmt: skip
        else:
            alpha = bool(facts["transparent"]) and output.format == "png"
            made.append(declare(output, size, alpha))
    return tuple(made)


def canary_of(frames: FrameRange) -> int:
    """The middle frame: the most likely to show what is wrong."""
    return list(frames)[len(frames) // 2]


def child_outputs(spec: Spec, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The outputs of a frame as the child writes them."""
    return [
        {
            "name": declared.name,
            "format": declared.format,
            "dtype": "float32" if getattr(output, "dtype", "") == "float" else declared.dtype,
            "alpha": "A" in declared.channels,
            "quality": getattr(output, "quality", 90),
        }
        | ({"dtype": "float16"} if getattr(output, "dtype", "") == "half" else {})
        for output, declared in zip(spec.outputs, outputs_of(spec, facts), strict=True)
    ]


def chunk_size(spec: Spec, frame_s: float, load_s: float) -> int:
    """Frames per task, from measured seconds for a frame and for loading the scene.

    Long enough for the target time and to make loading a small share, but a slow frame travels alone.
    """
    target_s = spec.chunk_target(load_s)
    return spec.chunk_frames if spec.chunk_frames else chunks.chunk_size(frame_s, target_s or 0.0)


def _chunks(spec: Spec, frames: FrameRange, found: Mapping[str, Any]) -> Iterator[TaskPlan]:
    """The canary's own frame first (it is there already), then the first and the last, then the rest."""
    frame_s, load_s = float(found["frame_s"]), float(found["load_s"])
    ahead = list(dict.fromkeys([canary_of(frames), frames.first, frames.last]))
    size = chunk_size(spec, frame_s, load_s)
    rest = frames.without(ahead)
    if frame_s * len(ahead) >= 1.0:
        groups = [FrameRange.of([number]) for number in ahead]
        groups += [] if rest is None else list(rest.chunks(size))
    else:
        # frames of a fraction of a second: tasks of one frame would cost more than they tell
        parts = [] if rest is None else list(rest.chunks(size))
        groups = [FrameRange.of([*ahead, *(parts[0] if parts else ())]), *parts[1:]]
    payload = {"stage": "frames", "canary": ahead[0], "ahead": ahead}
    for rank, chunk in enumerate(groups):
        yield TaskPlan(frames=chunk, payload=payload, rank=rank, seconds=frame_s * len(chunk))


def _check_size(facts: Mapping[str, Any]) -> None:
    """The file's own size, and every percentage of one, has the limits of a size that a job names."""
    try:
        size_within((int(facts["width"]), int(facts["height"])))
    except ValueError as error:
        raise _refused("resolution", f"the file's {error}; name a resolution or a percentage") from None


def _check_parts(spec: Spec, facts: Mapping[str, Any]) -> None:
    if facts["engine"] != "CYCLES":
        raise _refused("blender/tiles", f"parts need Cycles, the file says {facts['engine']}")
    if facts["denoising"]:
        raise _refused(
            "blender/denoiser",
            "the file denoises, and a part cannot be by itself; set blender.denoiser: none",
        )
    if facts["adaptive"]:
        raise _refused(
            "blender/adaptive", "the file samples adaptively, which parts cannot; set blender.adaptive: false"
        )
    if facts["compositor"]:
        raise _refused(
            "blender/compositor",
            "the file's compositor needs the whole picture; set blender.compositor: false",
        )
    tiles, samples = spec.settings.tiles, spec.settings.sample_ranges
    if tiles is not None and (tiles.columns > facts["width"] or tiles.rows > facts["height"]):
        raise _refused(
            "blender/tiles", f"there are more tiles than pixels in {facts['width']}x{facts['height']}"
        )
    if samples is not None and samples > facts["samples"]:
        raise _refused(
            "blender/sample_ranges", f"{samples} ranges of {facts['samples']} samples leave some empty"
        )


def parts_of(spec: Spec, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every part: ``border`` in pixels (left, bottom, right, top from the lower left) or ``first, count``."""
    width, height = int(facts["width"]), int(facts["height"])
    tiles = spec.settings.tiles
    if tiles is not None:
        xs = [width * i // tiles.columns for i in range(tiles.columns + 1)]
        ys = [height * i // tiles.rows for i in range(tiles.rows + 1)]
        return [
            {"border": [xs[c], ys[r], xs[c + 1], ys[r + 1]]}
            for r in reversed(range(tiles.rows))
            for c in range(tiles.columns)
        ]
    ranges, total = spec.settings.sample_ranges or 1, int(facts["samples"])
    edges = [total * i // ranges for i in range(ranges + 1)]
    return [{"first": edges[i], "count": edges[i + 1] - edges[i]} for i in range(ranges)]


def _parts(spec: Spec, facts: Mapping[str, Any]) -> Iterator[TaskPlan]:
    number = next(iter(frames_of(spec, facts)))
    parts = parts_of(spec, facts)
    # the middle of the picture is the most likely to show what is wrong
    first = len(parts) // 2
    for index, part in enumerate(parts):
        payload = {"stage": "part", "number": number, "index": index, "part": part}
        yield TaskPlan(payload=payload, rank=0 if index == first else 1 + index)


def _check_film(spec: Spec, facts: Mapping[str, Any]) -> None:
    if spec.film is None:
        return
    try:
        spec.film.film_size(int(facts["width"]), int(facts["height"]))
    except ValueError as error:
        raise _refused("resolution", f"for the film, {error}") from None
    if facts["transparent"] and spec.film.background is None:
        raise _refused("film/background", "transparent frames need film.background, such as #000000")


def _step(
    spec: Spec,
    key: str,
    name: str,
    found: Mapping[str, Any] | None = None,
    *,
    after: str | None = None,
    needs: str | None = None,
    tasks: Any = (),
    outputs: tuple[OutputDecl, ...] = (),
) -> StepPlan:
    return StepPlan(
        name=name,
        engine="render",
        pool="render",
        tasks=tasks,
        outputs=outputs,
        payload={"warm_key": key, **({"preflight": found} if found else {})},
        depends_on=(DependencyPlan(needs),) if needs else (),
        deferred=after is not None,
        deferred_on=after,
        warm_key=key,
        requires=_requires(spec, found),
        max_retries=spec.max_retries,
        no_progress_s=spec.frame_timeout_s + 60.0,
    )


def _requires(spec: Spec, found: Mapping[str, Any] | None) -> dict[str, Any]:
    """The GPU, and the Blender that the job names; what the preflight ran on binds the steps after it."""
    version = found["version"] if found else spec.settings.version
    gpu: dict[str, Any] = {}
    if spec.device in ("cuda", "optix"):
        gpu = {"device": "cuda"}
    elif spec.device != "cpu":
        # no slot owns such a GPU; a node may offer it (FARM_BLENDER_DEVICES)
        gpu = {"blender_devices": spec.device}
    return gpu | ({"blender": version} if version else {})


def _sentence(findings: list[Mapping[str, Any]]) -> str:
    shown = "; ".join(str(finding["message"]) for finding in findings[:_SHOWN])
    more = len(findings) - _SHOWN
    return shown + (f"; and {more} more" if more > 0 else "")


def _refused(field: str, text: str) -> InvalidSpec:
    return InvalidSpec(text, [FieldFault(f"/spec/{field}", text)])
