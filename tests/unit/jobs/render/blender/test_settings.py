"""What a spec of a Blender job takes, refuses and fills in."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.registry import kind
from jobs.render.spec import Spec
from tests.unit.jobs.test_kind import refused

TILES = {"tiles": {"columns": 2, "rows": 2}}


def spec(**fields: Any) -> Spec:
    parsed = kind("render").parse({"scene": "shot.blend", **fields})
    assert isinstance(parsed, Spec)
    return parsed


@pytest.mark.parametrize(
    ("scene", "engine"),
    [("a.blend", "blender"), ("a.gltf", "blender"), ("a.usdc", "blender"), ("a.glb", "mitsuba"),
     ("a.obj", "mitsuba"), ("a.PLY", "mitsuba"), ("a.xml", "mitsuba")],
)  # fmt: skip
def test_the_engine_follows_the_suffix(scene: str, engine: str) -> None:
    assert spec(scene=scene).engine == engine


def test_meshes_go_through_blender_on_demand() -> None:
    assert spec(scene="a.glb", engine="blender").settings.lights is None


def test_what_the_file_decides_stays_open() -> None:
    one = spec()
    assert (one.frames, one.resolution, one.samples, one.transparent, one.seed) == (None,) * 5
    assert Spec.model_validate(one.model_dump(mode="json")) == one


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"engine": "mitsuba"}, "/spec/engine", "mitsuba does not read .blend; set engine: blender"),
        ({"camera": {"type": "orbit"}}, "/spec/camera", "blender.camera"),
        ({"exposure": 1.0}, "/spec/exposure", "set blender.exposure"),
        ({"integrator": "path"}, "/spec/integrator", "blender.engine"),
        ({"denoise": "oidn"}, "/spec/denoise", "set blender.denoiser"),
        ({"variant": "scalar_rgb"}, "/spec/variant", "Mitsuba's"),
        ({"max_depth": 3}, "/spec/max_depth", "Mitsuba's"),
        ({"outputs": ["exr", {"format": "exr", "name": "b.exr"}]}, "/spec/outputs", "one multilayer EXR"),
        ({"outputs": [{"format": "exr", "layers": ["depth"]}]}, "/spec/outputs", "blender.passes"),
        ({"outputs": [{"format": "png", "layer": "normal"}]}, "/spec/outputs", "blender.passes"),
        ({"outputs": ["exr"], "film": {}}, "/spec/film/output", "add png"),
        ({"device": "optix", "blender": {"engine": "eevee"}}, "/spec/device", "Cycles device"),
        ({"blender": {"denoiser": "optix"}}, "/spec/blender/denoiser", "cuda or optix only"),
        ({"blender": TILES}, "/spec/frames", "name one frame"),
        ({"frames": "1-2", "blender": {"sample_ranges": 2}}, "/spec/frames", "name one frame"),
        ({"blender": {**TILES, "sample_ranges": 2}}, "/spec/blender/tiles", "exclude each other"),
        ({"frames": "1", "blender": {**TILES, "adaptive": True}}, "/spec/blender/adaptive", "leaves seams"),
        ({"frames": "1", "blender": {**TILES, "compositor": True}}, "/spec/blender/compositor", "whole"),
        ({"blender": {"passes": ["nope"]}}, "/spec/blender/passes/0", "choose among combined"),
        ({"blender": {"version": "newest"}}, "/spec/blender/version", "write one like 4.5"),
        ({"blender": {"version": 4}}, "/spec/blender/version", "should be a valid string"),
        ({"blender": {"version": 1e99}}, "/spec/blender/version", "write one like 4.5"),
        ({"blender": {"python": "import os"}}, "/spec/blender/python", "no such field"),
        ({"blender": {"ocio": "/etc/passwd"}}, "/spec/blender/ocio", "leaves the job's assets"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_way_out(fields: dict[str, Any], pointer: str, words: str) -> None:
    faults = refused("render", {"scene": "shot.blend", **fields})
    assert [fault for fault in faults if fault[0].startswith(pointer) and words in fault[1]], faults


def test_a_version_may_be_written_as_a_number() -> None:
    # as --set blender.version=4.2 gives it
    assert spec(blender={"version": 4.2}).settings.version == "4.2"


def test_blenders_settings_are_refused_for_mitsuba() -> None:
    ((pointer, message),) = refused("render", {"scene": "a.xml", "blender": {"camera": "auto"}})
    assert pointer == "/spec/blender"
    assert "set engine: blender" in message


@pytest.mark.parametrize("device", ["optix", "hip", "oneapi"])
def test_devices_that_only_cycles_knows_are_refused_for_mitsuba(device: str) -> None:
    ((pointer, message),) = refused("render", {"scene": "a.xml", "device": device})
    assert pointer == "/spec/device"
    assert "cpu or cuda" in message
