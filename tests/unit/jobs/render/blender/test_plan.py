"""Blender jobs as steps, from what preflight and canary found: pure."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import InvalidSpec
from farm.plan import JobPlan, StepPlan
from jobs.kind import Asset, ExpandContext
from jobs.registry import kind
from jobs.render.blender.plan import chunk_size, parts_of
from jobs.render.spec import Spec

CONTEXT = ExpandContext(assets={"shot.blend": Asset("shot.blend", "a" * 64, 10)}, max_frames=1000)
FACTS: dict[str, Any] = {
    "engine": "CYCLES", "frame_start": -2, "frame_end": 5, "frame_step": 1, "width": 100, "height": 50,
    "samples": 10, "transparent": False, "compositor": False, "denoising": False, "adaptive": False,
    "channels": ["ViewLayer.Combined.R", "ViewLayer.Depth.Z"], "wide": True, "view_layers": ["ViewLayer"],
}  # fmt: skip


def spec(**fields: Any) -> Spec:
    parsed = kind("render").parse({"scene": "shot.blend", **fields})
    assert isinstance(parsed, Spec)
    return parsed


def plan(**fields: Any) -> JobPlan:
    return kind("render").expand(spec(**fields), CONTEXT)


def report(findings: tuple[dict[str, Any], ...] = (), **facts: Any) -> dict[str, Any]:
    return {"findings": list(findings), "facts": FACTS | facts, "fault": None, "version": "4.5"}


def deferred(step: str, found: dict[str, Any], **fields: Any) -> StepPlan:
    return kind("render").expand_deferred(spec(**fields), step, [found], CONTEXT)


def after_preflight(step: str = "canary", facts: Any = None, findings: Any = (), **fields: Any) -> StepPlan:
    return deferred(step, {"preflight": report(findings, **(facts or {}))}, **fields)


def after_canary(frame_s: float, load_s: float, step: str = "render", **fields: Any) -> StepPlan:
    found = {"preflight": report(), "frame_s": frame_s, "load_s": load_s}
    return deferred(step, found, **fields)


def test_looking_comes_first_then_one_frame_then_the_rest_then_the_film() -> None:
    steps = plan(film={}).steps
    assert [(s.name, s.deferred_on) for s in steps] == [
        ("preflight", None), ("canary", "preflight"), ("render", "canary"), ("film", "canary"),
    ]  # fmt: skip
    assert [list(s.tasks) != [] for s in steps] == [True, False, False, False]
    assert [(d.step, d.mode) for d in steps[3].depends_on] == [("render", "whole")]


def test_a_still_in_parts_is_merged_when_all_are_there() -> None:
    steps = plan(frames="7", blender={"tiles": {"columns": 2, "rows": 2}}).steps
    assert [(s.name, s.deferred_on) for s in steps] == [
        ("preflight", None), ("parts", "preflight"), ("merge", "preflight"),
    ]  # fmt: skip
    assert [(d.step, d.mode) for d in steps[2].depends_on] == [("parts", "whole")]


def test_the_files_own_frames_and_size_are_used_where_none_are_named() -> None:
    (task,) = after_preflight().tasks
    # -2 to 5 are eight frames; the fifth of them is the middle
    assert task.payload["number"] == 2
    render = after_canary(1.0, 1.0)
    assert sorted(n for t in render.tasks for n in t.frames or ()) == [-2, -1, 0, 1, 2, 3, 4, 5]
    (output,) = render.outputs
    assert (output.width, output.height, output.channels) == (100, 50, ("R", "G", "B"))


def test_middle_first_then_first_and_last_then_the_rest() -> None:
    tasks = list(after_canary(5.0, 1.0, frames="1-9", chunk_frames=4).tasks)
    ordered = [str(task.frames) for task in sorted(tasks, key=lambda task: task.rank)]
    assert ordered == ["5", "1", "9", "2-4,6", "7-8"]


def test_quick_frames_travel_together() -> None:
    tasks = list(after_canary(0.1, 1.0, frames="1-9").tasks)
    # three frames last under a second, and all of them are far under the target of 20 s
    assert [str(task.frames) for task in tasks] == ["1-9"]
    tasks = list(after_canary(0.1, 1.0, frames="1-9", chunk_frames=4).tasks)
    assert [str(task.frames) for task in tasks] == ["1-6,9", "7-8"]
    assert tasks[0].payload["ahead"] == [5, 1, 9]


@pytest.mark.parametrize(
    ("frame_s", "load_s", "frames"),
    [
        (1.0, 0.5, 20),  # 20 s of frames; loading is 2.5 % of that
        (1.0, 5.0, 100),  # loading 5 s must be a twentieth at most: 100 s
        (61.0, 600.0, 1),  # a slow frame is alone, whatever loading takes
        (0.0, 0.1, 1000),
    ],
)
def test_chunks_follow_what_was_measured(frame_s: float, load_s: float, frames: int) -> None:
    assert chunk_size(spec(), frame_s, load_s) == frames


def test_an_exr_is_declared_with_the_channels_that_blender_writes() -> None:
    step = after_canary(1.0, 1.0, outputs=["png", "exr"], transparent=True)
    by_name = {output.name: output for output in step.outputs}
    assert by_name["layers.exr"].channels == ("ViewLayer.Combined.R", "ViewLayer.Depth.Z")
    # depth stays 32 bits wide beside half floats
    assert by_name["layers.exr"].dtype == "float32"


MISSING = {"severity": "error", "missing": True, "message": "image 'a' is missing: '//a.png'"}
GONE = {"severity": "error", "missing": False, "message": "the engine of scene 'S' does not exist"}
WARNING = {"severity": "warning", "missing": False, "message": "cloth of 'A' is not baked"}


def test_what_is_missing_fails_unless_it_may_and_warnings_never_do() -> None:
    with pytest.raises(InvalidSpec, match=r"image 'a' is missing.*attach what is missing, or set blender"):
        after_preflight(findings=(WARNING, MISSING))
    assert list(after_preflight(findings=(MISSING,), blender={"allow_missing": True}).tasks)
    assert list(after_preflight(findings=(WARNING,)).tasks)


def test_what_cannot_be_done_fails_whatever_is_allowed() -> None:
    with pytest.raises(InvalidSpec, match="does not exist"):
        after_preflight(findings=(GONE,), blender={"allow_missing": True})


def test_many_findings_are_counted() -> None:
    with pytest.raises(InvalidSpec, match="and 6 more; attach"):
        after_preflight(findings=(MISSING,) * 10)


def test_an_empty_range_in_the_file_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="frame range 9 to 3 is empty; name frames"):
        after_preflight(facts={"frame_start": 9, "frame_end": 3})


def test_more_frames_in_the_file_than_a_job_may_have_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="the file has 5,000 frames, over the limit of 1,000"):
        after_preflight(facts={"frame_start": 1, "frame_end": 5000})


def test_a_film_that_cannot_be_is_refused_before_a_frame_is_rendered() -> None:
    with pytest.raises(InvalidSpec, match="for the film"):
        after_preflight(facts={"width": 101}, film={})
    with pytest.raises(InvalidSpec, match=r"need film\.background"):
        after_preflight(facts={"transparent": True}, film={})


def test_tiles_cover_every_pixel_once() -> None:
    one = spec(frames="1", blender={"tiles": {"columns": 3, "rows": 4}})
    covered = [[0] * 100 for _ in range(50)]
    for part in parts_of(one, FACTS):
        left, bottom, right, top = part["border"]
        for y in range(bottom, top):
            for x in range(left, right):
                covered[y][x] += 1
    assert {value for row in covered for value in row} == {1}


def test_sample_ranges_hold_every_sample_once() -> None:
    one = spec(frames="1", blender={"sample_ranges": 3})
    parts = parts_of(one, FACTS)
    assert [(p["first"], p["count"]) for p in parts] == [(0, 3), (3, 3), (6, 4)]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"compositor": True}, "set blender.compositor: false"),
        ({"denoising": True}, "set blender.denoiser: none"),
        ({"adaptive": True}, "set blender.adaptive: false"),
        ({"engine": "BLENDER_EEVEE_NEXT"}, "parts need Cycles"),
        ({"width": 1}, "more tiles than pixels in 1x50"),
    ],
)
def test_parts_that_would_not_fit_together_are_refused(facts: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        after_preflight("parts", facts, frames="1", blender={"tiles": {"columns": 2, "rows": 1}})


def test_what_the_preflight_ran_on_binds_the_steps_after_it() -> None:
    assert after_preflight().payload["preflight"]["version"] == "4.5"
    assert after_canary(1.0, 1.0).payload["preflight"]["version"] == "4.5"


def test_the_version_places_every_step_that_opens_the_file() -> None:
    # nobody has named one: any Blender may look, and the one that did binds the rest
    assert plan().steps[0].requires == {}
    assert after_preflight().requires == {"blender": "4.5"}
    assert after_canary(1.0, 1.0, device="cuda").requires == {"device": "cuda", "blender": "4.5"}
    assert plan(blender={"version": "4.2"}).steps[0].requires == {"blender": "4.2"}
    assert after_canary(1.0, 1.0, "film", film={}).requires.get("blender") is None


def test_an_ocio_configuration_must_be_among_the_assets() -> None:
    with pytest.raises(InvalidSpec, match=r"ocio 'color/show\.ocio' is not among the job's assets"):
        plan(blender={"ocio": "color/show.ocio"})


def test_one_warm_key_serves_every_step_of_a_job() -> None:
    keys = {step.warm_key for step in plan().steps} | {after_preflight().warm_key}
    keys.add(after_canary(1.0, 1.0).warm_key)
    assert len(keys) == 1
    assert plan(samples=3).steps[0].warm_key not in keys


@pytest.mark.parametrize(
    ("device", "needs"),
    [
        ("cpu", {}),
        ("cuda", {"device": "cuda"}),
        ("optix", {"device": "cuda"}),
        ("hip", {"blender_devices": "hip"}),
        ("oneapi", {"blender_devices": "oneapi"}),
    ],
)
def test_a_gpu_is_required_of_the_slot_from_the_first_look(device: str, needs: dict[str, str]) -> None:
    assert plan(device=device).steps[0].requires == needs
    assert after_canary(1.0, 1.0, device=device).requires == {**needs, "blender": "4.5"}
