"""Pointers of bad fields, and the registry: what a person is told about a spec that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farm.errors import InvalidFrameRange, InvalidSpec, NotInstalled, UnknownKind
from jobs.kind import Kind
from jobs.registry import kind, kinds

SCENE = {"scene": "scene.xml"}


def refused(kind_name: str, spec: dict[str, Any]) -> list[tuple[str, str]]:
    """Pointer and message of every fault of a spec that must be refused."""
    with pytest.raises(InvalidSpec) as caught:
        kind(kind_name).parse(spec)
    return [(fault.pointer, fault.message) for fault in caught.value.faults]


def test_an_unknown_kind_is_refused_with_the_kinds_there_are() -> None:
    with pytest.raises(UnknownKind, match=f"this farm knows {', '.join(sorted(kinds()))}$") as caught:
        kind("sculpt")
    assert caught.value.faults[0].pointer == "/kind"


def test_render_and_encode_are_known() -> None:
    assert {"render", "encode"} <= set(kinds())


@pytest.mark.parametrize(
    ("spec", "pointer", "words"),
    [
        ({**SCENE, "colour": "red"}, "/spec/colour", "no such field"),
        ({**SCENE, "sampels": 4}, "/spec/sampels", "no such field; did you mean 'samples'?"),
        ({**SCENE, "camera": {"type": "orbit", "elevaton": 2}}, "/spec/camera/elevaton", "mean 'elevation'?"),
        ({**SCENE, "zzz": 4}, "/spec/zzz", "`GET /v1/kinds` lists all fields"),
        ({**SCENE, "engine": "vray"}, "/spec/engine", "'mitsuba'"),
        ({**SCENE, "outputs": ["gif"]}, "/spec/outputs/0", "png, png16, jpeg, exr, exr32"),
        ({**SCENE, "outputs": ["png", {"format": "tiff"}]}, "/spec/outputs/1", "'png', 'jpeg', 'exr'"),
        ({**SCENE, "camera": {"type": "orbit", "elevation": 95}}, "/spec/camera/elevation", "89"),
        ({**SCENE, "camera": {"type": "orbit", "zoom": 2}}, "/spec/camera/zoom", "no such field"),
        ({**SCENE, "camera": {"type": "drone"}}, "/spec/camera", "'file', 'orbit', 'keyframes'"),
        (
            {**SCENE, "camera": {"type": "keyframes", "keyframes": [{"frame": 1, "origin": [0, 0]}]}},
            "/spec/camera/keyframes/0/origin/2",
            "required",
        ),
        ({**SCENE, "film": {"codec": "vp9"}}, "/spec/film/codec", "choose h264"),
        ({**SCENE, "film": {"fps": "23.976"}}, "/spec/film/fps", "24000/1001"),
        ({}, "/spec/scene", "required"),
        ({"scene": "../../secret.xml"}, "/spec/scene", "leaves the job's assets"),
        ({**SCENE, "resolution": [320, 0]}, "/spec/resolution", "nearest: 320x1"),
        ({**SCENE, "resolution": "20000x10"}, "/spec/resolution", "nearest: 16384x10"),
        ({**SCENE, "samples": 0}, "/spec/samples", "greater than or equal to 1"),
    ],
)
def test_a_fault_names_its_field_and_the_way_out(spec: dict[str, Any], pointer: str, words: str) -> None:
    faults = refused("render", spec)
    assert [fault for fault in faults if fault[0] == pointer and words in fault[1]], faults


@pytest.mark.parametrize(
    ("text", "position"),
    [("1 10", 2), ("5-1", 2), ("1-5:0", 4), ("", 0), ("   ", 0), ("1-1000000000", 0), ("a", 0), ("1,,2", 2)],
)
def test_a_bad_frame_range_names_the_field_and_the_position(text: str, position: int) -> None:
    with pytest.raises(InvalidFrameRange) as caught:
        kind("render").parse({**SCENE, "frames": text})
    assert caught.value.position == position
    assert caught.value.faults[0].pointer == "/spec/frames"


def test_several_faults_are_told_at_once() -> None:
    faults = refused("render", {"scene": "a.xml", "samples": 0, "wat": 1})
    assert {"/spec/samples", "/spec/wat"} <= {pointer for pointer, _ in faults}


def test_a_library_that_is_missing_is_named_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("needy", "import a_library_nobody_has"), ("broken", "import broken_kind.absent")):
        folder = tmp_path / f"{name}_kind"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "engine.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    message = r"lacks a_library_nobody_has, which jobs of kind video need: pip install 'stillframe\[video\]'"
    with pytest.raises(NotInstalled, match=message):
        Kind("video", "needy_kind").create_engine()
    # a fault of the kind's own stays what it is
    with pytest.raises(ModuleNotFoundError, match=r"broken_kind\.absent"):
        Kind("video", "broken_kind").create_engine()
