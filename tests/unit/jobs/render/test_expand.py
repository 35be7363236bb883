"""Render jobs as steps and tasks: pure, complete, and of the right size."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from farm.errors import InvalidSpec
from farm.plan import JobPlan
from jobs.kind import Asset, ExpandContext
from jobs.registry import kind

ASSETS = {"scene.xml": Asset("scene.xml", "a" * 64, 10), "t/wood.png": Asset("t/wood.png", "b" * 64, 20)}


def plan(assets: dict[str, Asset] = ASSETS, **fields: Any) -> JobPlan:
    render = kind("render")
    return render.expand(render.parse({"scene": "scene.xml", **fields}), ExpandContext(assets=assets))


def test_tasks_cover_every_frame_once_in_order() -> None:
    (step,) = plan(frames="1-10,20", chunk_frames=4).steps
    tasks = list(step.tasks)
    assert [str(task.frames) for task in tasks] == ["1-4", "5-8", "9-10,20"]
    assert [task.rank for task in tasks] == [0, 1, 2]
    assert [task.payload["frames"] for task in tasks] == ["1-4", "5-8", "9-10,20"]


def test_a_target_time_makes_chunks_from_pixels_and_samples() -> None:
    # 100x100 pixels, 100 samples: 1 s of samples and 0.05 s of files; 10 s hold 10 (9.52 rounded)
    (step,) = plan(frames="1-100", resolution=[100, 100], samples=100, chunk_seconds=10).steps
    tasks = list(step.tasks)
    assert len(tasks[0].frames or ()) == 10
    assert tasks[0].seconds == pytest.approx(10.5)


def test_slow_frames_travel_alone() -> None:
    (step,) = plan(frames="1-3", resolution=[1920, 1080], samples=4096).steps
    assert [str(task.frames) for task in step.tasks] == ["1", "2", "3"]


def test_outputs_are_declared_with_channels_and_types() -> None:
    (step,) = plan(
        outputs=[
            "png",
            "exr",
            {"format": "exr", "layers": ["depth"], "dtype": "float"},
            {"format": "png", "layer": "normal", "bits": 16},
        ],
        resolution=[64, 48],
        transparent=True,
    ).steps
    by_name = {output.name: output for output in step.outputs}
    assert by_name["beauty.png"].channels == ("R", "G", "B", "A")
    assert by_name["beauty.png"].dtype == "uint8"
    assert set(by_name["layers.exr"].channels) == {
        "R", "G", "B", "A", "depth.Z", "normal.X", "normal.Y", "normal.Z", "albedo.R", "albedo.G", "albedo.B",
    }  # fmt: skip
    assert by_name["layers.exr"].dtype == "float16"
    assert by_name["depth.exr"].channels == ("depth.Z",)
    assert by_name["depth.exr"].dtype == "float32"
    assert by_name["normal.png"].channels == ("R", "G", "B")
    assert by_name["normal.png"].dtype == "uint16"
    assert {(o.width, o.height) for o in step.outputs} == {(64, 48)}


def test_a_film_waits_for_every_frame() -> None:
    render, film = plan(frames="1-8", film={"formats": ["mp4", "webm"], "fps": "30000/1001"}).steps
    assert film.engine == film.pool == "encode"
    assert [(d.step, d.mode) for d in film.depends_on] == [("render", "whole")]
    assert [task.payload["format"] for task in film.tasks] == ["mp4", "webm"]
    assert all(task.frames is None for task in film.tasks)
    assert film.payload["source"] == {"step": render.name, "output": "beauty.png", "frames": "1-8"}
    assert film.payload["film"]["fps"] == "30000/1001"


def test_a_scene_that_was_not_attached_is_refused_by_name() -> None:
    with pytest.raises(InvalidSpec, match=r"'other\.xml' is not among the job's assets") as caught:
        plan(scene="other.xml")
    assert caught.value.faults[0].pointer == "/spec/scene"


def test_the_warm_key_follows_what_is_loaded_and_nothing_else() -> None:
    def key(assets: dict[str, Asset] = ASSETS, **fields: Any) -> str | None:
        return plan(assets, **fields).steps[0].warm_key

    base = key()
    assert key(chunk_frames=3, max_retries=5) == base
    assert key(film={}) == base
    assert key(samples=7) != base
    assert key(variant="scalar_rgb") != base
    assert key({**ASSETS, "t/wood.png": Asset("t/wood.png", "c" * 64, 20)}) != base


def test_the_scene_key_names_all_assets_and_nothing_of_the_spec() -> None:
    def key(assets: dict[str, Asset] = ASSETS, **fields: Any) -> Any:
        return plan(assets, **fields).steps[0].payload["scene_key"]

    base = key()
    assert key(samples=7, variant="scalar_rgb", seed=4, camera={"type": "orbit"}) == base
    wood = "t/wood.png"
    others = [
        key({**ASSETS, name: Asset(name, sha * 64, 20)})
        for name, sha in ((wood, "c"), (wood, "d"), ("t/x", "c"))
    ]
    assert len({base, *others}) == 4


def test_an_orbit_depends_on_the_frame_range_so_its_warm_key_does() -> None:
    orbit = {"type": "orbit"}
    first = plan(frames="1-10", camera=orbit).steps[0].warm_key
    assert plan(frames="1-20", camera=orbit).steps[0].warm_key != first


def test_cuda_is_required_of_the_slot() -> None:
    assert plan(device="cuda").steps[0].requires == {"device": "cuda"}
    assert plan().steps[0].requires == {}


def test_a_hundred_thousand_tasks_are_never_a_list() -> None:
    (step,) = plan(frames="1-100000", chunk_frames=1).steps
    assert not isinstance(step.tasks, list | tuple)
    assert [str(task.frames) for task in islice(step.tasks, 2)] == ["1", "2"]
