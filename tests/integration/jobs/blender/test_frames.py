"""Frames of Blender jobs against direct ``bpy`` renders, their files, their order and their interruptions."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import OpenEXR
import psutil
import pytest
from PIL import Image

from farm.errors import DeviceUnavailable, InvalidSpec, PermanentFailure, TaskFailed, TimedOut
from farm.frame_range import FrameRange
from jobs.render.blender import driver
from jobs.render.engine import create
from tests.integration.jobs.blender.conftest import Job, run_in_blender
from tests.unit.jobs.local_host import LocalHost

MakeJob = Callable[..., Job]


def exr(path: Path) -> dict[str, Any]:
    with OpenEXR.File(str(path), separate_channels=True) as file:
        return {name: np.array(channel.pixels) for name, channel in file.channels().items()}


def pixels(path: Path) -> Any:
    return np.asarray(Image.open(path))


def test_what_is_not_named_is_as_the_file_says(job: MakeJob, made: Path, direct: Callable[..., Path]) -> None:
    one = job(made / "plain.blend")
    host = one.run()
    # the file: frames 1 to 5, 96x72 at half size
    assert sorted(number for _, number in host.published) == [1, 2, 3, 4, 5]
    folder = direct(made / "plain.blend", frames=[1, 3, 5])
    for number in (1, 3, 5):
        assert pixels(one.file(number)).shape == (36, 48, 3)
        assert np.array_equal(pixels(one.file(number)), pixels(folder / f"{number}.png"))


def test_what_is_named_is_done(job: MakeJob, made: Path, direct: Callable[..., Path]) -> None:
    blender = {
        "motion_blur": True, "denoiser": "openimagedenoise", "view_transform": "AgX",
        "look": "AgX - High Contrast", "exposure": 0.5, "gamma": 1.25,
    }  # fmt: skip
    asked = {"samples": 7, "resolution": [40, 30]}
    one = job(made / "plain.blend", frames="2,4", outputs=["png", "exr32"], blender=blender, **asked)
    host = one.run()
    assert sorted(number for _, number in host.published) == [2, 4]
    said = {
        "render.use_motion_blur": True, "cycles.use_denoising": True, "cycles.denoiser": "OPENIMAGEDENOISE",
        "view_settings.view_transform": "AgX", "view_settings.look": "AgX - High Contrast",
        "view_settings.exposure": 0.5, "view_settings.gamma": 1.25,
    }  # fmt: skip
    folder = direct(made / "plain.blend", frames=[2, 4], formats=["png", "exr"], set=said, **asked)
    for number in (2, 4):
        assert np.array_equal(pixels(one.file(number)), pixels(folder / f"{number}.png"))
        ours, theirs = exr(one.file(number, "layers.exr")), exr(folder / f"{number}.exr")
        assert set(ours) == set(theirs)
        assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert not np.array_equal(pixels(one.file(2)), pixels(one.file(4)))


def test_passes_are_declared_channel_by_channel(job: MakeJob, made: Path) -> None:
    passes = ["z", "normal", "diffuse_color", "cryptomatte_object", "vector", "uv", "object_index", "mist"]
    one = job(made / "plain.blend", frames="1", outputs=["exr"], blender={"passes": passes})
    host = one.run()
    (declared,) = host.outputs["render"]
    crypto = [f"CryptoObject{i:02d}.{letter}" for i in range(3) for letter in "rgba"]
    expected = [
        "Combined.R", "Combined.G", "Combined.B", "Combined.A", "Depth.Z", "Mist.Z", "Normal.X", "Normal.Y",
        "Normal.Z", "DiffCol.R", "DiffCol.G", "DiffCol.B", "UV.U", "UV.V", "UV.A", "Vector.X", "Vector.Y",
        "Vector.Z", "Vector.W", "IndexOB.X", *crypto,
    ]  # fmt: skip
    assert set(declared["channels"]) == {f"ViewLayer.{name}" for name in expected}
    assert set(exr(one.file(1, "layers.exr"))) == set(declared["channels"])


def test_a_pass_that_the_engine_does_not_write_is_refused(job: MakeJob, made: Path) -> None:
    with pytest.raises(InvalidSpec, match="CYCLES writes no pass 'shadow'"):
        job(made / "plain.blend", blender={"passes": ["shadow"]}).run()


def test_the_middle_frame_goes_first_and_is_not_rendered_twice(job: MakeJob, made: Path) -> None:
    # frame 0 counts as any other
    host = job(made / "plain.blend", frames="-2-2").run()
    text = host.log.text()
    assert text.count("frame 0: taken over from the canary") == 1
    order = [line.split(":")[0] for line in text.splitlines() if line.startswith("frame ")]
    # the canary, taken over, then first and last, then the rest
    assert order == [f"frame {number}" for number in (0, 0, -2, 2, -1, 1)]
    assert host.artifacts["canary-beauty.png"][2]["number"] == 0
    assert sum("loaded in" in line for line in text.splitlines()) == 1, "the file was opened more than once"


def test_a_frame_range_with_an_output_path_lands_where_promised(job: MakeJob, made: Path) -> None:
    """OpenCue 455: an output path of the file, beside a range, moves nothing."""
    one = job(made / "elsewhere.blend", frames="1-2")
    host = one.run()
    assert sorted(number for _, number in host.published) == [1, 2]
    assert not (made.parent / "elsewhere").exists()


def test_the_compositor_is_on_as_in_the_file_and_off_on_demand(job: MakeJob, made: Path) -> None:
    on, off = job(made / "elsewhere.blend", frames="1", outputs=["png", "exr"]), None
    host = on.run()
    assert (
        "Composite.Combined.R"
        in host.outputs["render"][0]["channels"] + host.outputs["render"][1]["channels"]
    )
    off = job(made / "elsewhere.blend", frames="1", blender={"compositor": False})
    off.run()
    plain = job(made / "plain.blend", frames="1")
    plain.run()
    assert np.array_equal(pixels(off.file(1)), pixels(plain.file(1)))
    assert not np.array_equal(pixels(on.file(1)), pixels(plain.file(1)))


def test_output_nodes_and_shading_programs_do_nothing_also_without_a_sandbox(
    made: Path, python: str, tmp_path: Path
) -> None:
    scene = Path(shutil.copy(made / "writes.blend", tmp_path))
    program = Path(driver.__file__).parent
    text = run_in_blender(python, "set_up_directly.py", str(program), str(scene), str(tmp_path), "{}")
    assert json.loads(text.splitlines()[-1])["osl"] == [False]
    # the file's nodes name //top, and //nested in a group of a group
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-beauty.png", "writes.blend"]


def test_a_named_camera_wins_over_the_markers_of_the_file(
    job: MakeJob, made: Path, direct: Callable[..., Path]
) -> None:
    folder = direct(made / "markers.blend", frames=[1, 4])
    files = job(made / "markers.blend", frames="1,4")
    files.run()
    named = job(made / "markers.blend", frames="1,4", blender={"camera": "Shot"})
    named.run()
    auto = job(made / "markers.blend", frames="1,4", blender={"camera": "auto"})
    assert auto.preflight()["facts"]["camera_markers"] == []
    plain = direct(made / "plain.blend", frames=[4]) / "4.png"
    assert np.array_equal(pixels(named.file(4)), pixels(plain))
    assert np.array_equal(pixels(files.file(1)), pixels(folder / "1.png"))
    assert not np.array_equal(pixels(files.file(4)), pixels(named.file(4)))


def test_formats_read_back_with_alpha_depth_and_type(job: MakeJob, made: Path) -> None:
    one = job(made / "plain.blend", frames="1", transparent=True, outputs=["png16", "exr"])
    one.run()
    found = exr(one.file(1, "layers.exr"))
    assert found["ViewLayer.Combined.A"].min() == 0.0
    assert found["ViewLayer.Combined.A"].dtype == np.float16
    jpeg = job(made / "plain.blend", frames="1", outputs=["jpeg"])
    jpeg.run()
    assert pixels(jpeg.file(1, "beauty.jpg")).shape == (36, 48, 3)


def test_an_override_changes_one_property_and_a_wrong_one_is_refused(
    job: MakeJob, made: Path, fault: Callable[..., str]
) -> None:
    override = {"on": "object", "name": "Cube", "property": "hide_render", "value": True}
    one = job(made / "plain.blend", frames="1", transparent=True, blender={"overrides": [override]})
    one.run()
    assert pixels(one.file(1))[..., 3].max() == 0
    for wrong, words in (
        ({"name": "Ball"}, "there is no object 'Ball'"),
        ({"property": "data.__class__"}, "has no property '__class__'"),
        ({"value": "yes"}, "is a boolean, but the value is 'yes'"),
        ({"property": "rotation_euler", "value": [0, 0, 2]}, "reads .* the file animates it"),
        ({"on": "scene", "name": "Scene", "property": "render.resolution_x", "value": 200_000},
         "property 'resolution_x' goes from 4 to 65536, but the value is 200000"),
        ({"on": "scene", "name": "Scene", "property": "render.use_stamp"}, "what a farm decides"),
    ):  # fmt: skip
        assert re.search(words, fault(blender={"overrides": [override | wrong]}))
    assert fault(blender={"overrides": [override]}) == ""


@pytest.mark.parametrize(
    ("on", "name", "path"),
    [
        ("object", "Cube", "animation_data.drivers[0].driver.expression"),
        ("object", "Cube", "animation_data.drivers[0].data_path"),
        ("material", "Paint", 'node_tree.nodes["Script"].bytecode'),
        ("scene", "Scene", "view_layers[0].freestyle_settings.linesets[0].name"),
    ],
)
def test_an_override_reaches_no_place_where_text_may_run(
    fault: Callable[..., str], on: str, name: str, path: str
) -> None:
    scene = "osl" if on == "material" else "scripts"
    override = {"on": on, "name": name, "property": path, "value": "1 + 1"}
    assert "which cannot be overridden" in fault(f"{scene}.blend", blender={"overrides": [override]})


def test_names_that_the_file_does_not_have_are_refused_with_the_choices(
    job: MakeJob, made: Path, fault: Callable[..., str]
) -> None:
    for blender, words in (
        ({"scene": "Nope"}, "there is no scene 'Nope' in the file; it has 'Scene'"),
        ({"view_layer": "Nope"}, "there is no view layer 'Nope'"),
        ({"view_transform": "Nope"}, "view_transform 'Nope' is not in this OCIO configuration"),
    ):
        assert words in fault(blender=blender)
    with pytest.raises(InvalidSpec, match="there is no camera 'Nope' in scene 'Scene'; it has 'Shot'"):
        job(made / "plain.blend", blender={"camera": "Nope"}).run()


@pytest.mark.parametrize("device", ["cuda", "hip"])
def test_a_device_that_is_not_there_fails_and_nothing_falls_to_the_cpu(
    job: MakeJob, made: Path, device: str
) -> None:
    """BlenderKit 777."""
    if device == "cuda" and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has an NVIDIA GPU")
    one = job(made / "plain.blend", device=device)
    with pytest.raises(DeviceUnavailable, match=device):
        one.run()
    assert one.host.published == {}


def test_every_kind_of_gpu_that_is_not_there_is_said(fault: Callable[..., str]) -> None:
    nvidia = Path("/dev/nvidia0").exists()
    for device in ("hip", "oneapi") if nvidia else ("cuda", "optix", "hip", "oneapi"):
        assert re.match(f"device: .*({device}|{device.upper()})", fault(device=device))


def test_another_version_of_blender_is_never_taken_instead(job: MakeJob, made: Path) -> None:
    with pytest.raises(DeviceUnavailable, match=r"Blender 3\.6 was asked for, but this node has .*4\.5"):
        job(made / "plain.blend", blender={"version": "3.6"}).run()


def test_a_blender_that_is_another_than_its_setting_says_renders_nothing(
    job: MakeJob, made: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_BLENDER", f"4.7={python}")
    with pytest.raises(DeviceUnavailable, match=r"FARM_BLENDER names a Blender 4\.7 which is 4\.5"):
        job(made / "plain.blend", blender={"version": "4.7"}).run()


def test_a_blender_program_renders_as_the_wheel_does(
    job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = shutil.which("blender")
    if program is None:
        pytest.skip("there is no blender program on PATH")
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = ".".join(told.split()[1].split(".")[:2])
    monkeypatch.setenv("FARM_BLENDER", f"{version}={program}")
    scene = tmp_path / "cube.obj"
    scene.write_text(
        "v -1 -1 0\nv 1 -1 0\nv 1 1 0\nv -1 1 0\nv 0 0 1.5\nf 1 2 5\nf 2 3 5\nf 3 4 5\nf 4 1 5\n"
    )
    one = job(
        scene,
        engine="blender", frames="1", samples=2, resolution=[48, 36], outputs=["png", "exr"],
        blender={"version": version, "camera": "auto", "denoiser": "none"},
    )  # fmt: skip
    host = one.run()
    assert host.results["render"][0]["device"]["version"].startswith(version)
    assert pixels(one.file(1)).std() > 5
    assert exr(one.file(1, "layers.exr"))["ViewLayer.Combined.R"].max() > 0


def test_tiles_make_the_same_picture_as_one_piece(job: MakeJob, made: Path) -> None:
    whole = job(made / "plain.blend", frames="3", outputs=["png", "exr32"], blender={"passes": ["z"]})
    whole.run()
    tiles = {"tiles": {"columns": 3, "rows": 2}, "passes": ["z"]}
    parts = job(made / "plain.blend", frames="3", outputs=["png", "exr32"], blender=tiles)
    host = parts.run()
    assert len([name for name in host.artifacts if name.startswith("part-")]) == 6
    one, many = exr(whole.file(3, "layers.exr")), exr(parts.file(3, "layers.exr", "merge"))
    assert set(one) == set(many)
    for name in one:
        assert np.array_equal(one[name], many[name]), name
    # the dither too is that of the whole
    assert np.array_equal(pixels(whole.file(3)), pixels(parts.file(3, step="merge")))


def test_sample_ranges_add_up_to_the_same_picture(job: MakeJob, made: Path) -> None:
    whole = job(made / "plain.blend", frames="3", samples=12, outputs=["exr32"])
    whole.run()
    parts = job(
        made / "plain.blend", frames="3", samples=12, outputs=["exr32", "png"], blender={"sample_ranges": 3}
    )
    parts.run()
    one, many = exr(whole.file(3, "layers.exr")), exr(parts.file(3, "layers.exr", "merge"))
    assert set(one) == set(many)
    for name in one:
        assert np.abs(one[name] - many[name]).max() < 1e-4, name


def test_a_lost_tile_is_named(job: MakeJob, made: Path) -> None:
    one = job(made / "plain.blend", frames="3", blender={"tiles": {"columns": 2, "rows": 2}})
    one.run(until="parts")
    del one.host.artifacts["part-0002.exr"]
    parsed, plan = one.host.plan("render", one.spec)
    merge = one.host.expanded("render", parsed, plan.steps[2])
    engine = create()
    try:
        with pytest.raises(TaskFailed, match="1 of 4 parts are missing: 2"):
            engine.run(next(one.host.tasks(parsed, merge)), one.host)
    finally:
        engine.close()


@pytest.mark.parametrize("scene", ["elsewhere", "denoised"])
def test_what_no_part_can_do_alone_is_refused(job: MakeJob, made: Path, scene: str) -> None:
    words = {"elsewhere": "compositor needs the whole picture", "denoised": "set blender.denoiser: none"}
    with pytest.raises(InvalidSpec, match=words[scene]):
        job(made / f"{scene}.blend", frames="1", blender={"tiles": {"columns": 2, "rows": 1}}).run()


def test_progress_inside_a_frame_is_told(job: MakeJob, made: Path) -> None:
    one = job(made / "plain.blend", frames="1", samples=400, resolution=[96, 72])
    one.run(until="canary")
    inside = [note for fraction, note in one.host.progresses if 0.0 < fraction < 1.0]
    assert inside
    assert all(note.startswith("frame 1: ") for note in inside)


# --- interruptions ----------------------------------------------------------------------------------------


def canary(one: Job) -> tuple[Any, LocalHost]:
    """The canary's task, after its preflight."""
    one.run(until="preflight")
    parsed, plan = one.host.plan("render", one.spec)
    return next(one.host.tasks(parsed, one.host.expanded("render", parsed, plan.steps[1]))), one.host


