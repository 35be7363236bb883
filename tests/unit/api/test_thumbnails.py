"""Thumbnails: sizes, tone curve, odd pixels, EXR, cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from api.thumbnails import stretched, thumbnail, to_srgb8
from farm.errors import Unavailable

SHA = "ab" * 32


def test_the_tone_curve_has_its_worked_out_values() -> None:
    # x(1+x/16)/(1+x): 0 -> 0, 4 -> 1, 1 -> 17/32 = 0.53125; sRGB of 0.53125 is 0.7549 -> 192.5
    values = to_srgb8(np.array([0.0, 4.0, 1.0, -1.0, 100.0, np.nan, np.inf], np.float32))
    assert values.tolist()[:2] == [0, 255]
    assert values[2] in (192, 193)
    assert values.tolist()[3:] == [0, 255, 0, 255]


def test_depth_is_stretched_between_its_finite_ends() -> None:
    depth = np.array([[1.0, 3.0], [2.0, np.inf]], np.float32)
    assert stretched(depth).tolist() == [[0, 255], [128, 255]]
    assert stretched(np.full((1, 2), np.nan, np.float32)).tolist() == [[0, 0]]
    assert stretched(np.full((1, 2), 5.0, np.float32)).tolist() == [[0, 0]]


def test_the_longer_side_is_the_size_and_nothing_is_enlarged(tmp_path: Path) -> None:
    source = tmp_path / "f.png"
    Image.new("RGB", (400, 100), (10, 200, 30)).save(source)
    made = thumbnail(source, SHA, "png", 64, "png", tmp_path / "cache")
    with Image.open(made) as picture:
        assert picture.size == (64, 16)
        assert picture.convert("RGB").getpixel((32, 8)) == (10, 200, 30)
    with Image.open(thumbnail(source, SHA, "png", 1000, "jpeg", tmp_path / "cache")) as picture:
        assert (picture.format, picture.size) == ("JPEG", (400, 100))


def test_a_thumbnail_is_made_once(tmp_path: Path) -> None:
    source = tmp_path / "f.png"
    Image.new("RGB", (40, 40)).save(source)
    first = thumbnail(source, SHA, "png", 32, "png", tmp_path / "cache")
    source.unlink()
    assert thumbnail(source, SHA, "png", 32, "png", tmp_path / "cache") == first


def test_alpha_and_sixteen_bits_are_shown(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "a.png")
    with Image.open(thumbnail(tmp_path / "a.png", SHA, "png", 16, "jpeg", tmp_path / "c")) as picture:
        red, green, blue = picture.getpixel((4, 4))  # type: ignore[misc]
        assert max(abs(red - 96), abs(green - 96), abs(blue - 96)) < 8
    Image.fromarray(np.full((8, 8), 257 * 100, np.uint16)).save(tmp_path / "w.png")
    with Image.open(thumbnail(tmp_path / "w.png", "cd" * 32, "png", 16, "png", tmp_path / "c")) as picture:
        assert picture.getpixel((4, 4)) == 100


def test_exr_is_tone_mapped(tmp_path: Path) -> None:
    OpenEXR = pytest.importorskip("OpenEXR")
    ones = np.ones((6, 8), np.float32)
    channels = {"R": ones * 4.0, "G": ones * 0.0, "B": ones * 4.0, "Z": ones * 7.0}
    OpenEXR.File({"type": OpenEXR.scanlineimage}, channels).write(str(tmp_path / "f.exr"))
    with Image.open(thumbnail(tmp_path / "f.exr", SHA, "exr", 16, "png", tmp_path / "c")) as picture:
        assert picture.size == (8, 6)
        assert picture.getpixel((3, 3)) == (255, 0, 255)


def test_a_broken_file_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f.png").write_bytes(b"no picture")
    with pytest.raises(Unavailable, match="png"):
        thumbnail(tmp_path / "f.png", SHA, "png", 32, "png", tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
