"""What the preflight finds: one file made for each finding, and what it does to the job."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blender_asset_tracer.blendfile import BlendFile
from PIL import Image

from farm.errors import InvalidSpec, PermanentFailure
from tests.integration.jobs.blender.conftest import Job, run_in_blender
from tests.unit.jobs.local_host import LocalHost

MakeJob = Callable[..., Job]


def found(report: dict[str, Any], code: str) -> dict[str, Any]:
    """The one finding of that code."""
    (finding,) = [f for f in report["findings"] if f["code"] == code]
    return dict(finding)


def test_a_sound_file_is_described(job: MakeJob, made: Path) -> None:
    report = job(made / "plain.blend").preflight()
    assert report["findings"] == []
    assert report["blender"].startswith("4.5")
    (scene,) = report["scenes"]
    assert scene["name"] == "Scene"
    assert scene["camera"] == "Shot"
    assert scene["cameras"] == ["Shot"]
    assert (scene["frame_start"], scene["frame_end"], scene["frame_step"]) == (1, 5, 1)
    assert scene["engine"] == "CYCLES"
    assert scene["samples"] == 4
    # 96x72 at 50 %
    assert (report["facts"]["width"], report["facts"]["height"]) == (48, 36)
    assert report["estimated_memory"] > 0
    assert report["fault"] is None


def test_the_memory_is_that_of_the_job_not_of_the_file(job: MakeJob, made: Path) -> None:
    small = job(made / "plain.blend").preflight()["estimated_memory"]
    large = job(made / "plain.blend", resolution=[8192, 8192]).preflight()["estimated_memory"]
    # four channels, twice, and the picture once more: 48 bytes a pixel
    assert large - small == (8192 * 8192 - 48 * 36) * 48


def test_no_camera_fails_the_job_unless_auto(job: MakeJob, made: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"has no camera; name one in blender\.camera, or set it to auto"):
        job(made / "no_camera.blend").run()
    # a camera is no missing file
    with pytest.raises(InvalidSpec, match="has no camera"):
        job(made / "no_camera.blend", blender={"allow_missing": True}).run()
    host = job(made / "no_camera.blend", frames="1", blender={"camera": "auto"}).run()
    assert ("render", 1) in host.published


@pytest.mark.parametrize(
    ("scene", "code", "severity", "words"),
    [
        ("missing_image", "missing_file", "error", "image 'tex' is missing: '//tex/none.png'"),
        ("foreign", "foreign_path", "error", "has a path of another system: 'C:/textures/tex.png'"),
        ("escape", "outside_assets", "error", "image 'tex' lies outside the job's files: '//../../secret'"),
        ("absolute", "absolute_path", "warning", "has an absolute path: '/nowhere/on/this/machine/tex.png'"),
        ("unbaked", "not_baked", "warning", "cloth of 'Cube' is not baked"),
        ("osl", "osl", "warning", "script node 'Script' in 'Paint' will not run"),
        ("scripts", "script", "warning", "text 'hello.py' is set to run at load; it will not run"),
        ("scripts", "driver", "warning", "driver on 'Cube' location is a Python expression; it will not run"),
    ],
)
def test_each_finding_is_told(
    job: MakeJob, made: Path, scene: str, code: str, severity: str, words: str
) -> None:
    report = job(made / f"{scene}.blend").preflight()
    finding = found(report, code)
    assert finding["severity"] == severity
    assert words in finding["message"]


@pytest.mark.parametrize("scene", ["missing_image", "foreign", "escape", "absolute"])
def test_what_is_missing_fails_the_job_unless_it_may(job: MakeJob, made: Path, scene: str) -> None:
    with pytest.raises(InvalidSpec, match=r"set blender\.allow_missing: true"):
        job(made / f"{scene}.blend", frames="1").run()
    host = job(made / f"{scene}.blend", frames="1", blender={"allow_missing": True}).run()
    assert ("render", 1) in host.published


def test_every_kind_of_file_that_frames_read_is_looked_for(job: MakeJob, made: Path) -> None:
    def lost(**fields: Any) -> set[str]:
        findings = job(made / "files.blend", **fields).preflight()["findings"]
        assert all(f["severity"] == ("warning" if f["what"] == "sound" else "error") for f in findings)
        return {f["message"] for f in findings}

    single = {
        "IES texture 'Sun' is missing: '//none.ies'",
        "mesh cache 'Cube' is missing: '//none.mdd'",
        "import node 'Imports' is missing: '//none.obj'",
        "font 'None' is missing: '//none.ttf'",
        "sound 'None' is missing: '//none.wav'",
        "cache file 'none.abc' is missing: '//none.abc'",
        "image 'tiled' is missing: '//tiled.<UDIM>.png' lacks tiled.1001.png, tiled.1002.png",
    }
    # the picture begins at frame 2 and counts from 11; the smoke goes round after 3 files
    pictures = "image 'pictures' is missing: '//pictures_011.png' lacks"
    smoke = "volume 'Smoke' is missing: '//smoke_01.vdb' lacks"
    assert lost(frames="4") == single | {f"{pictures} pictures_013.png", f"{smoke} smoke_01.vdb"}
    assert lost(frames="2,3") == single | {
        f"{pictures} pictures_011.png, pictures_012.png",
        f"{smoke} smoke_02.vdb, smoke_03.vdb",
    }
    # the file's own frames: 1 to 5; before its begin a node shows file 0
    assert f"{smoke} smoke_01.vdb, smoke_02.vdb, smoke_03.vdb" in lost()


def test_a_bake_without_its_cache_on_disk_is_missing(job: MakeJob, made: Path) -> None:
    assert list((made / "blendcache_baked").iterdir())
    finding = found(job(made / "baked.blend").preflight(), "missing_file")
    assert finding["message"] == "point cache 'Cube' is missing: '//blendcache_baked'"


def test_a_baked_fluid_lacks_the_frames_that_are_not_in_its_cache(made: Path, tmp_path: Path) -> None:
    # the wheel's fluid solver cannot bake: the mark of a bake is set by hand, as Blender would save it
    scene = Path(shutil.copy(made / "simulations.blend", tmp_path))
    file = BlendFile(scene, mode="r+b")
    (domain,) = [block for block in file.blocks if block.dna_type_name == "FluidDomainSettings"]
    for field, value in ((b"cache_flag", 1 << 1), (b"cache_frame_start", 2), (b"cache_frame_end", 3)):
        domain.set(field, value)
    domain.set(b"cache_directory", "//smoke")
    file.close()
    cache = tmp_path / "fluid_data.vdb"
    cache.write_bytes(b"a frame")

    def told(*numbers: int) -> list[str]:
        files = {f"smoke/data/fluid_data_{number:04d}.vdb": cache for number in numbers}
        host = LocalHost(tmp_path / f"host-{len(numbers)}", {scene.name: scene, **files})
        findings = Job(host, {"scene": scene.name, "frames": "1-5"}).preflight()["findings"]
        return [finding["message"] for finding in findings if "Smoke" in finding["message"]]

    lacks = "fluid cache 'Smoke' is missing: '//smoke/data/fluid_data_0001.vdb' lacks"
    assert told(2, 3) == []
    assert told(2) == [f"{lacks} fluid_data_0003.vdb"]
    assert told() == [f"{lacks} fluid_data_0002.vdb, fluid_data_0003.vdb"]


def test_a_sequence_with_a_hole_is_missing_only_for_frames_that_show_it(
    job: MakeJob, made: Path, tmp_path: Path
) -> None:
    there = [tmp_path / f"hole_{number:04d}.png" for number in (1, 2, 4, 5)]
    for path in there:
        Image.new("RGB", (4, 4), (20, 200, 40)).save(path)
    with pytest.raises(InvalidSpec, match=r"lacks hole_0003\.png.*set blender\.allow_missing: true"):
        job(made / "hole.blend", *there).run()
    whole = job(made / "hole.blend", *there, frames="1,2,4-5").preflight()
    assert whole["findings"] == []


def test_a_linked_library_is_found_beside_the_file_or_reported(job: MakeJob, made: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"library 'lib\.blend' is missing: '//lib\.blend'"):
        job(made / "linked.blend", frames="1").run()
    one = job(made / "linked.blend", made / "lib.blend", frames="1")
    report = one.preflight()
    assert [f for f in report["findings"] if f["severity"] == "error"] == []
    assert ("render", 1) in one.run().published


def test_what_the_farm_leaves_out_of_a_file_is_told(job: MakeJob, made: Path) -> None:
    def told(scene: str) -> list[str]:
        findings = job(made / f"{scene}.blend").preflight()["findings"]
        return [f["message"].split(": ", 1)[1] for f in findings if f["code"] == "left_out"]

    assert told("elsewhere") == ["'File Output' in 'Scene'"]
    language, outputs = told("writes")
    assert set(outputs.split(", ")) == {"'File Output' in 'Scene'", "'File Output' in 'Writes'"}
    assert language == "its Open Shading Language is switched off: script nodes do not run"
    assert told("edit") == [
        "its sequencer's edit is not rendered, the scene is",
        "its stereoscopic views are not rendered, one view is",
        "its pictures are not cropped to its border, they keep their size",
        "its stamp is not burnt into the pictures",
        "its time limit of 30 s a frame is not kept, its samples are",
    ]


def test_what_a_library_lacks_is_named(job: MakeJob, made: Path) -> None:
    one = job(made / "lacking.blend", made / "partless.blend", frames="1")
    finding = found(one.preflight(), "missing_datablock")
    assert finding["message"] == "linked Object 'Part' is not in '//partless.blend'"
    with pytest.raises(InvalidSpec, match=r"linked Object 'Part' is not in.*allow_missing: true"):
        one.run()


def test_every_kind_of_simulation_that_is_not_baked_is_told(job: MakeJob, made: Path) -> None:
    report = job(made / "simulations.blend").preflight()
    told = {f["message"].split(" is not baked")[0] for f in report["findings"] if f["code"] == "not_baked"}
    assert told == {
        "soft body of 'Soft'", "fluid of 'Smoke'", "dynamic paint of 'Wet'", "particles of 'Sparks'",
        "rigid bodies of 'Scene'", "simulation nodes of 'Nodes'",
    }  # fmt: skip


def test_what_hides_in_groups_keys_and_settings_is_told(job: MakeJob, made: Path) -> None:
    report = job(made / "hidden.blend").preflight()
    told = {(f["code"], f["message"].split(":")[0]) for f in report["findings"]}
    last = "is a Python expression; it will not run"
    roughness = 'nodes["Principled BSDF"].inputs[2].default_value'
    assert told == {
        ("driver", f"driver on 'ParticleSettings' hair_length {last}"),
        ("driver", f"driver on 'Key' key_blocks[\"Up\"].value {last}"),
        ("driver", f"driver on 'Paint' {roughness} {last}"),
        ("not_baked", "hair dynamics of 'Cube' is not baked"),
        ("not_baked", "simulation nodes of 'Cube' is not baked"),
        ("osl", "script node 'Script' in 'Sun' will not run"),
    }


def test_an_imported_scene_has_the_frames_of_its_own_animation_or_one(
    job: MakeJob, python: str, tmp_path: Path
) -> None:
    run_in_blender(python, "export_files.py", str(tmp_path))
    for name, frames in (
        ("cube.glb", (1, 1)), ("cube.obj", (1, 1)), ("cube.ply", (1, 1)), ("cube.usdc", (0, 0)),
        ("turning.glb", (3, 9)), ("turning.usdc", (3, 9)),
    ):  # fmt: skip
        files = [tmp_path / name, tmp_path / "cube.mtl"]
        one = job(*files, engine="blender", resolution=[48, 36], blender={"camera": "auto"})
        facts = one.preflight()["facts"]
        assert (facts["frame_start"], facts["frame_end"]) == frames, name


def test_markers_that_switch_the_camera_are_told(job: MakeJob, made: Path) -> None:
    report = job(made / "markers.blend").preflight()
    assert "('Shot' from frame 1, 'Other' from frame 3)" in found(report, "camera_markers")["message"]
    assert report["facts"]["camera_markers"] == [
        {"frame": 1, "camera": "Shot"},
        {"frame": 3, "camera": "Other"},
    ]
    named = job(made / "markers.blend", blender={"camera": "Shot"}).preflight()
    assert named["facts"]["camera_markers"] == []


def test_a_file_of_a_newer_blender_is_refused_before_one_opens_it(job: MakeJob, made: Path) -> None:
    one = job(made / "future.blend")
    with pytest.raises(
        PermanentFailure, match=r"was saved by Blender 4\.9, and this node renders it with 4\.5"
    ):
        one.run()
    assert "Read blend" not in one.host.log.text()


def test_an_engine_that_no_longer_exists_is_refused_with_the_choices(job: MakeJob, made: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"BLENDER_GAME, does not exist in Blender 4\.5.*cycles, eevee or"):
        job(made / "engine_gone.blend").run()
    one = job(made / "engine_gone.blend", frames="1", samples=2, blender={"engine": "cycles"})
    assert found(one.preflight(), "engine_gone")["severity"] == "note"
    assert ("render", 1) in one.run().published


def test_a_film_of_odd_size_is_refused_before_a_frame_is_rendered(job: MakeJob, made: Path) -> None:
    override = {"on": "scene", "name": "Scene", "property": "render.resolution_y", "value": 75}
    one = job(made / "plain.blend", film={}, blender={"overrides": [override]})
    with pytest.raises(InvalidSpec, match="for the film"):
        one.run()
    assert one.host.artifacts == {}


CONFIGURATION = """ocio_profile_version: 2
roles: {scene_linear: Linear, default: sRGB, color_picking: sRGB, data: Raw}
displays:
  Monitor:
    - !<View> {name: House, colorspace: sRGB}