def renderer(host: LocalHost) -> psutil.Process:
    process = psutil.Process(host.frozen_pids[0])
    while children := process.children():
        process = children[0]
    return process


def test_a_crash_names_the_frame_the_signal_and_the_peak(job: MakeJob, made: Path) -> None:
    task, host = canary(job(made / "plain.blend", frames="4", samples=100_000))
    killed: list[int] = []

    def check(_: LocalHost) -> None:
        if host.phases and host.phases[-1] == "work" and not killed:
            killed.append(host.frozen_pids[0])
            renderer(host).send_signal(signal.SIGSEGV)

    host.on_check = check
    engine = create()
    with pytest.raises(TaskFailed, match=r"frame 4: the renderer was killed by SIGSEGV .*peak was 0\.\d"):
        engine.run(task, host)
    assert not psutil.pid_exists(killed[0])
    engine.close()


def test_a_frame_past_its_time_is_ended(job: MakeJob, made: Path) -> None:
    task, host = canary(job(made / "plain.blend", frames="1", samples=1_000_000))
    spec = {**task.spec, "frame_timeout_s": 6}
    engine = create()
    with pytest.raises(TimedOut, match=r"frame 1 took longer than 6 s"):
        engine.run(dataclasses.replace(task, spec=spec), host)
    assert not psutil.pid_exists(host.frozen_pids[0])
    engine.close()


