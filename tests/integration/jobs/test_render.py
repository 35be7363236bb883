"""Render tasks by the real renderer in a real child: pixels, layers, cameras, faults and interruptions."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import OpenEXR
import psutil
import pytest
from PIL import Image

from farm.errors import (
    CancelRequested,
    DeviceUnavailable,
    EscapedPath,
    OutOfSpace,
    ParkRequested,
    PermanentFailure,
    TaskFailed,
    TimedOut,
)
from farm.frame_range import FrameRange
from farm.settings import Settings
from jobs.engine import TaskContext
from jobs.render import demo
from jobs.render.engine import RenderEngine, create
from jobs.render.mitsuba.variants import choose
from jobs.render.spec import Spec
from tests.integration.jobs.scenes import render_directly, write_scene
from tests.unit.jobs.local_host import LocalHost

SMALL: dict[str, Any] = {"scene": "scene.xml", "resolution": [32, 24], "samples": 4, "variant": "scalar_rgb"}


def exr(path: Path) -> dict[str, Any]:
    with OpenEXR.File(str(path), separate_channels=True) as file:
        return {name: channel.pixels.copy() for name, channel in file.channels().items()}


def first_task(host: LocalHost, **fields: Any) -> TaskContext:
    parsed, plan = host.plan("render", {**SMALL, **fields})
    return next(host.tasks(parsed, plan.steps[0]))


def run(host: LocalHost, **fields: Any) -> None:
    host.run_job("render", {**SMALL, **fields})


def child_of(host: LocalHost) -> psutil.Process:
    """The process that holds the renderer: the innermost of the declared group."""
    process = psutil.Process(host.frozen_pids[0])
    while children := process.children():
        process = children[0]
    return process


def test_frames_are_equal_to_a_direct_render(host: LocalHost, tmp_path: Path, confined: str) -> None:
    run(host, frames="3-4", outputs=["png", {"format": "exr", "layers": ["beauty"], "dtype": "float"}])
    for number in (3, 4):
        linear, plain, _ = render_directly(tmp_path / "source", tmp_path / "direct", seed=number)
        files = host.published["render", number].files
        assert np.array_equal(np.asarray(Image.open(files["beauty.png"])), plain)
        found = exr(files["beauty.exr"])
        assert np.array_equal(np.stack([found[c] for c in "RGB"], -1), linear)
    assert f"confined by {confined}" in host.log.text()


def test_every_child_makes_the_same_noise(tmp_path: Path) -> None:
    # Mitsuba merges the meshes of this scene in an order of chance if it is let, and each order has its noise
    wanted = demo.spec(frames="1") | {"resolution": [48, 27], "samples": 2, "denoise": "none"}
    del wanted["film"]
    if choose(Spec.model_validate(wanted), "cpu").variant == "scalar_rgb":
        pytest.skip(
            "scalar_rgb divides a picture by the number of threads: only LLVM's frames can be compared"
        )
    made = []
    for threads in (1, 2, 1, 2):
        host = LocalHost(tmp_path / str(len(made)), demo.assets())
        host.threads = threads
        host.run_job("render", wanted)
        (frame,) = [frame for (step, _), frame in host.published.items() if step == "render"]
        made.append(np.asarray(Image.open(frame.files["beauty.png"])).astype(int))
    assert max(np.abs(made[0] - other).max() for other in made[1:]) <= 1


def test_layers_are_equal_to_a_direct_render(host: LocalHost, tmp_path: Path) -> None:
    run(host, frames="1", outputs=[{"format": "exr", "dtype": "float"}])
    aovs = "depth:depth,normal:sh_normal,albedo:albedo"
    linear, _, _ = render_directly(tmp_path / "source", tmp_path / "direct", seed=1, aovs=aovs)
    found = exr(host.published["render", 1].files["layers.exr"])
    names = [*"RGB", "depth.Z", "normal.X", "normal.Y", "normal.Z", "albedo.R", "albedo.G", "albedo.B"]
    assert set(found) == set(names)
    assert np.array_equal(np.stack([found[name] for name in names], -1), linear)
    # the ball's front is 4.22 from the camera: sqrt(1.5 ** 2 + 5 ** 2) - 1
    assert found["depth.Z"][12, 16] == pytest.approx(np.hypot(1.5, 5) - 1, abs=0.02)
    assert found["normal.Z"][12, 16] == pytest.approx(5 / np.hypot(1.5, 5), abs=0.05)


def test_an_orbit_is_equal_to_a_direct_render_and_says_where_it_stood(
    host: LocalHost, tmp_path: Path
) -> None:
    camera = {"type": "orbit", "elevation": 0, "distance": 6, "target": [0, 0, 0], "fov": 50}
    run(host, frames="1-4", camera=camera)
    sensor = {
        "type": "perspective", "fov_axis": "x", "fov": 50,
        "look_at": {"origin": [6, 0, 0], "target": [0, 0, 0], "up": [0, 1, 0]},
        "film": {"type": "hdrfilm", "width": 32, "height": 24, "rfilter": {"type": "box"}},
        "sampler": {"type": "independent", "sample_count": 4},
    }  # fmt: skip
    _, plain, matrix = render_directly(tmp_path / "source", tmp_path / "direct", seed=2, sensor=sensor)
    picture = np.asarray(Image.open(host.published["render", 2].files["beauty.png"]))
    # the direct camera holds its matrix in single precision throughout: one pixel may round the other way
    assert np.abs(picture.astype(int) - plain).max() <= 1
    (result,) = host.results["render"]
    assert [c["frame"] for c in result["cameras"]] == [1, 2, 3, 4]
    assert result["convention"] == "opengl"
    told = np.array(result["cameras"][1]["camera_to_world"])
    assert told @ np.diag([-1, 1, -1, 1]) == pytest.approx(matrix, abs=1e-6)
    assert result["cameras"][1]["intrinsics"]["fl_x"] == pytest.approx(16 / np.tan(np.radians(25)))


def test_the_files_own_camera_is_told_too(host: LocalHost) -> None:
    run(host)
    (result,) = host.results["render"]
    matrix = np.array(result["cameras"][0]["camera_to_world"])
    assert matrix[:3, 3] == pytest.approx([0, 1.5, 5])
    backwards = np.array([0, 1.5, 5]) / np.hypot(1.5, 5)
    assert matrix[:3, 2] == pytest.approx(backwards, abs=1e-6)
    assert result["device"]["variant"] == "scalar_rgb"
    assert result["device"]["samples"] == 4


def test_a_rest_of_a_chunk_still_tells_every_camera_of_the_chunk(host: LocalHost) -> None:
    import dataclasses

    task = dataclasses.replace(first_task(host, frames="1-3"), frames=FrameRange.of([3]))
    engine = create()
    try:
        engine.run(task, host)
    finally:
        engine.close()
    assert [number for _, number in host.published] == [3]
    assert [c["frame"] for c in host.results["render"][0]["cameras"]] == [1, 2, 3]


def test_slow_frames_are_handed_on_and_the_child_goes_on_with_them(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every frame takes over twice 10 microseconds: a task makes one, and tells the camera of that one."""
    import dataclasses

    monkeypatch.setattr("jobs.render.spec.LOAD_SHARE", 1e9)
    planned = first_task(host, frames="1-5", chunk_seconds=1e-5)
    engine = create()
    try:
        for left in ("1-5", "2-5"):
            host.told.clear()
            numbers = FrameRange.parse(left)
            engine.run(dataclasses.replace(planned, frames=numbers, payload={"frames": left}), host)
    finally:
        engine.close()
    assert [number for _, number in host.published] == [1, 2]
    assert [[c["frame"] for c in found["cameras"]] for found in host.results["render"]] == [[1], [2]]
    assert host.log.text().count("the scene is still loaded") == 1, "it owed nothing to the first task"
    _, plain, _ = render_directly(tmp_path / "source", tmp_path / "direct", seed=2)
    picture = Image.open(host.published["render", 2].files["beauty.png"])
    assert np.array_equal(np.asarray(picture), plain)


