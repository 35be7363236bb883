"""Whole nerf jobs on tiny sets: steps, resume, parking, evaluation, exports that others open again."""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.errors import CancelRequested, ParkRequested, PermanentFailure
from jobs.kind import ExpandContext
from jobs.nerf.exports.splat_files import read_spz
from jobs.nerf.packing import MODEL
from jobs.registry import kind
from tests.unit.jobs.local_host import LocalHost
from tests.unit.jobs.nerf.scenes import assets_of, look_at, write_set

QUICK = {"iterations": 60, "resolution": 24, "samples": 24, "ray_samples": 6000, "sh_degree": 1}


def spec_of(**more: Any) -> dict[str, Any]:
    return {"source": "set/transforms.json", "train": QUICK, "path": None, **more}


@pytest.fixture(name="files", scope="module")
def make_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("set")
    write_set(folder, 12)
    return assets_of(folder)


def run_job(host: LocalHost, spec: dict[str, Any]) -> None:
    """Every task of a job, on one thread: this process's threads would spin for one another."""
    host.tasks = functools.partial(LocalHost.tasks, host, threads=1)  # type: ignore[method-assign]
    host.run_job("nerf", spec)


def train(host: LocalHost, spec: dict[str, Any]) -> dict[str, Any]:
    """Run pose and train as a slot would; what train found."""
    parsed, plan = host.plan("nerf", spec)
    engine = kind("nerf").create_engine()
    engine.open(host)
    for step in plan.steps[:2]:
        if step.name == "pose" and host.results.get("pose"):
            continue
        for task in host.tasks(parsed, step, threads=1):
            engine.run(task, host)
    return host.results["train"][-1]


def tensors_of(host: LocalHost) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(host.artifacts[MODEL][0])


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return set(a) == set(b) and all(np.array_equal(a[name], b[name]) for name in a)


def stop_at(check: int, error: type[Exception]) -> Any:
    """Raise at a call of ``check`` of the step train."""
    seen = [0]

    def on_check(host: LocalHost) -> None:
        if host.step == "train":
            seen[0] += 1
            if seen[0] == check:
                raise error()

    return on_check


@pytest.fixture(name="whole", scope="module")
def make_whole(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path]) -> Iterator[LocalHost]:
    """A dense job with everything: path, three kinds of output, exports, a film."""
    host = LocalHost(tmp_path_factory.mktemp("whole"), files)
    spec = spec_of(
        train={**QUICK, "iterations": 160, "preview_s": 0.5},
        path={"type": "orbit", "fov": 40.0},
        frames="1-3",
        outputs=["png", {"format": "exr", "layers": ["depth", "normal"], "dtype": "float"}],
        exports=["mesh", "points", "colmap", "cameras"],
        mesh_resolution=32,
        film={},
        chunk_frames=2,
    )
    run_job(host, spec)
    return host


def test_every_step_leaves_what_it_promises(whole: LocalHost) -> None:
    assert set(whole.results) == {"pose", "train", "evaluate", "export", "views", "encode"} - {"views"}
    assert sorted(n for step, n in whole.published if step == "views") == [1, 2, 3]
    assert {"dataset.zip", MODEL, "report.json", "report.html", "film.mp4", "mesh.glb"} <= set(
        whole.artifacts
    )
    assert whole.results["pose"][0]["bounded"] and whole.results["pose"][0]["test"] == 1
    assert whole.previews and Image.open(io.BytesIO(whole.previews[-1])).size == (320 + 320, 240)
    curve = whole.results["train"][0]["curve"]
    assert curve[-1][0] == 160 and curve[-1][3] > curve[0][3]