colorspaces:
  - !<ColorSpace> {name: Linear, encoding: scene-linear}
  - !<ColorSpace> {name: Raw, isdata: true}
  - !<ColorSpace>
    name: sRGB
    from_scene_reference: !<ExponentWithLinearTransform> {gamma: 2.4, offset: 0.055, direction: inverse}
"""


def test_an_ocio_configuration_is_used_or_refused_and_never_replaced(
    job: MakeJob, made: Path, tmp_path: Path
) -> None:
    show, broken = tmp_path / "show.ocio", tmp_path / "broken.ocio"
    show.write_text(CONFIGURATION)
    broken.write_text("no configuration")
    blender = {"ocio": "show.ocio", "view_transform": "House"}
    report = job(made / "plain.blend", show, blender=blender).preflight()
    assert report["facts"]["view_transform"] == "House"
    # the file asks for AgX, which this configuration does not have
    with pytest.raises(InvalidSpec, match=r"has no view 'AgX'.*would show 'House'; name one in"):
        job(made / "plain.blend", show, blender={"ocio": "show.ocio"}).run()
    # Blender would take its own configuration instead
    with pytest.raises(InvalidSpec, match=r"the OCIO configuration broken\.ocio cannot be used"):
        job(made / "plain.blend", broken, blender={"ocio": "broken.ocio"}).run()


def test_the_report_and_what_it_took_are_kept(job: MakeJob, made: Path) -> None:
    host = job(made / "scripts.blend").run(until="preflight")
    (result,) = host.results["preflight"]
    assert result["device"]["renderer"] == "blender"
    # opening, looking through and setting up, once the child is up
    assert 0 < result["device"]["inspect_s"] < result["device"]["open_s"] < result["device"]["load_s"]
    assert "warning: text 'hello.py' is set to run at load; it will not run" in host.log.text()
