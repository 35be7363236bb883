"""Frames of a film as pixels: sRGB, alpha over a background in linear light, 16 bits, EXR."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from farm.errors import PermanentFailure, TaskFailed
from jobs.encode.pictures import is_deep, read_picture, srgb_decode, srgb_encode
from jobs.encode.spec import FilmSettings
from jobs.encode.ten_bit import yuv420p10

OpenEXR = pytest.importorskip("OpenEXR", reason="needs stillframe[render]")


def settings(**fields: Any) -> FilmSettings:
    return FilmSettings.model_validate(fields)


def read(path: Path, ten_bit: bool = False, **fields: Any) -> Any:
    return read_picture(path, settings(**fields), ten_bit=ten_bit, label="frame 7")


def exr(path: Path, dtype: type = np.float32, **channels: Any) -> Path:
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    with OpenEXR.File(header, {k: np.full((2, 2), v, dtype) for k, v in channels.items()}) as file:
        file.write(str(path))
    return path


def test_the_srgb_curve_meets_its_published_points() -> None:
    # IEC 61966-2-1: 0.0031308 <-> 0.04045; 18 % grey is 118 of 255
    assert srgb_encode(np.array([0.0, 0.0031308, 1.0])) == pytest.approx([0.0, 0.04045, 1.0], abs=1e-5)
    assert round(float(srgb_encode(np.array([0.18]))[0]) * 255) == 118
    values = np.linspace(0, 1, 256)
    assert srgb_encode(srgb_decode(values)) == pytest.approx(values, abs=1e-9)


def test_an_opaque_png_comes_through_untouched(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png"), pixels)


def test_an_opaque_alpha_channel_needs_no_background(tmp_path: Path) -> None:
    pixels = np.full((2, 2, 4), (10, 20, 30, 255), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png"), pixels[..., :3])


def test_transparency_without_a_background_is_refused_by_frame(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2, 4), (10, 20, 30, 128), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(PermanentFailure, match=r"frame 7 is transparent .* set background"):
        read(tmp_path / "a.png")


def test_transparency_is_laid_over_the_background_in_linear_light(tmp_path: Path) -> None:
    # half white over black: half of the light, which the sRGB curve writes as 188
    Image.fromarray(np.full((2, 2, 4), (255, 255, 255, 128), np.uint8)).save(tmp_path / "a.png")
    over_black = read(tmp_path / "a.png", background="#000000")
    assert over_black[0, 0].tolist() == [188, 188, 188]
    Image.fromarray(np.zeros((2, 2, 4), np.uint8)).save(tmp_path / "b.png")
    assert read(tmp_path / "b.png", background="#102030")[0, 0].tolist() == [0x10, 0x20, 0x30]


def test_grey_and_palette_images_become_rgb(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2), 77, np.uint8)).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png")[0, 0].tolist() == [77, 77, 77]
    Image.fromarray(np.full((2, 2, 3), (200, 10, 10), np.uint8)).convert("P").save(tmp_path / "b.png")
    assert read(tmp_path / "b.png").shape == (2, 2, 3)


def test_sixteen_bits_are_kept_for_a_ten_bit_film(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    deep = np.full((4, 4, 3), (1000, 30000, 65535), np.uint16)
    frame = av.VideoFrame.from_ndarray(deep, format="rgb48le").reformat(format="rgb48be")
    codec = av.CodecContext.create("png", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = 4, 4, "rgb48be", Fraction(1)
    (tmp_path / "a.png").write_bytes(b"".join(bytes(p) for p in [*codec.encode(frame), *codec.encode(None)]))
    found = read(tmp_path / "a.png", ten_bit=True)
    assert found.dtype == np.uint16
    assert np.abs(found.astype(int) - deep).max() <= 1


def test_exr_is_exposed_and_put_through_the_srgb_curve(tmp_path: Path) -> None:
    path = exr(tmp_path / "a.exr", R=0.18, G=0.09, B=4.0)
    assert read(path)[0, 0].tolist() == [118, 85, 255]
    assert read(path, exposure=1.0)[0, 0, 1] == 118


def test_exr_alpha_is_premultiplied(tmp_path: Path) -> None:
    # light 0.25 at half coverage over white: 0.25 + 0.5 = 0.75 of full light, which is 225
    path = exr(tmp_path / "a.exr", np.float16, R=0.25, G=0.25, B=0.25, A=0.5)
    assert read(path, background="#ffffff")[0, 0].tolist() == [225, 225, 225]
    with pytest.raises(PermanentFailure, match="transparent"):
        read(path)


def test_exr_without_colour_is_refused_with_its_channels(tmp_path: Path) -> None:
    with pytest.raises(PermanentFailure, match=r"frame 7: .* only depth\.Z"):
        read(exr(tmp_path / "a.exr", **{"depth.Z": 1.0}))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_pixels_that_are_not_finite_fail_the_frame(tmp_path: Path, value: float) -> None:
    with pytest.raises(TaskFailed, match=r"frame 7: .* not finite"):
        read(exr(tmp_path / "a.exr", R=value, G=0.0, B=0.0))


@pytest.mark.parametrize(
    "data", [b"", b"not an image", b"\x89PNG\r\n\x1a\n broken", b"\x76\x2f\x31\x01 broken"]
)
def test_a_broken_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.png").write_bytes(data)
    with pytest.raises(PermanentFailure, match="frame 7"):
        read(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("rgb", "yuv"),
    [
        # BT.709 limited range, 10 bits: black 64, white 940; red: Y 64 + 876 * 0.2126, Cr at its top 960
        ((0, 0, 0), (64, 512, 512)),
        ((65535, 65535, 65535), (940, 512, 512)),
        ((65535, 0, 0), (250, 409, 960)),
        ((0, 0, 65535), (127, 960, 471)),
    ],
)
def test_ten_bit_colours_meet_the_equations_of_bt709(rgb: tuple[int, ...], yuv: tuple[int, ...]) -> None:
    planes = yuv420p10(np.full((4, 4, 3), rgb, np.uint16)).reshape(-1)
    assert (planes[0], planes[16], planes[20]) == yuv


def test_sixteen_bits_that_stay_sixteen_come_through_untouched(tmp_path: Path) -> None:
    import av

    pixels = np.random.default_rng(1).integers(0, 65536, (16, 16, 3)).astype(np.uint16)
    with av.open(str(tmp_path / "a.png"), "w", format="image2") as output:
        stream = output.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "rgb48be"
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb48le").reformat(format="rgb48be")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    assert is_deep(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png", ten_bit=True), pixels)