def test_the_held_out_picture_is_learnt_and_the_report_counts_as_scikit_image_does(whole: LocalHost) -> None:
    skimage = pytest.importorskip("skimage.metrics")
    from jobs.nerf.metrics import psnr, ssim

    report = json.loads(whole.artifacts["report.json"][0].read_text())
    assert report["split"] == "test" and report["mean"]["psnr"] > 18.0
    assert report["lpips"].startswith("unavailable")
    a, b = np.random.default_rng(0).random((2, 24, 32, 3))
    assert np.isclose(psnr(a, b), skimage.peak_signal_noise_ratio(b, a, data_range=1.0))
    wanted = skimage.structural_similarity(
        a, b, channel_axis=2, data_range=1.0, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    assert np.isclose(ssim(a, b), wanted, atol=1e-6)
    page = whole.artifacts["report.html"][0].read_text()
    assert page.count("<img") == 3 and "<script" not in page


def test_depth_and_normals_are_those_of_the_ball(whole: LocalHost) -> None:
    """The orbit's middle pixel looks at the red ball's middle: its depth is the distance less the radius."""
    import OpenEXR

    path = whole.published["views", 1].files["layers.exr"]
    with OpenEXR.File(str(path), separate_channels=True) as file:
        channels = {name: np.array(channel.pixels) for name, channel in file.channels().items()}
    assert set(channels) == {"depth.Z", "normal.X", "normal.Y", "normal.Z"}
    height, width = channels["depth.Z"].shape
    # cameras stand at radius 3 and heights 1 and 2: distances 3.16 and 3.61 from the middle; ball of 0.45
    distance = float(np.median([np.hypot(3, 1), np.hypot(3, 2)]))
    assert abs(channels["depth.Z"][height // 2, width // 2] - (distance - 0.45)) < 0.35
    lengths = np.sqrt(sum(channels[f"normal.{c}"] ** 2 for c in "XYZ"))
    assert abs(lengths[height // 2, width // 2] - 1.0) < 1e-3


def test_the_mesh_opens_elsewhere_and_lies_where_the_balls_are(whole: LocalHost) -> None:
    import trimesh

    path, media_type, meta = whole.artifacts["mesh.glb"]
    assert media_type == "model/gltf-binary"
    mesh = trimesh.load(io.BytesIO(path.read_bytes()), file_type="glb", force="mesh")
    assert len(mesh.faces) == meta["faces"] and mesh.visual.kind == "vertex"
    # back from glTF's y up and from the scene's lengths to the source's
    places = np.asarray(mesh.vertices) @ np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]])
    world = np.linalg.inv(np.array(meta["world"]))
    places = places @ world[:3, :3].T + world[:3, 3]
    centres = np.array([[0, 0, 0], [0.6, 0.1, 0.2], [-0.3, -0.5, 0.3]])
    radii = np.array([0.45, 0.3, 0.3])
    off = np.abs(np.linalg.norm(places[:, None] - centres, axis=2) - radii).min(1)
    assert np.median(off) < 0.12
    # seen from outside, faces turn to the viewer: the volume is positive
    assert mesh.volume > 0


def test_points_and_cameras_open_elsewhere(whole: LocalHost, tmp_path: Path) -> None:
    plyfile = pytest.importorskip("plyfile")
    pycolmap = pytest.importorskip("pycolmap")
    cloud = plyfile.PlyData.read(str(whole.artifacts["points.ply"][0]))["vertex"]
    assert len(cloud) == whole.artifacts["points.ply"][2]["points"] > 100
    with zipfile.ZipFile(whole.artifacts["colmap.zip"][0]) as archive:
        archive.extractall(tmp_path)
    model = pycolmap.Reconstruction(str(tmp_path / "sparse" / "0"))
    assert model.num_reg_images() == 12
    image = next(image for image in model.images.values() if image.name.startswith("00004"))
    # camera 4 of the ring stands at 120 degrees, radius 3, height 2 (even ones stand higher)
    wanted = [3 * np.cos(2 * np.pi * 4 / 12), 3 * np.sin(2 * np.pi * 4 / 12), 2.0]
    assert np.allclose(image.projection_center(), wanted, atol=1e-6)
    assert np.allclose(image.project_point(np.zeros(3)), [16, 12], atol=1e-4)
    cameras = json.loads(whole.artifacts["cameras.json"][0].read_text())
    assert len(cameras["frames"]) == 12


@pytest.mark.parametrize("method", ["nerf", "splat"])
def test_parked_and_resumed_it_ends_with_the_same_bits(
    method: str, files: dict[str, Path], tmp_path: Path
) -> None:
    more = {"method": method, "train": {**QUICK, "iterations": 24, "appearance": True, "cap": 120}}
    straight = LocalHost(tmp_path / "a", files)
    train(straight, spec_of(**more))
    parked = LocalHost(tmp_path / "b", files, on_check=stop_at(12, ParkRequested))
    with pytest.raises(ParkRequested):
        train(parked, spec_of(**more))
    assert parked.checkpoint is not None and "train" not in parked.results
    parked.on_check = None
    assert train(parked, spec_of(**more))["iterations"] == 24
    assert "resumed at iteration 11" in parked.log.text()
    assert same(tensors_of(straight), tensors_of(parked))


def test_another_seed_gives_another_field_and_cancel_leaves_no_model(
    files: dict[str, Path], tmp_path: Path
) -> None:
    hosts = [LocalHost(tmp_path / str(seed), files) for seed in (1, 2)]
    for seed, host in enumerate(hosts):
        train(host, spec_of(seed=seed, train={**QUICK, "iterations": 3}))
    assert not same(tensors_of(hosts[0]), tensors_of(hosts[1]))
    host = LocalHost(tmp_path / "c", files, on_check=stop_at(2, CancelRequested))
    with pytest.raises(CancelRequested):
        train(host, spec_of())
    assert MODEL not in host.artifacts


def test_a_checkpoint_of_another_method_or_version_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    from jobs.nerf.methods.loader import write_checkpoint

    host = LocalHost(tmp_path / "a", files)
    train(host, spec_of(train={**QUICK, "iterations": 2}))
    host.checkpoint = host.artifacts[MODEL][0]
    with pytest.raises(PermanentFailure, match=r"form 'dense', version 1, but this job trains form 'torch'"):
        train(host, spec_of(method="splat"))
    host.checkpoint = tmp_path / "old"
    write_checkpoint(host.checkpoint, {}, {"form": "dense", "version": 0})
    with pytest.raises(PermanentFailure, match="version 0"):
        train(host, spec_of())
    host.checkpoint.write_bytes(b"no checkpoint")
    with pytest.raises(PermanentFailure, match="cannot be read"):
        train(host, spec_of())


def test_training_stops_at_the_quality_that_was_asked_for(files: dict[str, Path], tmp_path: Path) -> None:
    host = LocalHost(tmp_path, files)
    found = train(host, spec_of(train={**QUICK, "iterations": 5000, "target_psnr": 12.0, "preview_s": 0.01}))
    assert found["iterations"] < 5000 and found["psnr"] >= 12.0
    assert found["ended"].endswith("dB")


def test_splats_are_exported_in_layouts_that_others_read(files: dict[str, Path], tmp_path: Path) -> None:
    plyfile = pytest.importorskip("plyfile")
    host = LocalHost(tmp_path, files)
    spec = spec_of(
        method="splat", exports=["ply", "spz", "points"], path={"type": "interpolate"}, frames="5",
        train={**QUICK, "iterations": 120, "cap": 300, "sh_degree": 2},
    )  # fmt: skip
    run_job(host, spec)
    tensors = tensors_of(host)
    rows = plyfile.PlyData.read(str(host.artifacts["splats.ply"][0]))["vertex"]
    count = len(rows)
    assert count == len(tensors["field.means"]) > 200
    assert np.array_equal(np.stack([rows[c] for c in "xyz"], 1), tensors["field.means"])
    assert np.array_equal(rows["f_rest_8"], tensors["field.shN"][:, 0, 1])
    assert np.allclose(sum(rows[f"rot_{i}"] ** 2 for i in range(4)), 1.0, atol=1e-5)
    import gsply

    packed = gsply.read_spz(str(host.artifacts["splats.spz"][0]))
    assert np.array_equal(packed.means, read_spz(host.artifacts["splats.spz"][0])["means"].astype(np.float32))
    packed = {name: getattr(packed, name) for name in ("means", "scales", "quats", "opacities", "sh0", "shN")}
    assert np.abs(packed["means"] - tensors["field.means"]).max() <= 0.5 / 4096 + 1e-6
    # a step of a logarithm of a scale is 1/16
    assert np.abs(packed["scales"] - tensors["field.scales"]).max() <= 0.5 / 16 + 1e-5
    # colours in steps of 1/255 over 0.15, opacities of 1/255, harmonics kept to 5 and 4 bits
    assert (
        np.abs(packed["sh0"].reshape(count, 3) - tensors["field.sh0"][:, 0]).max() <= 0.5 / 255 / 0.15 + 1e-4
    )
    solid = [1 / (1 + np.exp(-values)) for values in (packed["opacities"], tensors["field.opacities"])]
    assert np.abs(solid[0] - solid[1]).max() <= 0.5 / 255 + 1e-4
    assert np.abs(packed["shN"] - tensors["field.shN"]).max() <= 8 / 128 + 1 / 128
    own = tensors["field.quats"] / np.linalg.norm(tensors["field.quats"], axis=1, keepdims=True)
    assert np.abs((packed["quats"] * own).sum(1)).min() > 0.995
    assert host.artifacts["splats.spz"][0].stat().st_size < host.artifacts["splats.ply"][0].stat().st_size / 4
    assert host.results["evaluate"][0]["mean"]["psnr"] > 14.0


def test_a_job_trains_on_the_frames_of_another_with_its_cameras(tmp_path: Path) -> None:
    from tests.unit.jobs.local_host import Published
    from tests.unit.jobs.nerf.scenes import FOCAL, draw, ring

    other = LocalHost(tmp_path / "other", {})
    lens = {"fl_x": FOCAL, "fl_y": FOCAL, "cx": 16.0, "cy": 12.0, "w": 32, "h": 24}
    cameras = []
    for number, matrix in enumerate(ring(6), 1):
        path = tmp_path / f"{number}.png"
        Image.fromarray(draw(matrix)).save(path)
        other.published["render", number] = Published(number, {"beauty.png": path}, 0, 0, {})
        cameras.append({"frame": number, "camera_to_world": matrix.tolist(), "intrinsics": lens})
    other.outputs["render"] = [{"name": "beauty.png", "width": 32, "height": 24, "format": "png"}]
    other.results["render"] = [{"cameras": cameras[:3]}, {"cameras": cameras[3:]}]
    host = LocalHost(tmp_path / "host", {}, others={"job_a": other})
    found = train(host, {"source": "job_a", "train": {**QUICK, "iterations": 2}, "path": None})
    assert found["iterations"] == 2 and host.results["pose"][0]["registered"] == 6
    other.results["render"] = [{"cameras": cameras[:3]}]
    with pytest.raises(PermanentFailure, match="does not tell the cameras of frames 4, 5, 6"):
        train(LocalHost(tmp_path / "h2", {}, others={"job_a": other}), {"source": "job_a", "path": None})


def test_views_follow_a_path_of_nerfstudio_and_its_length(files: dict[str, Path], tmp_path: Path) -> None:
    matrix = look_at((0.9, 0.0, 0.4))
    camera = {"camera_to_world": matrix.reshape(-1).tolist(), "fov": 50.0, "aspect": 1.0}
    path = tmp_path / "path.json"
    path.write_text(json.dumps({"camera_type": "perspective", "camera_path": [camera] * 5, "fps": 5}))
    host = LocalHost(tmp_path / "host", {**files, "path.json": path})
    spec = spec_of(path={"type": "file", "path": "path.json"}, train={**QUICK, "iterations": 2})
    train(host, spec)
    assert host.results["pose"][0]["path_frames"] == "1-5"
    from jobs.nerf.cameras import path_views
    from jobs.nerf.packing import unpack_dataset
    from jobs.nerf.spec import Spec

    step = kind("nerf").expand_deferred(
        kind("nerf").parse(spec), "views", host.results["pose"], ExpandContext()
    )
    assert [str(task.frames) for task in step.tasks] == ["1-5"]
    scene = unpack_dataset(host, tmp_path / "set")
    parsed = Spec.model_validate(spec)
    (view,) = path_views(parsed, scene, parsed.frame_range() or step_range(), [3], (40, 40), host)
    assert np.allclose(view.matrix, matrix)
    # fov 50 degrees of a square picture of 40 pixels
    assert np.isclose(view.fx, 20 / np.tan(np.radians(25)))


def step_range() -> Any:
    from farm.frame_range import FrameRange

    return FrameRange.parse("1-5")


def test_cuda_is_refused_where_there_is_none(files: dict[str, Path], tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    from farm.errors import DeviceUnavailable

    for more in ({"device": "cuda"}, {"device": "cuda", "method": "splat"}):
        with pytest.raises(DeviceUnavailable, match="sees no GPU"):
            train(LocalHost(tmp_path / str(len(more)), files), spec_of(**more))


def test_the_hash_grid_learns_on_a_cpu_too_and_resumes(files: dict[str, Path], tmp_path: Path) -> None:
    quick = {**QUICK, "iterations": 30, "hash_log2": 12, "samples": 16, "ray_samples": 2000, "preview_s": 0.5}
    straight = LocalHost(tmp_path / "a", files)
    curve = train(straight, spec_of(form="hash", train=quick))["curve"]
    assert curve[-1][4] < curve[0][4]
    parked = LocalHost(tmp_path / "b", files, on_check=stop_at(15, ParkRequested))
    with pytest.raises(ParkRequested):
        train(parked, spec_of(form="hash", train=quick))
    parked.on_check = None
    train(parked, spec_of(form="hash", train=quick))
    assert same(tensors_of(straight), tensors_of(parked))