def test_every_format_reads_back(host: LocalHost) -> None:
    outputs = ["png", {"format": "png", "bits": 16, "name": "deep.png"}, "jpeg", "exr"]
    run(host, outputs=[*outputs, {"format": "png", "layer": "normal"}, {"format": "png", "layer": "albedo"}])
    files = host.published["render", 1].files
    assert set(files) == {"beauty.png", "deep.png", "beauty.jpg", "layers.exr", "normal.png", "albedo.png"}
    normal = np.asarray(Image.open(files["normal.png"])).astype(float)[12, 16] / 255 * 2 - 1
    assert np.linalg.norm(normal) == pytest.approx(1.0, abs=0.1)


def test_transparent_frames_keep_alpha(host: LocalHost) -> None:
    run(host, transparent=True, outputs=["png", "exr"], samples=16)
    picture = np.asarray(Image.open(host.published["render", 1].files["beauty.png"]))
    assert picture.shape == (24, 32, 4)
    assert picture[0, 0, 3] == 0
    assert picture[12, 16, 3] == 255
    assert exr(host.published["render", 1].files["layers.exr"])["A"][12, 16] == pytest.approx(1.0, abs=1e-3)


def test_exposure_brightens_png_and_leaves_exr(
    make_host: Callable[..., LocalHost], scene: dict[str, Path]
) -> None:
    plain, bright = make_host(scene), make_host(scene)
    run(plain, outputs=["png", "exr"])
    run(bright, outputs=["png", "exr"], exposure=1.0)
    files = [h.published["render", 1].files for h in (plain, bright)]
    assert files[0]["layers.exr"].read_bytes() == files[1]["layers.exr"].read_bytes()
    means = [np.asarray(Image.open(f["beauty.png"])).mean() for f in files]
    assert means[1] > means[0] * 1.1


