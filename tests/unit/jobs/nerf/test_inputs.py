"""Pictures and cameras as people send them: orientation, lenses, transforms.json, archives, films."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.errors import PermanentFailure
from jobs.nerf.inputs.archive import unpack
from jobs.nerf.inputs.lens import project, undistort
from jobs.nerf.inputs.pictures import open_picture, orientation, read_rgba, turned_lens, upright
from jobs.nerf.inputs.raw import Lens
from jobs.nerf.inputs.transforms import read_transforms, turn_camera
from jobs.nerf.inputs.video import choose, pick_frames
from jobs.nerf.names import is_junk, is_picture
from jobs.nerf.scene import check_matrix
from tests.unit.jobs.local_host import LocalHost
from tests.unit.jobs.nerf.scenes import look_at, write_set


def marked(width: int, height: int, x: int, y: int) -> Image.Image:
    image = Image.new("RGB", (width, height))
    image.putpixel((x, y), (255, 0, 0))
    return image


@pytest.mark.parametrize("value", range(1, 9))
def test_orientation_is_applied_once_and_the_lens_follows_the_picture(value: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    path = tmp_path / "a.png"
    marked(12, 8, 9, 2).save(path, exif=exif)
    image = open_picture(path, "a.png")
    assert orientation(image) == value
    pixels = read_rgba(path)
    (y,), (x,) = np.nonzero(pixels[..., 0])
    # the lens' centre is put on the marked pixel: it must stay there, whatever is turned
    lens = {"fl_x": 20.0, "fl_y": 30.0, "cx": 9.5, "cy": 2.5}
    width, height, turned = turned_lens(value, 12, 8, lens)
    assert pixels.shape[:2] == (height, width)
    assert (turned["cx"], turned["cy"]) == (x + 0.5, y + 0.5)
    assert (turned["fl_x"], turned["fl_y"]) == ((30.0, 20.0) if value >= 5 else (20.0, 30.0))
    assert orientation(upright(image)) == 1


@pytest.mark.parametrize("value", [1, 3, 6, 8])
def test_a_turned_camera_sees_a_point_where_the_turned_picture_shows_it(value: int) -> None:
    matrix = look_at((3.0, 1.0, 2.0))
    point = np.array([0.3, -0.2, 0.1, 1.0])

    def seen(camera: Any, lens: dict[str, float]) -> tuple[float, float]:
        local = np.linalg.inv(camera) @ point
        return (
            lens["fl_x"] * local[0] / -local[2] + lens["cx"],
            -lens["fl_y"] * local[1] / -local[2] + lens["cy"],
        )

    lens = {"fl_x": 20.0, "fl_y": 20.0, "cx": 6.0, "cy": 4.0}
    x, y = seen(matrix, lens)
    # where the pixel (x, y) goes when the picture is turned, from the definition of the tag
    wanted = {1: (x, y), 3: (12 - x, 8 - y), 6: (8 - y, x), 8: (y, 12 - x)}[value]
    _, _, turned = turned_lens(value, 12, 8, lens)
    assert np.allclose(seen(turn_camera(matrix, value), turned), wanted)


def test_a_mirrored_picture_has_no_camera() -> None:
    with pytest.raises(PermanentFailure, match="mirrors"):
        turn_camera(np.eye(4), 2)


@pytest.mark.parametrize(
    ("model", "params"),
    [
        ("SIMPLE_RADIAL", (50, 32, 24, 0.1)),
        ("RADIAL", (50, 32, 24, 0.1, -0.05)),
        ("OPENCV", (50, 55, 31, 23, 0.1, -0.02, 0.003, -0.004)),
        ("FULL_OPENCV", (50, 55, 31, 23, 0.1, -0.02, 0.003, -0.004, 0.01, 0.02, -0.01, 0.005)),
        ("OPENCV_FISHEYE", (50, 55, 31, 23, 0.05, -0.01, 0.002, 0.001)),
        ("SIMPLE_RADIAL_FISHEYE", (50, 32, 24, 0.05)),
    ],
)
def test_lenses_bend_as_colmap_bends_them(model: str, params: tuple[float, ...]) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    camera = pycolmap.Camera.create_from_model_name(1, model, 1.0, 64, 48)
    camera.params = list(map(float, params))
    rays = np.random.default_rng(0).uniform(-0.5, 0.5, (40, 2))
    wanted = camera.img_from_cam(np.hstack([rays, np.ones((40, 1))]))
    u, v = project(Lens(model, 64, 48, tuple(map(float, params))), rays[:, 0], rays[:, 1])
    assert np.allclose(np.stack([u, v], 1), wanted, atol=1e-9)


def test_an_undistorted_picture_shows_straight_what_was_bent() -> None:
    lens = Lens("SIMPLE_RADIAL", 96, 64, (80.0, 48.0, 32.0, -0.2))
    # a bent picture of a vertical line at x = 0.3 in front of the lens
    picture = np.zeros((64, 96, 4), np.uint8)
    picture[..., 3] = 255
    y = np.linspace(-0.5, 0.5, 4000)
    u, v = project(lens, np.full_like(y, 0.3), y)
    inside = (v >= 0) & (v < 64)
    picture[v[inside].astype(int), u[inside].astype(int), :3] = 255
    bent_columns = [int(row[:, 0].argmax()) for row in picture[4:60]]
    straight, pinhole = undistort(picture, lens)
    fx, _, cx, _ = pinhole.params
    columns = [
        (row[:, 0] * np.arange(96.0)).sum() / row[:, 0].astype(float).sum() + 0.5 for row in straight[8:56]
    ]
    assert max(bent_columns) - min(bent_columns) >= 1
    assert np.abs(np.array(columns) - (fx * 0.3 + cx)).max() < 0.8
    assert (straight[..., 3] == 255).all()


@pytest.mark.parametrize(
    "name", ["__MACOSX/._x.jpg", "._a.jpg", "a/._b.png", ".DS_Store", "p/Thumbs.db", "x/__MACOSX/b.jpg"]
)
def test_junk_is_told_by_its_name(name: str) -> None:
    assert is_junk(name) and not is_picture(name)


def test_photographs_are_told_by_their_names() -> None:
    assert is_picture("a/IMG_1.HEIC") and is_picture("b.jpeg") and not is_picture("notes.txt")


def test_a_zip_made_by_a_mac_gives_its_photographs_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("set/a.jpg", b"x")
        archive.writestr("__MACOSX/set/._a.jpg", b"junk")
        archive.writestr("set/.DS_Store", b"junk")
    folder = unpack(path, tmp_path / "out", "a.zip")
    assert sorted(p.name for p in (tmp_path / "out").rglob("*") if p.is_file()) == ["a.jpg"]
    assert (folder / "a.jpg").is_file()


def test_a_zip_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(200 * 2**20))
    with pytest.raises(PermanentFailure, match=r"bomb\.zip has .* and unpacks to 209,715,200 bytes"):
        unpack(path, tmp_path / "out", "bomb.zip")
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) == 0


@pytest.mark.parametrize("name", ["../../x.jpg", "/etc/x.jpg"])
def test_a_zip_that_reaches_outside_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(PermanentFailure, match="reaches outside"):
        unpack(path, tmp_path / "out", "a.zip")


# --- transforms.json -----------------------------------------------------------------------------------


def edited(path: Path, change: Any) -> Path:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def test_transforms_are_read_with_their_lens(tmp_path: Path) -> None:
    scene = read_transforms(write_set(tmp_path, 4), "transforms.json")
    assert [p.name for p in scene.pictures] == [f"images/{i:03d}.png" for i in range(4)]
    assert scene.pictures[0].lens == Lens("PINHOLE", 32, 24, (40.0, 40.0, 16.0, 12.0))


def test_intrinsics_are_resolved_frame_by_frame_for_mixed_sizes(tmp_path: Path) -> None:
    path = write_set(tmp_path, 3)
    Image.new("RGB", (64, 48)).save(tmp_path / "images" / "001.png")

    def change(data: dict[str, Any]) -> None:
        for name in ("fl_x", "fl_y", "cx", "cy", "w", "h"):
            data.pop(name)
        for index, frame in enumerate(data["frames"]):
            wide = 64 if index == 1 else 32
            frame |= {"fl_x": 40.0 + index, "cx": wide / 2, "cy": wide * 3 / 8, "w": wide, "h": wide * 3 // 4}

    scene = read_transforms(edited(path, change), "t")
    assert [(p.lens.width, p.lens.value("fl_x")) for p in scene.pictures if p.lens] == [
        (32, 40.0), (64, 41.0), (32, 42.0),
    ]  # fmt: skip


def test_the_three_files_of_nerf_synthetic_make_their_own_split(tmp_path: Path) -> None:
    path = write_set(tmp_path, 4)
    data = json.loads(path.read_text())
    angle = 2 * np.arctan(16 / 40)
    for split, numbers in (("train", [0, 1]), ("val", [2]), ("test", [3])):
        frames = [
            {**data["frames"][n], "file_path": data["frames"][n]["file_path"].removesuffix(".png")}
            for n in numbers
        ]
        (tmp_path / f"transforms_{split}.json").write_text(
            json.dumps({"camera_angle_x": angle, "frames": frames})
        )
    scene = read_transforms(tmp_path / "transforms_train.json", "transforms_train.json")
    assert [p.split for p in scene.pictures] == ["train", "train", "test", "test"]
    assert scene.pictures[0].lens is not None
    assert np.isclose(scene.pictures[0].lens.value("fl_x"), 40.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["frames"][1].update(file_path="images/gone.png"), r"1 pictures .* images/gone\.png"),
        (lambda d: d["frames"][1]["transform_matrix"][0].__setitem__(0, float("nan")), r"001\.png.*NaN"),
        (lambda d: d["frames"][1].pop("transform_matrix"), r"001\.png has no transform_matrix"),
        (lambda d: d.pop("fl_x"), "no focal length"),
        (lambda d: d.update(fl_x=-3.0), "above zero"),
        (lambda d: d.update(w=99), "32x24 pixels, but its intrinsics are for 99x24"),
        (lambda d: d.update(frames=[]), "no list of frames"),
        (lambda d: d["frames"][0].update(file_path="../../etc/passwd"), "leaves the folder"),
        (lambda d: d.update(camera_model="EQUIRECTANGULAR"), "EQUIRECTANGULAR"),
    ],
)
def test_what_is_wrong_in_a_transforms_json_is_named(change: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(PermanentFailure, match=said):
        read_transforms(edited(write_set(tmp_path, 3), change), "transforms.json")


def test_a_left_handed_and_a_skewed_matrix_are_refused_and_a_scaled_one_is_put_right() -> None:
    good = look_at((3.0, 1.0, 1.0))
    with pytest.raises(PermanentFailure, match="left-handed"):
        check_matrix(good @ np.diag([-1.0, 1, 1, 1]), "a.png")
    with pytest.raises(PermanentFailure, match="lengths"):
        check_matrix(good @ np.diag([2.0, 1, 1, 1]), "a.png")
    skewed = good.copy()
    skewed[:3, 0] = (good[:3, 0] + good[:3, 1]) / np.sqrt(2)
    with pytest.raises(PermanentFailure, match="right angles"):
        check_matrix(skewed, "a.png")
    found, notes = check_matrix(good @ np.diag([3.0, 3, 3, 1]), "a.png")
    assert np.allclose(found, good) and "scaled by 3" in notes[0]


# --- films ---------------------------------------------------------------------------------------------


def film(path: Path, frames: list[Any]) -> Path:
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for pixels in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def test_the_sharp_frame_of_each_stretch_is_picked(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)
    flat = np.full((48, 64, 3), 128, np.uint8)
    # sharp at 1, 5 and 6 of nine: three stretches of three
    frames = [noise if n in (1, 5, 6) else flat for n in range(9)]
    host = LocalHost(tmp_path / "host", {})
    scene = pick_frames(film(tmp_path / "a.mp4", frames), "a.mp4", tmp_path / "out", 3, 1600, host)
    assert [p.frame for p in scene.pictures] == [1, 5, 6]
    assert Image.open(scene.pictures[0].path).size == (64, 48)


def test_choosing_takes_one_of_each_stretch_of_time_not_of_number() -> None:
    marks = [(0.0, 1.0), (0.1, 2.0), (0.2, 1.0), (5.0, 0.5), (9.0, 0.1), (9.9, 0.3), (10.0, 0.2)]
    assert choose(marks, 3) == [1, 3, 5]


def test_a_film_of_one_frame_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", [np.zeros((48, 64, 3), np.uint8)])
    with pytest.raises(PermanentFailure, match=r"a\.mp4 has 1 frame: too few views.*film slowly"):
        pick_frames(path, "a.mp4", tmp_path / "out", 10, 1600, LocalHost(tmp_path / "host", {}))
    (tmp_path / "b.mp4").write_bytes(b"no film")
    with pytest.raises(PermanentFailure, match=r"b\.mp4 is no film"):
        pick_frames(tmp_path / "b.mp4", "b.mp4", tmp_path / "o2", 10, 1600, LocalHost(tmp_path / "h2", {}))


def test_heic_of_a_phone_is_read_upright_once(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    path = tmp_path / "a.heic"
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGB", (96, 64), (20, 20, 20))
    image.paste((250, 30, 30), (64, 0, 96, 32))
    pillow_heif.from_pillow(image).save(path, quality=90, exif=exif.tobytes())
    pixels = read_rgba(path)
    # turned clockwise by 90 degrees: what was at the right of the top is at the right of the bottom
    assert pixels.shape == (96, 64, 4)
    assert pixels[90, 60, 0] > 200 > pixels[90, 5, 0] and pixels[5, 60, 0] < 60


def test_deep_and_transparent_pictures_keep_their_values(tmp_path: Path) -> None:
    deep = np.full((2, 3), 0xABCD, np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.tif")
    assert (read_rgba(tmp_path / "deep.tif") == [0xAB, 0xAB, 0xAB, 255]).all()
    Image.fromarray(np.full((2, 2, 4), (10, 20, 30, 40), np.uint8)).save(tmp_path / "clear.png")
    assert (read_rgba(tmp_path / "clear.png") == [10, 20, 30, 40]).all()
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    with pytest.raises(PermanentFailure, match=r"cut\.jpg cannot be read.*write it again"):
        read_rgba(tmp_path / "cut.jpg")
