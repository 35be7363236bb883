"""What a nerf job may ask, and which steps and tasks come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.errors import InvalidInput, InvalidSpec
from jobs.kind import Asset, ExpandContext
from jobs.nerf import demo
from jobs.nerf.shorthand import build
from jobs.registry import kind
from tests.unit.jobs.nerf.scenes import write_set

ASSETS = {
    name: Asset(name, "0" * 64, 1) for name in ("photos/a.jpg", "photos/b.jpg", "clip.mov", "path.json")
}
POSED = {"width": 64, "height": 48, "path_frames": None}


def parse(**spec: Any) -> Any:
    return kind("nerf").parse({"source": "photos", **spec})


def steps(**spec: Any) -> list[Any]:
    return kind("nerf").expand(parse(**spec), ExpandContext(ASSETS)).steps


@pytest.mark.parametrize(
    ("spec", "pointer", "said"),
    [
        ({"form": "hash", "method": "splat"}, "/spec/form", "belongs to method nerf"),
        ({"form": "gsplat", "method": "splat"}, "/spec/form", "CUDA only"),
        ({"form": "torch", "method": "splat", "device": "cuda"}, "/spec/form", "for CPUs"),
        ({"exports": ["ply"]}, "/spec/exports", "method: splat"),
        ({"exports": ["mesh", "mesh"]}, "/spec/exports", "twice"),
        ({"pictures": {"hold_out": 0}, "train": {"target_psnr": 25}}, "/spec/train/target_psnr", "held-out"),
        ({"outputs": [{"format": "png", "layer": "albedo"}]}, "/spec/outputs", "no albedo"),
        ({"transparent": True, "outputs": ["jpeg"]}, "/spec/transparent", "no alpha"),
        ({"film": {}, "outputs": [{"format": "exr", "layers": ["depth"]}]}, "/spec/film/output", "add png"),
        ({"film": {}, "path": None}, "/spec/film", "needs a camera path"),
        ({"film": {}, "resolution": [63, 48]}, "/spec/resolution", "62x48"),
        ({"transparent": True, "film": {}}, "/spec/film/background", "#000000"),
        ({"source": {"type": "job", "job": "nonsense"}}, "/spec/source/job", ""),
        ({"train": {"wishes": 3}}, "/spec/train/wishes", "no such field"),
    ],
)
def test_a_wish_that_cannot_be_granted_is_refused_by_its_field(
    spec: dict[str, Any], pointer: str, said: str
) -> None:
    with pytest.raises(InvalidSpec) as error:
        parse(**spec)
    assert error.value.faults[0].pointer == pointer
    assert said in error.value.faults[0].message


def test_a_source_is_read_by_its_name() -> None:
    for text, wanted in (
        ("photos/", "images"), ("a.zip", "images"), ("set/transforms.json", "transforms"), ("b.MOV", "video"),
        ("job_01abc", "job"),
    ):  # fmt: skip
        assert parse(source=text).source.type == wanted


def test_the_form_follows_from_the_device() -> None:
    assert parse().chosen_form == "dense" and parse(device="cuda").chosen_form == "hash"
    assert parse(method="splat").chosen_form == "torch"
    assert parse(method="splat", device="cuda").chosen_form == "gsplat"


def test_steps_depend_on_what_they_read_and_only_training_and_views_want_the_gpu() -> None:
    made = {step.name: step for step in steps(exports=["mesh"], film={}, device="cuda")}
    assert list(made) == ["pose", "train", "evaluate", "export", "views", "encode"]
    needs = {name: [d.step for d in step.depends_on] for name, step in made.items()}
    assert needs == {
        "pose": [], "train": ["pose"], "evaluate": ["pose", "train"], "export": ["pose", "train"],
        "views": ["train"], "encode": ["views"],
    }  # fmt: skip
    assert [name for name, step in made.items() if step.deferred] == ["views", "encode"]
    assert made["views"].deferred_on == made["encode"].deferred_on == "pose"
    assert {name for name, step in made.items() if step.requires} == {"train", "evaluate", "export", "views"}
    assert made["train"].warm_key == made["views"].warm_key
    assert [step.name for step in steps(path=None)] == ["pose", "train", "evaluate"]


def test_views_are_planned_from_the_pictures_size_in_chunks() -> None:
    spec = parse(frames="1-10", chunk_frames=4, outputs=["png", "exr"], film={})
    plan = kind("nerf").expand_deferred(spec, "views", [POSED], ExpandContext(ASSETS))
    assert [str(task.frames) for task in plan.tasks] == ["1-4", "5-8", "9-10"]
    png, exr = plan.outputs
    assert (png.width, png.height, png.channels) == (64, 48, ("R", "G", "B"))
    assert exr.channels == ("R", "G", "B", "depth.Z", "normal.X", "normal.Y", "normal.Z")
    film = kind("nerf").expand_deferred(spec, "encode", [POSED], ExpandContext(ASSETS))
    assert film.payload["source"] == {"step": "views", "output": "beauty.png", "frames": "1-10"}
    with pytest.raises(InvalidSpec, match="odd"):
        kind("nerf").expand_deferred(spec, "encode", [{**POSED, "width": 63}], ExpandContext(ASSETS))
    with pytest.raises(InvalidSpec, match="over the limit of 5"):
        kind("nerf").expand_deferred(spec, "views", [POSED], ExpandContext(ASSETS, max_frames=5))


def test_what_is_not_among_the_assets_is_refused_at_the_door() -> None:
    with pytest.raises(InvalidSpec, match="no asset lies in the folder 'other'"):
        steps(source="other")
    with pytest.raises(InvalidSpec, match=r"no 'gone\.mp4'"):
        steps(source="gone.mp4")
    with pytest.raises(InvalidSpec, match=r"camera path .gone\.json."):
        steps(path={"type": "file", "path": "gone.json"})
    assert steps(source="clip.mov", path={"type": "file", "path": "path.json"})


def test_a_change_of_the_path_alone_keeps_the_trained_field() -> None:
    one, other = steps(frames="1-5"), steps(frames="1-9", path={"type": "spiral"})
    assert one[1].warm_key == other[1].warm_key != steps(seed=3)[1].warm_key


def test_the_short_form_takes_folders_and_what_a_transforms_json_names(tmp_path: Path) -> None:
    write_set(tmp_path / "set", 3)
    (tmp_path / "set" / "images" / "._000.png").write_bytes(b"junk")
    spec, files = build(tmp_path / "set" / "transforms.json", {"frames": "1-4", "film": ["mp4"], "fps": "12"})
    assert spec == {
        "source": {"type": "transforms", "path": "transforms.json"}, "frames": "1-4",
        "film": {"formats": ["mp4"], "fps": "12"},
    }  # fmt: skip
    assert sorted(files) == [f"images/{i:03d}.png" for i in range(3)] + ["transforms.json"]
    spec, files = build(tmp_path / "set" / "images", {})
    assert spec["source"] == {"type": "images", "path": "images"} and len(files) == 3
    with pytest.raises(InvalidInput, match="no pictures"):
        (tmp_path / "empty").mkdir()
        build(tmp_path / "empty", {})


def test_the_demos_two_jobs_are_such_as_the_farm_takes() -> None:
    assets = {name: Asset(name, "0" * 64, path.stat().st_size) for name, path in demo.assets().items()}
    body = demo.before()
    plan = kind(body["kind"]).expand(kind(body["kind"]).parse(body["spec"]), ExpandContext(assets))
    assert [len(task.frames or ()) for task in plan.steps[0].tasks] == [8, 8, 8, 8]
    chain = kind("nerf").expand(kind("nerf").parse(demo.spec("job_1")), ExpandContext())
    assert [step.name for step in chain.steps][-2:] == ["views", "encode"]
    assert demo.figure({"report.json": {"psnr": 25.123, "views": 4}}).startswith("25.12 dB PSNR on 4 views")