def test_the_child_freezes_with_its_group_and_never_imports_torch(job: MakeJob, made: Path) -> None:
    task, host = canary(job(made / "plain.blend", frames="1"))
    engine = create()
    try:
        engine.run(task, host)
        child = renderer(host)
        assert "torch" not in Path(f"/proc/{child.pid}/maps").read_text()
        assert os.getpgid(child.pid) == host.frozen_pids[0]
        os.killpg(host.frozen_pids[0], signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while child.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.status() == psutil.STATUS_STOPPED
        os.killpg(host.frozen_pids[0], signal.SIGCONT)
        engine.run(task, host)
    finally:
        engine.close()
    assert not psutil.pid_exists(host.frozen_pids[0])


def test_a_new_take_renders_its_own_middle_frame(job: MakeJob, made: Path) -> None:
    one = job(made / "plain.blend", frames="3")
    host = one.run()
    parsed, plan = host.plan("render", one.spec)
    step = host.expanded("render", parsed, plan.steps[2])
    task = dataclasses.replace(next(host.tasks(parsed, step)), take=2, frames=FrameRange.of([3]))
    before = host.log.text().count("taken over from the canary")
    engine = create()
    try:
        engine.run(task, host)
    finally:
        engine.close()
    assert host.log.text().count("taken over from the canary") == before


def test_a_file_that_is_no_blend_fails_at_once(job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "no.blend").write_bytes(b"this is no blend file" * 10)
    with pytest.raises(PermanentFailure, match=r"no\.blend cannot be read as a \.blend file"):
        job(tmp_path / "no.blend").run()
