"""Combinations that a render spec refuses, and what it fills in."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.registry import kind
from jobs.render.camera import FileCamera, OrbitCamera
from jobs.render.spec import Spec
from tests.unit.jobs.test_kind import refused


def spec(**fields: Any) -> Spec:
    parsed = kind("render").parse({"scene": "scene.xml", **fields})
    assert isinstance(parsed, Spec)
    return parsed


def test_a_scene_file_keeps_its_camera_and_a_mesh_gets_a_turntable() -> None:
    assert isinstance(spec().resolved_camera, FileCamera)
    assert isinstance(spec(scene="robot.glb").resolved_camera, OrbitCamera)


def test_a_mesh_has_no_camera_of_its_own() -> None:
    ((pointer, message),) = refused("render", {"scene": "a.ply", "camera": {"type": "file"}})
    assert pointer == "/spec/camera"
    assert "orbit or keyframes" in message


def test_other_scene_files_are_refused_with_the_choices() -> None:
    ((pointer, message),) = refused("render", {"scene": "a.max"})
    assert pointer == "/spec/scene"
    assert ".xml, .obj, .ply, .glb, .blend" in message


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"variant": "cuda_ad_rgb"}, "/spec/variant", "device: cuda"),
        ({"variant": "scalar_rgb", "device": "cuda"}, "/spec/variant", "device: cpu"),
        ({"denoise": "optix"}, "/spec/denoise", "CUDA only"),
        ({"denoise": "yes"}, "/spec/denoise", "'oidn'"),
        ({"device": "tpu"}, "/spec/device", "'cpu', 'cuda'"),
        ({"variant": "gpu_rgb"}, "/spec/variant", "'llvm_ad_rgb'"),
    ],
)
def test_a_device_is_the_one_asked_for_or_an_error(fields: dict[str, Any], pointer: str, words: str) -> None:
    faults = refused("render", {"scene": "a.xml", **fields})
    assert [f for f in faults if f[0] == pointer and words in f[1]], faults


def test_two_outputs_of_one_name_are_refused() -> None:
    ((pointer, message),) = refused("render", {"scene": "a.xml", "outputs": ["png", "png16"]})
    assert pointer == "/spec/outputs"
    assert "beauty.png" in message


def test_depth_does_not_go_into_a_png() -> None:
    ((pointer, message),) = refused(
        "render", {"scene": "a.xml", "outputs": [{"format": "png", "layer": "depth"}]}
    )
    assert pointer == "/spec/outputs/0"
    assert '"format": "exr"' in message


def test_jpeg_has_no_alpha() -> None:
    ((pointer, _),) = refused("render", {"scene": "a.xml", "outputs": ["jpeg"], "transparent": True})
    assert pointer == "/spec/transparent"


def test_an_odd_film_is_refused_at_submission_with_the_nearest_sizes() -> None:
    ((pointer, message),) = refused("render", {"scene": "a.xml", "resolution": [321, 181], "film": {}})
    assert pointer == "/spec/resolution"
    assert "320x180 and 322x182" in message
    assert spec(resolution=[321, 181], film={"odd_size": "pad"}).film is not None


def test_a_transparent_film_needs_a_background() -> None:
    fields = {"scene": "a.xml", "transparent": True, "film": {}}
    ((pointer, _),) = refused("render", fields)
    assert pointer == "/spec/film/background"
    assert kind("render").parse({**fields, "film": {"background": "#102030"}})


def test_a_film_is_made_of_an_output_that_shows_the_beauty() -> None:
    exr = {"format": "exr", "layers": ["depth"], "dtype": "float"}
    ((pointer, _),) = refused("render", {"scene": "a.xml", "outputs": [exr], "film": {}})
    assert pointer == "/spec/film/output"
    assert spec(outputs=["exr", "png"], film={}).film_output() == "beauty.png"
    assert spec(outputs=["exr"], film={}).film_output() == "layers.exr"
    assert spec(outputs=["exr", "png"], film={"output": "layers.exr"}).film_output() == "layers.exr"


def test_resolution_may_be_written_as_text() -> None:
    assert spec(resolution="1920x1080").resolution == (1920, 1080)


def test_a_stored_spec_reads_back_equal() -> None:
    first = spec(
        outputs=["png16", "exr32"], camera={"type": "orbit"}, frames="5,1-3", film={"formats": ["webm"]}
    )
    assert first.frames == "1-3,5"
    assert Spec.model_validate(first.model_dump(mode="json")) == first


def test_every_field_is_described() -> None:
    schema = Spec.model_json_schema()
    models = [schema, *schema["$defs"].values()]
    nameless = [
        f"{model.get('title')}.{name}"
        for model in models
        for name, field in model.get("properties", {}).items()
        if "description" not in field and "const" not in field
    ]
    assert nameless == []


@pytest.mark.parametrize(
    ("resolution", "words"),
    [
        ("hello", "write width and height in pixels, such as 640x360"),
        ("640", "such as 640x360"),
        ([0, 5], "nearest: 1x5"),
        ("99999x99999", "nearest: 11585x11585"),
        ("16384x16384", "nearest: 11585x11585"),
    ],
)
def test_a_size_that_cannot_be_is_answered_with_one_that_can(resolution: Any, words: str) -> None:
    ((pointer, message),) = refused("render", {"scene": "a.xml", "resolution": resolution})
    assert pointer == "/spec/resolution"
    assert words in message
    assert spec(resolution="11585x11585").resolution == (11585, 11585)