def test_the_child_stays_open_between_tasks_of_a_job_and_ends_with_the_engine(host: LocalHost) -> None:
    parsed, plan = host.plan("render", {**SMALL, "frames": "1-3", "chunk_frames": 1})
    engine = create()
    pids = set()
    try:
        for task in host.tasks(parsed, plan.steps[0]):
            engine.run(task, host)
            pids.add(host.frozen_pids[0])
        assert host.warm == plan.steps[0].warm_key
        assert len(pids) == 1
        assert host.log.text().count("the scene is still loaded") == 2
        folder = engine._held.child.room.output
        assert {path.name for path in folder.iterdir()} <= {"kernels"}
    finally:
        engine.close()
    assert not psutil.pid_exists(pids.pop())
    assert not folder.exists()


def test_what_a_child_compiled_is_not_compiled_again_by_the_next_one_of_the_scene(
    make_host: Callable[[dict[str, Path]], LocalHost],
    scene: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not choose(Spec.model_validate({**SMALL, "variant": "auto"}), "cpu").variant.startswith("llvm"):
        pytest.skip("only Dr.Jit's variants compile, and none works here")
    monkeypatch.setattr(Settings, "run_dir", tmp_path / "run")
    first, second = make_host(scene), make_host(scene)
    run(first, variant="auto")
    run(second, variant="auto", seed=5)
    (kept,) = (tmp_path / "run" / "kernels").iterdir()
    count = len(list(kept.iterdir()))
    assert count > 3
    assert f"kept {count} compiled kernels" in first.log.text()
    assert "compiled kernels" not in second.log.text(), "the second child had to compile"


def test_another_scene_gets_another_child(host: LocalHost) -> None:
    engine = create()
    try:
        engine.run(first_task(host), host)
        first = host.frozen_pids[0]
        engine.run(first_task(host, samples=5), host)
        assert host.frozen_pids[0] != first
        assert not psutil.pid_exists(first)
    finally:
        engine.close()


def test_frame_staging_is_reserved_and_given_back(host: LocalHost) -> None:
    run(host)
    assert host.peak_reserved >= 32 * 24 * 3
    assert host.reserved == 0
    host.spool_budget = 10
    with pytest.raises(OutOfSpace):
        run(host)


# --- broken and hostile scenes ------------------------------------------------------------------------


def test_a_broken_scene_fails_at_once_with_the_renderers_words_and_the_file(
    make_host: Callable[..., LocalHost], tmp_path: Path
) -> None:
    files = write_scene(tmp_path / "broken", extra='<shape type="dodecahedron"/>')
    with pytest.raises(PermanentFailure, match=r"scene\.xml") as caught:
        run(make_host(files))
    assert "dodecahedron" in caught.value.message
    assert "/assets/" not in caught.value.message


def test_a_scene_that_is_not_xml_names_line_and_file(
    make_host: Callable[..., LocalHost], tmp_path: Path
) -> None:
    (tmp_path / "scene.xml").write_text("<scene version='3.0.0'>\n<shape")
    with pytest.raises(PermanentFailure, match=r"scene\.xml is not well-formed XML: .*line 2"):
        run(make_host({"scene.xml": tmp_path / "scene.xml"}))


def test_a_scene_without_a_camera_says_what_to_do(
    make_host: Callable[..., LocalHost], tmp_path: Path
) -> None:
    (tmp_path / "scene.xml").write_text('<scene version="3.0.0"><emitter type="constant"/></scene>')
    with pytest.raises(PermanentFailure, match="has no camera; set camera to orbit or keyframes"):
        run(make_host({"scene.xml": tmp_path / "scene.xml"}))


def test_a_scene_that_names_a_secret_never_reaches_the_renderer(
    make_host: Callable[..., LocalHost], tmp_path: Path
) -> None:
    secret = '<texture type="bitmap"><string name="filename" value="../../secret"/></texture>'
    host = make_host(write_scene(tmp_path / "evil", extra=secret))
    with pytest.raises(EscapedPath, match=r"scene\.xml names '\.\./\.\./secret'"):
        run(host)
    assert host.frozen_pids == []
    assert host.published == {}


def test_pixels_that_are_not_finite_fail_naming_the_frame(
    make_host: Callable[..., LocalHost], tmp_path: Path
) -> None:
    host = make_host(write_scene(tmp_path / "bright", radiance="3e38, 3e38, 3e38"))
    with pytest.raises(TaskFailed, match=r"frame 7: layer beauty has \d+ values that are not finite"):
        run(host, frames="7")
    assert host.published == {}


def test_half_floats_that_would_overflow_fail_with_the_way_out(
    make_host: Callable[..., LocalHost], tmp_path: Path
) -> None:
    files = write_scene(tmp_path / "bright", radiance="1e6, 1e6, 1e6")
    with pytest.raises(
        TaskFailed, match=r"frame 1: layers\.exr: layer beauty reaches .* set the output's dtype to float"
    ):
        run(make_host(files), outputs=["exr"])
    host = make_host(files)
    run(host, outputs=["exr32"])
    assert exr(host.published["render", 1].files["layers.exr"])["R"].max() > 65504


def test_samples_that_a_sampler_cannot_make_are_refused_with_the_nearest(
    make_host: Callable[..., LocalHost], tmp_path: Path
) -> None:
    files = write_scene(tmp_path / "jitter")
    text = files["scene.xml"].read_text().replace('"independent"', '"multijitter"')
    files["scene.xml"].write_text(text)
    with pytest.raises(
        PermanentFailure, match=r"samples 10: .*multijitter sampler would make it 12; ask for 12"
    ):
        run(make_host(files), samples=10)


def test_a_scene_that_asks_for_too_much_memory_fails_and_the_slot_lives(
    make_host: Callable[..., LocalHost], tmp_path: Path, scene: dict[str, Path], confined: str
) -> None:
    host = make_host(scene)
    host.spool_budget = 2**33
    with pytest.raises(TaskFailed, match=r"frame 1: .*(memory|GiB)"):
        run(host, resolution=[8192, 8192], samples=1, memory_limit=2**28, outputs=["exr32"])
    assert not any(psutil.pid_exists(pid) for pid in host.frozen_pids)


# --- devices ------------------------------------------------------------------------------------------


def test_cuda_in_a_slot_without_it_fails_and_never_falls_to_the_cpu(host: LocalHost) -> None:
    with pytest.raises(DeviceUnavailable, match="this slot owns no CUDA device"):
        run(host, device="cuda", variant="auto")
    assert host.published == {}


# --- interruptions ------------------------------------------------------------------------------------


def slow(host: LocalHost) -> TaskContext:
    """A task whose frames take minutes."""
    return first_task(host, frames="1-2", samples=1_000_000)


def interrupt(host: LocalHost, error: type[Exception], ready: Callable[[], bool]) -> RenderEngine:
    """Run a task that is interrupted once ``ready``; the engine that ran it."""

    def check(_: LocalHost) -> None:
        if ready():
            raise error()

    host.on_check = check
    return create()


def rendering(host: LocalHost) -> bool:
    """Whether the child has begun to work on a frame."""
    return bool(host.phases and host.phases[-1] == "work" and host.frozen_pids)


def test_cancel_ends_the_child_in_the_middle_of_a_frame(host: LocalHost) -> None:
    engine = interrupt(host, CancelRequested, lambda: rendering(host))
    began = time.monotonic()
    with pytest.raises(CancelRequested):
        engine.run(slow(host), host)
    assert time.monotonic() - began < 60
    assert not psutil.pid_exists(host.frozen_pids[0])
    assert host.published == {}
    engine.close()


def test_park_keeps_the_frames_that_are_done_and_the_child_when_it_is_idle(host: LocalHost) -> None:
    engine = interrupt(host, ParkRequested, lambda: ("render", 1) in host.published)
    try:
        with pytest.raises(ParkRequested):
            engine.run(first_task(host, frames="1-4"), host)
        numbers = {number for _, number in host.published}
        assert 1 in numbers
        assert 4 not in numbers
        host.on_check = None
        rest = FrameRange.parse("1-4").without(numbers)
        import dataclasses

        engine.run(dataclasses.replace(first_task(host, frames="1-4"), frames=rest), host)
        assert {number for _, number in host.published} == {1, 2, 3, 4}
    finally:
        engine.close()


def test_a_crash_names_the_frame_and_the_signal(host: LocalHost, confined: str) -> None:
    engine = interrupt(host, CancelRequested, lambda: False)
    killed: list[int] = []

    def check(_: LocalHost) -> None:
        if rendering(host) and not killed:
            killed.append(host.frozen_pids[0])
            child_of(host).send_signal(signal.SIGSEGV)

    host.on_check = check
    with pytest.raises(TaskFailed, match="frame 1: the renderer was killed by SIGSEGV"):
        engine.run(slow(host), host)
    assert not psutil.pid_exists(killed[0])
    host.on_check = None
    engine.run(first_task(host), host)
    assert ("render", 1) in host.published
    engine.close()


def test_a_frame_past_its_time_is_ended(host: LocalHost) -> None:
    engine = create()
    with pytest.raises(TimedOut, match=r"took longer than 3 s; raise frame_timeout_s"):
        engine.run(first_task(host, samples=1_000_000, frame_timeout_s=3), host)
    assert not psutil.pid_exists(host.frozen_pids[0])
    engine.close()


def test_folders_of_a_killed_slot_are_removed(host: LocalHost) -> None:
    stale = host.scratch.parent / "stillframe-render-4194303-abc"
    kept = host.scratch.parent / f"stillframe-render-{os.getpid()}-abc"
    stale.mkdir()
    kept.mkdir()
    create().open(host)
    assert not stale.exists()
    assert kept.exists()


def test_the_child_never_imports_torch(host: LocalHost) -> None:
    engine = create()
    try:
        engine.run(first_task(host), host)
        maps = Path(f"/proc/{child_of(host).pid}/maps").read_text()
        assert "mitsuba" in maps
        assert "torch" not in maps
    finally:
        engine.close()


def test_the_declared_group_can_be_frozen_and_let_go_again(host: LocalHost, confined: str) -> None:
    engine = create()
    try:
        engine.run(first_task(host), host)
        group, child = host.frozen_pids[0], child_of(host)
        assert os.getpgid(child.pid) == group
        os.killpg(group, signal.SIGSTOP)
        deadline = time.monotonic() + 20
        while child.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.status() == psutil.STATUS_STOPPED
        os.killpg(group, signal.SIGCONT)
        engine.run(first_task(host), host)
        assert child.is_running()
    finally:
        engine.close()
