from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from api.cli.submit import from_source, read_job_file, set_field
from farm.errors import InvalidInput, UnknownKind

SCENE = '<scene version="3.0.0"><shape type="ply"><string name="filename" value="{}"/></shape></scene>'


def test_a_scene_comes_with_every_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "meshes").mkdir()
    (tmp_path / "meshes" / "rock.ply").write_bytes(b"ply")
    (tmp_path / "unused.ply").write_bytes(b"ply")
    scene = tmp_path / "scene.xml"
    scene.write_text(SCENE.format("meshes/rock.ply"))
    options = {"frames": "1-48", "size": "320x180", "samples": 32, "film": ["mp4"], "fps": "24"}
    body, files = from_source("render", scene, options)
    assert files == {"meshes/rock.ply": tmp_path / "meshes" / "rock.ply", "scene.xml": scene}
    assert body == {
        "kind": "render",
        "name": "scene",
        "spec": {
            "scene": "scene.xml",
            "frames": "1-48",
            "resolution": "320x180",
            "samples": 32,
            "film": {"formats": ["mp4"], "fps": "24"},
        },
    }


def test_a_scene_that_reaches_out_is_refused_unless_a_root_holds_it_all(tmp_path: Path) -> None:
    (tmp_path / "shot").mkdir()
    (tmp_path / "rock.ply").write_bytes(b"ply")
    scene = tmp_path / "shot" / "scene.xml"
    scene.write_text(SCENE.format("../rock.ply"))
    with pytest.raises(InvalidInput, match=r"\.\./rock\.ply.*--root"):
        from_source("render", scene, {})
    body, files = from_source("render", scene, {}, tmp_path)
    assert body["spec"] == {"scene": "shot/scene.xml"}
    assert sorted(files) == ["rock.ply", "shot/scene.xml"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gone.xml", None, "there is no file"),
        ("broken.xml", "<scene>", "not well-formed"),
        ("scene.txt", "x", "no scene that can be rendered"),
        ("scene.blend", "x", "cannot be read as a .blend"),
        ("scene.xml", SCENE.format("/etc/passwd"), "leaves the job"),
        ("scene.xml", SCENE.format("missing.ply"), r"missing\.ply"),
    ],
)
def test_a_bad_scene_is_refused_before_anything_is_sent(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInput, match=said):
        from_source("render", tmp_path / name, {})


def test_an_unknown_kind_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownKind, match=r"sculpt.*encode.*render"):
        from_source("sculpt", tmp_path / "x", {})


def test_an_image_sequence_is_taken_frame_by_frame(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"a.{number:04d}.png").write_bytes(b"png")
    body, files = from_source("encode", tmp_path / "a.####.png", {"frames": "1-3:2", "film": ["webm"]})
    assert body["spec"] == {"source": {"pattern": "a.####.png", "frames": "1,3"}, "formats": ["webm"]}
    assert sorted(files) == ["a.0001.png", "a.0003.png"]


def test_a_job_file_names_files_beside_it_and_hashes(tmp_path: Path) -> None:
    sha = "ab" * 32
    job = {"kind": "render", "spec": {"scene": "s.xml"}, "assets": {"s.xml": "scenes/s.xml", "m.ply": sha}}
    path = tmp_path / "shot.json"
    path.write_text(json.dumps(job))
    body, files = read_job_file(path)
    assert body == {"kind": "render", "name": "shot", "spec": {"scene": "s.xml"}, "assets": {"m.ply": sha}}
    assert files == {"s.xml": tmp_path / "scenes" / "s.xml"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold"),
        ('{"kind": "render"}', "must hold"),
        ('{"kind": "render", "spec": {}, "colour": 1}', "colour"),
        ('{"kind": "render", "spec": {}, "assets": {"a": 1}}', "assets"),
    ],
)
def test_a_bad_job_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "shot.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_job_file(path)


def test_any_field_can_be_set_as_json_or_text() -> None:
    spec: dict[str, Any] = {"film": {"formats": ["mp4"]}}
    for text in ("denoise=oidn", "film.crf=18", "camera.type=orbit", "transparent=true", "fps=24000/1001"):
        set_field(spec, text)
    assert spec == {
        "film": {"formats": ["mp4"], "crf": 18},
        "denoise": "oidn",
        "camera": {"type": "orbit"},
        "transparent": True,
        "fps": "24000/1001",
    }


@pytest.mark.parametrize("text", ["denoise", "=3", "scene.deep=1"])
def test_a_bad_setting_is_a_usage_error(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        set_field({"scene": "s.xml"}, text)
