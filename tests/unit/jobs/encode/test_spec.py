"""Films that are refused, with the nearest ones that are possible."""

from __future__ import annotations

from typing import Any

import pytest

from farm.errors import InvalidSpec
from farm.frame_range import FrameRange
from jobs.encode.spec import FilmSettings, Sequence
from jobs.kind import Asset, ExpandContext
from jobs.registry import kind
from tests.unit.jobs.test_kind import refused

SOURCE = {"source": {"pattern": "shots/a.####.png", "frames": "1-3"}}


@pytest.mark.parametrize(
    ("fields", "pointer", "words"),
    [
        ({"fps": 29.97}, "/spec/fps", "30000/1001"),
        ({"fps": "0"}, "/spec/fps", "nearest: 1"),
        ({"fps": "1000"}, "/spec/fps", "nearest: 240"),
        ({"fps": "24/0"}, "/spec/fps", "divides by zero"),
        ({"fps": "fast"}, "/spec/fps", "write 24 or 24000/1001"),
        ({"formats": ["avi"]}, "/spec/formats/0", "'mp4', 'webm' or 'mkv'"),
        ({"formats": []}, "/spec/formats", "at least 1"),
        ({"formats": ["mp4", "mp4"]}, "/spec/formats", "twice"),
        ({"codec": "h265"}, "/spec/codec", "'h264', 'av1', 'vp9' or 'ffv1'"),
        ({"formats": ["webm"], "codec": "h264"}, "/spec/codec", "choose vp9 or av1"),
        (
            {"formats": ["webm"], "codec": "av1", "pixel_format": "yuv444p"},
            "/spec/pixel_format",
            "yuv420p10le",
        ),
        ({"crf": 60}, "/spec/crf", "51"),
        ({"crf": -1}, "/spec/crf", "greater than or equal to 0"),
        ({"background": "black"}, "/spec/background", "#1a2b3c"),
        ({"name": "../../film"}, "/spec/name", "pattern"),
        ({"source": {"pattern": "../../a.####.png", "frames": "1"}}, "/spec/source/pattern", "leaves"),
        ({"source": {"pattern": "a.png", "frames": "1"}}, "/spec/source/pattern", "####"),
        ({"source": {"pattern": "a.##.b.##.png", "frames": "1"}}, "/spec/source/pattern", "once"),
        ({"source": {"pattern": "a.####.gif", "frames": "1"}}, "/spec/source/pattern", ".png"),
    ],
)
def test_a_fault_names_its_field_and_the_way_out(fields: dict[str, Any], pointer: str, words: str) -> None:
    faults = refused("encode", {**SOURCE, **fields})
    assert [f for f in faults if f[0] == pointer and words in f[1]], faults


@pytest.mark.parametrize(
    ("text", "fps"), [("24", "24"), (25, "25"), ("24000/1001", "24000/1001"), ("50/2", "25"), ("30/1", "30")]
)
def test_a_rate_is_kept_as_a_fraction(text: object, fps: str) -> None:
    assert FilmSettings.model_validate({"fps": text}).fps == fps


@pytest.mark.parametrize(
    ("fields", "size", "film"),
    [
        ({}, (320, 180), (320, 180)),
        ({"odd_size": "pad"}, (321, 181), (322, 182)),
        ({"odd_size": "crop"}, (321, 181), (320, 180)),
        ({"odd_size": "pad"}, (320, 181), (320, 182)),
        ({"pixel_format": "yuv444p"}, (321, 181), (321, 181)),
        ({"odd_size": "pad"}, (1, 1), (2, 2)),
    ],
)
def test_odd_sizes_are_handled_as_asked(
    fields: dict[str, Any], size: tuple[int, int], film: tuple[int, int]
) -> None:
    assert FilmSettings.model_validate(fields).film_size(*size) == film


@pytest.mark.parametrize(("odd_size", "size"), [("refuse", (321, 180)), ("crop", (1, 100))])
def test_an_odd_size_is_never_changed_in_silence(odd_size: str, size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="nearest sizes"):
        FilmSettings.model_validate({"odd_size": odd_size}).film_size(*size)


@pytest.mark.parametrize(
    ("pattern", "number", "path"),
    [
        ("a.####.png", 7, "a.0007.png"),
        ("a.####.png", 12345, "a.12345.png"),
        ("b/%03d.exr", 7, "b/007.exr"),
        ("b/%d.jpg", 7, "b/7.jpg"),
        ("a.###.png", -2, "a.-002.png"),
    ],
)
def test_a_pattern_gives_the_path_of_each_frame(pattern: str, number: int, path: str) -> None:
    assert Sequence(pattern=pattern, frames="1").path(number) == path


def test_missing_frames_are_named_at_submission() -> None:
    encode = kind("encode")
    spec = encode.parse({"source": {"pattern": "a.##.png", "frames": "1-6"}})
    assets = {f"a.{n:02d}.png": Asset(f"a.{n:02d}.png", "0" * 64, 1) for n in (1, 2, 4)}
    with pytest.raises(InvalidSpec, match=r"3 of 6 frames .* 3,5-6 \(the first is a\.03\.png\)") as caught:
        encode.expand(spec, ExpandContext(assets=assets))
    assert caught.value.faults[0].pointer == "/spec/source/frames"


def test_one_task_per_film() -> None:
    encode = kind("encode")
    spec = encode.parse({"source": {"pattern": "a.##.png", "frames": "1-2"}, "formats": ["webm", "mp4"]})
    assets = {f"a.{n:02d}.png": Asset(f"a.{n:02d}.png", "0" * 64, 1) for n in (1, 2)}
    (step,) = encode.expand(spec, ExpandContext(assets=assets)).steps
    assert [t.payload["format"] for t in step.tasks] == ["webm", "mp4"]
    assert step.payload["source"] == {"assets": {"pattern": "a.##.png", "frames": "1-2"}}
    assert FrameRange.parse(step.payload["source"]["assets"]["frames"]).last == 2
