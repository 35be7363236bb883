"""Sources that bring more than pictures: HDR films, COLMAP models, masks, exposures; and what their size
decides.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from farm.errors import PermanentFailure
from jobs.nerf.inputs.gather import gather
from jobs.nerf.inputs.prepare import prepare
from jobs.nerf.inputs.raw import RawPicture, RawScene
from jobs.nerf.inputs.video import pick_frames
from jobs.nerf.methods.rays import Pictures
from jobs.nerf.pose.solve import matching_for
from jobs.nerf.scene import Scene
from jobs.nerf.spec import PoseSettings, Spec
from tests.unit.jobs.local_host import LocalHost
from tests.unit.jobs.nerf.scenes import assets_of, ring, write_set

CPU = torch.device("cpu")


# --- HDR films -------------------------------------------------------------------------------------------


def hdr_film(path: Path, transfer: int, codes: list[float]) -> Path:
    """Grey BT.2020 frames of 10 bits, HEVC, each of one signal level 0 to 1, by a phone's transfer curve."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        options = {"x265-params": "log-level=none:lossless=1"}
        stream = container.add_stream("libx265", rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p10le"
        context = stream.codec_context
        context.color_trc, context.color_range = transfer, 1
        context.color_primaries = context.colorspace = 9
        for code in codes:
            frame = av.VideoFrame(64, 48, "yuv420p10le")
            luma = round(64 + 876 * code)
            for plane, value in zip(frame.planes, (luma, 512, 512), strict=True):
                plane.update(np.full(plane.buffer_size // 2, value, np.uint16).tobytes())
            frame.color_trc, frame.color_range = transfer, 1
            frame.color_primaries = frame.colorspace = 9
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def srgb(linear: float) -> float:
    return 255 * (12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055)


# BT.2408: diffuse white is 203 cd/m2, 58 % of PQ's signal and 75 % of HLG's. It is put at 1 and rolled off
# from 0.8; a tenth of it lies at 20.3 cd/m2 (35.8 % of PQ), and in HLG, by its square, at the root of
# 3 * 0.1 * 0.26496 (28.2 %).
WHITE = srgb(0.8 + 0.2 * (1 - math.exp(-1)))


@pytest.mark.parametrize(("transfer", "codes"), [(16, [0.5807, 0.3581, 0.0]), (18, [0.75, 0.2819, 0.0])])
def test_hdr_films_are_brought_to_srgb(transfer: int, codes: list[float], tmp_path: Path) -> None:
    path = hdr_film(tmp_path / "a.mov", transfer, codes)
    scene = pick_frames(path, "a.mov", tmp_path / "out", 3, 1600, LocalHost(tmp_path / "host", {}))
    found = [np.asarray(Image.open(p.path).convert("RGB"))[20, 30] for p in scene.pictures]
    for pixel, wanted in zip(found, (WHITE, srgb(0.1), 0.0), strict=True):
        assert np.abs(pixel.astype(float) - wanted).max() <= 1.5, (pixel, wanted)


# --- COLMAP models ---------------------------------------------------------------------------------------


def colmap_model(folder: Path, names: list[str]) -> None:
    """A text model with the ring's cameras, one lens, and one point at the origin, as COLMAP documents it."""
    folder.mkdir(parents=True)
    (folder / "cameras.txt").write_text("1 SIMPLE_RADIAL 32 24 40 16 12 0.01\n")
    lines = []
    for index, (name, matrix) in enumerate(zip(names, ring(len(names)), strict=True), 1):
        # OpenGL's camera-to-world to OpenCV's world-to-camera
        turn = (matrix[:3, :3] @ np.diag([1.0, -1.0, -1.0])).T
        off = -turn @ matrix[:3, 3]
        w = math.sqrt(max(0.0, 1 + np.trace(turn))) / 2
        x, y, z = (turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1])
        quat = np.array([w, x / (4 * w), y / (4 * w), z / (4 * w)])
        values = " ".join(f"{v:.12g}" for v in (*quat, *off))
        lines += [f"{index} {values} 1 {name}", "16 12 1"]
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    (folder / "points3D.txt").write_text("1 0 0 0 255 0 128 0.5 1 0\n")


def test_a_colmap_model_gives_its_cameras_lenses_and_points(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap")
    write_set(tmp_path / "set", 5)
    names = [f"{i:03d}.png" for i in range(5)]
    colmap_model(tmp_path / "set" / "sparse" / "0", names)
    host = LocalHost(tmp_path / "host", assets_of(tmp_path / "set"))
    source = {"type": "colmap", "path": "set/sparse/0", "images": "set/images"}
    scene = gather(Spec.model_validate({"source": source}), host, tmp_path / "work")
    assert [p.name for p in scene.pictures] == names
    for picture, wanted in zip(scene.pictures, ring(5), strict=True):
        assert picture.matrix is not None and np.allclose(picture.matrix, wanted, atol=1e-6)
        assert picture.lens is not None
        assert (picture.lens.value("k1"), picture.lens.value("fl_y")) == (0.01, 40.0)
    assert np.allclose(scene.points, [[0, 0, 0, 1, 0, 128 / 255]])
    (tmp_path / "host" / "assets" / "set" / "images" / "003.png").unlink()
    with pytest.raises(PermanentFailure, match=r"names 1 pictures that are not.*003\.png"):
        gather(Spec.model_validate({"source": source}), host, tmp_path / "work")


# --- masks -----------------------------------------------------------------------------------------------


@pytest.fixture
def masked(tmp_path: Path) -> tuple[Scene, Path, LocalHost]:
    """Six pictures before a grey wall; the left half of each is painted over and masked."""
    write_set(tmp_path / "set", 6)
    (tmp_path / "set" / "masks").mkdir()
    for path in sorted((tmp_path / "set" / "images").iterdir()):
        pixels = np.array(Image.open(path))
        pixels[pixels[..., 3] == 0] = (90, 90, 90, 255)
        pixels[:, :16] = (255, 0, 255, 255)
        Image.fromarray(pixels[..., :3]).save(path)
        mask = np.full(pixels.shape[:2], 255, np.uint8)
        mask[:, :16] = 0
        Image.fromarray(mask).save(tmp_path / "set" / "masks" / path.name)
    shutil.copytree(tmp_path / "set" / "masks", tmp_path / "set" / "masks" / "images")
    host = LocalHost(tmp_path / "host", assets_of(tmp_path / "set"))
    spec = Spec.model_validate({"source": "set/transforms.json", "pictures": {"masks": "set/masks"}})
    raw = gather(spec, host, tmp_path / "work")
    for picture in raw.pictures:
        # masks are named like the pictures, whose names here have a folder before them
        assert picture.mask is not None
    return prepare(raw, spec, host, tmp_path / "dataset"), tmp_path / "dataset", host


def test_masked_pixels_stay_opaque_and_are_never_drawn_for_training(
    masked: tuple[Scene, Path, LocalHost],
) -> None:
    scene, folder, _ = masked
    # a mask says what not to learn from; it makes no object without a background
    assert not scene.bounded
    scene.save(folder)
    again = Scene.load(folder)
    assert [view.mask for view in again.views] == [view.mask for view in scene.views] != [""] * 6
    seen = Pictures.load(again.of("train"), folder, CPU)
    assert bool((seen.pixels[:, 3] == 255).all())
    drawn = seen.drawn(4000, torch.Generator().manual_seed(0))
    columns = (drawn - seen.first[torch.searchsorted(seen.first, drawn, right=True) - 1]) % 32
    assert int(columns.min()) == 16 and int(columns.max()) == 31
    assert not bool((seen.colours(drawn)[:, :3] == torch.tensor([1.0, 0.0, 1.0])).all(-1).any())


# --- what the number of pictures decides -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "in_time", "asked", "wanted"),
    [
        (200, False, "auto", "exhaustive"), (200, True, "auto", "exhaustive"),
        (201, True, "auto", "sequential"), (201, False, "auto", "vocabulary"),
        (3, False, "sequential", "sequential"),
    ],
)  # fmt: skip
def test_pictures_are_compared_all_with_all_until_there_are_too_many(
    count: int, in_time: bool, asked: str, wanted: str
) -> None:
    scene = RawScene([RawPicture(f"{i}.jpg", Path()) for i in range(count)], in_time=in_time)
    assert matching_for(scene, PoseSettings.model_validate({"matching": asked})) == wanted


# --- exposure --------------------------------------------------------------------------------------------


def test_learnt_exposures_tell_pictures_apart_that_were_exposed_differently(tmp_path: Path) -> None:
    """Half of the pictures are darker by a known factor: it is found, and the rest fits."""
    write_set(tmp_path / "set", 6)
    for index, path in enumerate(sorted((tmp_path / "set" / "images").iterdir())):
        pixels = np.array(Image.open(path)).astype(float)
        pixels[pixels[..., 3] == 0] = (200, 200, 200, 255)
        pixels[..., :3] *= 0.5 if index % 2 else 1.0
        Image.fromarray(pixels.astype(np.uint8)[..., :3]).save(path)
    errors: dict[bool, float] = {}
    for appearance in (False, True):
        from jobs.nerf.training import Trainer

        spec = Spec.model_validate(
            {
                "source": "set/transforms.json", "pictures": {"hold_out": 0}, "path": None,
                "train": {
                    "iterations": 100, "resolution": 16, "samples": 24, "ray_samples": 4000, "sh_degree": 0,
                    "appearance": appearance,
                },
            }
        )  # fmt: skip
        host = LocalHost(tmp_path / f"host{appearance}", assets_of(tmp_path / "set"))
        folder = tmp_path / f"dataset{appearance}"
        scene = prepare(gather(spec, host, tmp_path / "work"), spec, host, folder)
        trainer = Trainer(spec, scene, folder, host)
        trainer.run()
        errors[appearance] = trainer.at.loss
        gains = trainer.look.exposure
    assert errors[True] < 0.6 * errors[False]
    # the bright ones over the dark ones, by gain and offset together at the colour of the wall
    bright, dark = (float((0.6 * torch.exp(gains[i::2, :3]) + gains[i::2, 3:]).mean()) for i in (0, 1))
    assert bright / dark == pytest.approx(2.0, rel=0.25)
