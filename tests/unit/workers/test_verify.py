"""Frames are decoded again and checked against their declaration before anything counts on them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import OpenEXR
import pytest
from PIL import Image

from farm.errors import UnverifiedFrame
from workers.verify import verify

PNG: dict[str, Any] = {
    "name": "beauty.png", "format": "png", "width": 6, "height": 4,
    "channels": ["R", "G", "B"], "dtype": "uint8",
}  # fmt: skip
EXR: dict[str, Any] = {
    "name": "layers.exr", "format": "exr", "width": 6, "height": 4,
    "channels": ["R", "G", "B", "depth.Z", "normal.X", "normal.Y", "normal.Z"], "dtype": "float32",
}  # fmt: skip


def _image(path: Path, mode: str = "RGB", size: tuple[int, int] = (6, 4), color: Any = (10, 20, 30)) -> Path:
    Image.new(mode, size, color).save(path)
    return path


def _exr(path: Path, *, bad: float | None = None, size: tuple[int, int] = (4, 6), half: bool = False) -> Path:
    color = np.full((*size, 3), 0.5, np.float16 if half else np.float32)
    depth = np.full(size, 2.0, np.float32)
    if bad is not None:
        depth[1, 1] = bad
    channels = {"RGB": color, "depth.Z": depth}
    channels |= {f"normal.{axis}": np.zeros(size, np.float32) for axis in "XYZ"}
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    OpenEXR.File(header, channels).write(str(path))
    return path


def test_a_good_png_passes(tmp_path: Path) -> None:
    found = verify(_image(tmp_path / "a.png"), PNG)
    assert (found.width, found.height, found.channels, found.dtype, found.format) == (
        6, 4, ("R", "G", "B"), "uint8", "png",
    )  # fmt: skip
    assert found.quality == {}


def test_an_all_black_frame_is_flagged_not_refused(tmp_path: Path) -> None:
    assert verify(_image(tmp_path / "a.png", color=(0, 0, 0)), PNG).quality == {"all_black": True}
    rgba = PNG | {"channels": ["R", "G", "B", "A"]}
    opaque = _image(tmp_path / "b.png", "RGBA", color=(0, 0, 0, 255))
    assert verify(opaque, rgba).quality == {"all_black": True}


def test_jpeg_passes_as_jpeg_only(tmp_path: Path) -> None:
    path = _image(tmp_path / "a.jpg")
    assert verify(path, PNG | {"format": "jpeg"}).format == "jpeg"
    with pytest.raises(UnverifiedFrame, match="format is jpeg, declared was png"):
        verify(path, PNG)


def _deep_png(path: Path) -> Path:
    rows = (b"\x00" + struct.pack(">HHH", 1, 2, 65535) * 6) * 4
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 6, 4, 16, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def test_16_bit_png_is_told_from_8_bit(tmp_path: Path) -> None:
    path = _deep_png(tmp_path / "a.png")
    assert verify(path, PNG | {"dtype": "uint16"}).dtype == "uint16"
    with pytest.raises(UnverifiedFrame, match="dtype is uint16, declared was uint8"):
        verify(path, PNG)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"width": 7}, "width is 6, declared was 7"),
        ({"height": 5}, "height is 4, declared was 5"),
        ({"channels": ["R", "G", "B", "A"]}, "channels are R, G, B"),
    ],
)
def test_png_that_is_not_as_declared_is_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    with pytest.raises(UnverifiedFrame, match=text):
        verify(_image(tmp_path / "a.png"), PNG | change)


@pytest.mark.parametrize("keep", [20, 40, -16, -4])
def test_truncated_png_is_refused(tmp_path: Path, keep: int) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (4, 6, 3), np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(UnverifiedFrame, match=r"beauty\.png"):
        verify(path, PNG)


def test_flipped_bit_in_the_pixels_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (4, 6, 3), np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(noise).save(path)
    data = bytearray(path.read_bytes())
    data[data.index(b"IDAT") + 20] ^= 8
    path.write_bytes(bytes(data))
    with pytest.raises(UnverifiedFrame, match="cannot be decoded"):
        verify(path, PNG)


@pytest.mark.parametrize("content", [b"", b"not an image", b"GIF89a" + bytes(100)])
def test_what_is_no_image_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(UnverifiedFrame):
        verify(path, PNG)
    with pytest.raises(UnverifiedFrame):
        verify(path, EXR)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnverifiedFrame, match="has not written"):
        verify(tmp_path / "a.png", PNG)


def test_multilayer_exr_passes(tmp_path: Path) -> None:
    found = verify(_exr(tmp_path / "a.exr"), EXR)
    assert (found.width, found.height, found.dtype, set(found.channels)) == (
        6, 4, "float32", set(EXR["channels"]),
    )  # fmt: skip
    # half colour beside full depth counts by the wider
    assert verify(_exr(tmp_path / "b.exr", half=True), EXR).dtype == "float32"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_exr_with_one_pixel_that_is_not_finite_is_refused(tmp_path: Path, bad: float) -> None:
    with pytest.raises(UnverifiedFrame, match=r"channel depth\.Z has 1 pixels that are not finite"):
        verify(_exr(tmp_path / "a.exr", bad=bad), EXR)


def test_exr_of_another_size_or_without_a_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnverifiedFrame, match="width is 8, declared was 6"):
        verify(_exr(tmp_path / "a.exr", size=(4, 8)), EXR)
    with pytest.raises(UnverifiedFrame, match=r"declared were .*albedo\.R"):
        verify(_exr(tmp_path / "b.exr"), EXR | {"channels": [*EXR["channels"], "albedo.R"]})


def test_truncated_exr_is_refused(tmp_path: Path) -> None:
    path = _exr(tmp_path / "a.exr")
    whole = path.read_bytes()
    for keep in (len(whole) - 8, len(whole) // 2, 30):
        path.write_bytes(whole[:keep])
        with pytest.raises(UnverifiedFrame):
            verify(path, EXR)
