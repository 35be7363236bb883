"""Images and videos that come in: upright once, opaque on purpose, right in colour and time, or refused."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

pytest.importorskip("av", reason="needs stillframe[video]")

import av

from farm.errors import CancelRequested, PermanentFailure
from jobs.video.folder import inspect
from jobs.video.media import read_image
from jobs.video.moving import read_video
from tests.kinds import model_folders as made

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def quarters(width: int = 32, height: int = 16) -> np.ndarray[Any, Any]:
    """Red and green above, blue and white below."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2], picture[: height // 2, width // 2 :] = RED, GREEN
    picture[height // 2 :, : width // 2], picture[height // 2 :, width // 2 :] = BLUE, WHITE
    return picture


def corners(image: Image.Image) -> list[tuple[int, ...]]:
    """The colours in the middle of each quarter: above left, above right, below left, below right."""
    pixels, (w, h) = np.asarray(image), image.size
    return [tuple(map(int, pixels[y, x])) for y in (h // 4, 3 * h // 4) for x in (w // 4, 3 * w // 4)]


def near(found: list[tuple[int, ...]], wanted: list[tuple[int, ...]], slack: int = 12) -> None:
    assert np.abs(np.array(found) - np.array(wanted)).max() <= slack, (found, wanted)


# --- images -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orientation", "size", "upright"),
    [
        (1, (32, 16), [RED, GREEN, BLUE, WHITE]),
        (3, (32, 16), [WHITE, BLUE, GREEN, RED]),
        # stored lying: the first row is the right side, so it is turned clockwise once
        (6, (16, 32), [BLUE, RED, WHITE, GREEN]),
        (8, (16, 32), [GREEN, WHITE, RED, BLUE]),
    ],
)
def test_a_photograph_stands_upright_once(
    tmp_path: Path, orientation: int, size: tuple[int, int], upright: list[tuple[int, ...]]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.jpg"
    Image.fromarray(quarters()).save(path, quality=95, subsampling=0, exif=exif)
    read = read_image(path, size, "scale")
    assert (read.mode, read.size) == ("RGB", size)
    near(corners(read), upright)


def test_alpha_needs_a_background_and_is_mixed_in_linear_light(tmp_path: Path) -> None:
    pixels = np.full((16, 16, 4), (255, 255, 255, 128), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    with pytest.raises(PermanentFailure, match=r"transparent \(alpha down to 0.502\).*set background"):
        read_image(tmp_path / "a.png", (16, 16), "scale")
    mixed = read_image(tmp_path / "a.png", (16, 16), "scale", background="#000000")
    # 128/255 of white light is sRGB 188 (half the light is 188, not 128)
    assert np.asarray(mixed)[8, 8].tolist() == [188, 188, 188]
    pixels[..., 3] = 255
    Image.fromarray(pixels).save(tmp_path / "b.png")
    assert np.asarray(read_image(tmp_path / "b.png", (16, 16), "scale")).min() == 255
    palette = Image.new("P", (16, 16), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(tmp_path / "c.png", transparency=1)
    with pytest.raises(PermanentFailure, match="transparent"):
        read_image(tmp_path / "c.png", (16, 16), "scale")


def test_sixteen_bits_are_rounded_not_clipped(tmp_path: Path) -> None:
    grey = np.linspace(0, 65535, 256).reshape(16, 16).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey).save(tmp_path / "grey.tif")
    wanted = np.rint(grey / 257).astype(np.uint8)
    for name in ("grey.png", "grey.tif"):
        read = np.asarray(read_image(tmp_path / name, (16, 16), "scale"))
        assert np.array_equal(read, np.repeat(wanted[..., None], 3, axis=2)), name
    colour = np.random.default_rng(0).integers(0, 65536, (16, 16, 3)).astype(np.uint16)
    with av.open(str(tmp_path / "rgb.png"), "w", format="image2") as output:
        stream = output.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "rgb48be"
        frame = av.VideoFrame.from_ndarray(colour, format="rgb48le").reformat(format="rgb48be")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    read = np.asarray(read_image(tmp_path / "rgb.png", (16, 16), "scale"))
    assert np.array_equal(read, np.rint(colour / 257).astype(np.uint8))


def test_cmyk_and_grey_become_rgb(tmp_path: Path) -> None:
    # no cyan, all magenta and yellow: red
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    near(corners(read_image(tmp_path / "a.jpg", (16, 16), "scale"))[:1], [RED], slack=3)
    Image.new("L", (16, 16), 77).save(tmp_path / "b.png")
    assert corners(read_image(tmp_path / "b.png", (16, 16), "scale"))[0] == (77, 77, 77)


def test_an_embedded_profile_is_used(tmp_path: Path) -> None:
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
    # L* 53.4 of 100 with no colour is the sRGB grey 127.5: 50 % signal (CIE 15 and IEC 61966-2-1)
    image = Image.new("LAB", (16, 16), (136, 128, 128))
    image.save(tmp_path / "a.tif", icc_profile=lab.tobytes())
    near(corners(read_image(tmp_path / "a.tif", (16, 16), "scale"))[:1], [(127, 127, 127)], slack=2)
    image = Image.new("RGB", (16, 16), (10, 20, 30))
    image.save(tmp_path / "b.png", icc_profile=b"no profile at all, really" * 8)
    with pytest.raises(PermanentFailure, match="colour profile cannot be used"):
        read_image(tmp_path / "b.png", (16, 16), "scale")


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_truncated_or_foreign_file_is_refused(tmp_path: Path, cut: int) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)).save(
        tmp_path / "a.jpg"
    )
    data = (tmp_path / "a.jpg").read_bytes()[:-cut] if cut else b"<svg/>"
    (tmp_path / "b.jpg").write_bytes(data)
    if cut == 10:  # the last bytes hold pixels too
        assert len(data) > 1000
    with pytest.raises(PermanentFailure, match="cannot be read as PNG, JPEG"):
        read_image(tmp_path / "b.jpg", (64, 64), "scale")


def test_several_pictures_in_one_file_are_refused(tmp_path: Path) -> None:
    pages = [Image.new("RGB", (16, 16), (shade, 0, 0)) for shade in (0, 90)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(PermanentFailure, match="holds 2 pictures"):
        read_image(tmp_path / "a.tif", (16, 16), "scale")


def test_another_shape_is_fitted_as_asked_and_never_by_itself(tmp_path: Path) -> None:
    Image.fromarray(quarters(64, 32)).save(tmp_path / "a.png")
    with pytest.raises(PermanentFailure, match=r"64x32, and the film 32x32 has another shape; set fit"):
        read_image(tmp_path / "a.png", (32, 32), "scale")
    # twice as wide as the film: the middle half stays
    near(corners(read_image(tmp_path / "a.png", (32, 32), "crop")), [RED, GREEN, BLUE, WHITE])
    near(corners(read_image(tmp_path / "a.png", (32, 32), "stretch")), [RED, GREEN, BLUE, WHITE])
    padded = np.asarray(read_image(tmp_path / "a.png", (32, 32), "pad"))
    # 32 wide means 16 high, with 8 black lines above and below
    assert padded[:8].max() == 0 and padded[-8:].max() == 0
    near(corners(Image.fromarray(padded[8:24])), [RED, GREEN, BLUE, WHITE])
    assert read_image(tmp_path / "a.png", (128, 64), "scale").size == (128, 64)
    # 641x360 instead of 640x360 is the same shape to within a pixel
    assert read_image(tmp_path / "a.png", (130, 64), "stretch").size == (130, 64)


# --- videos -------------------------------------------------------------------------------------------


def film(
    path: Path,
    times: list[float],
    shades: list[int],
    *,
    size: tuple[int, int] = (32, 32),
    codec: str = "ffv1",
    pix_fmt: str = "bgr0",
    aspect: Fraction | None = None,
    trc: int | None = None,
) -> Path:
    """A film with one grey frame at each time (in seconds, in steps of a millisecond)."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=1000)
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        if trc is not None:
            stream.codec_context.color_trc = trc
        for at, shade in zip(times, shades, strict=True):
            grey = np.full((size[1], size[0], 3), shade, np.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="rgb24").reformat(format=pix_fmt)
            frame.pts, frame.time_base = round(at * 1000), Fraction(1, 1000)
            for packet in stream.encode(frame):
                output.mux(packet)
        for packet in stream.encode(None):
            output.mux(packet)
    return path


def shades(frames: list[Image.Image]) -> list[int]:
    return [int(np.asarray(frame)[8, 8, 0]) for frame in frames]


def test_frames_are_taken_by_their_times(tmp_path: Path) -> None:
    # variable: five quick frames, a long still, two more
    path = film(tmp_path / "a.mkv", [0, 0.1, 0.2, 0.3, 0.4, 1.0, 1.1, 1.2], [10, 20, 30, 40, 50, 60, 70, 80])
    read = read_video(path, 5, Fraction(4), (32, 32), "scale")
    # at 0, 0.25, 0.5, 0.75 and 1 s are shown the frames from 0, 0.2, 0.4, 0.4 and 1.0 s
    assert shades(read) == [10, 30, 50, 50, 60]
    # a film that does not begin at zero begins at its first frame
    late = film(tmp_path / "b.mkv", [5.0, 5.25, 5.5], [10, 20, 30])
    assert shades(read_video(late, 3, Fraction(4), (32, 32), "scale")) == [10, 20, 30]


def test_a_short_video_is_refused_with_the_longest_legal_count(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mkv", [index / 10 for index in range(10)], [100] * 10)
    facts = inspect("wan", made.wan21(tmp_path / "wan")).facts
    with pytest.raises(
        PermanentFailure, match=r"are 10 frames at 10 frames/s, and 17 are wanted; ask for at most 9"
    ):
        read_video(path, 17, Fraction(10), (32, 32), "scale", facts=facts)
    assert len(read_video(path, 9, Fraction(10), (32, 32), "scale")) == 9


def test_a_truncated_video_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    noise = list(range(0, 200, 2))
    path = film(tmp_path / "a.mkv", [index / 10 for index in range(100)], noise)
    data = path.read_bytes()
    (tmp_path / "b.mkv").write_bytes(data[: len(data) // 2])
    assert shades(read_video(tmp_path / "b.mkv", 9, Fraction(10), (32, 32), "scale")) == noise[:9]
    with pytest.raises(PermanentFailure, match=r"was cut off: it says 9\.90 s|cannot be decoded beyond"):
        read_video(tmp_path / "b.mkv", 97, Fraction(10), (32, 32), "scale")
    mp4 = film(
        tmp_path / "a.mp4",
        [index / 10 for index in range(20)],
        noise[:20],
        codec="libx264",
        pix_fmt="yuv420p",
    )
    (tmp_path / "b.mp4").write_bytes(mp4.read_bytes()[: mp4.stat().st_size // 2])
    with pytest.raises(PermanentFailure, match="cannot be decoded"):
        read_video(tmp_path / "b.mp4", 5, Fraction(10), (32, 32), "scale")


def test_pixels_that_are_not_square_are_stretched_to_their_shape(tmp_path: Path) -> None:
    path = film(
        tmp_path / "a.mkv", [0, 0.5], [100, 100], codec="libx264", pix_fmt="yuv420p", aspect=Fraction(2)
    )
    with pytest.raises(PermanentFailure, match=r"the video is 64x32, and the film 32x32"):
        read_video(path, 1, Fraction(2), (32, 32), "scale")
    assert read_video(path, 1, Fraction(2), (64, 32), "scale")[0].size == (64, 32)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trc": 16, "codec": "libx264", "pix_fmt": "yuv420p10le"}, r"HDR \(PQ\)"),
        ({"codec": "ffv1", "pix_fmt": "yuva420p"}, "alpha channel"),
    ],
)
def test_what_rgb_cannot_hold_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    path = film(tmp_path / "a.mkv", [0, 0.5], [100, 100], **fields)
    with pytest.raises(PermanentFailure, match=message):
        read_video(path, 1, Fraction(2), (32, 32), "scale")


def test_no_video_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"\x00" * 500)
    with pytest.raises(PermanentFailure, match="cannot be decoded"):
        read_video(tmp_path / "a.mp4", 1, Fraction(2), (32, 32), "scale")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="wav") as output:
        stream = output.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    (tmp_path / "b.wav").write_bytes(buffer.getvalue())
    with pytest.raises(PermanentFailure, match="no video stream"):
        read_video(tmp_path / "b.wav", 1, Fraction(2), (32, 32), "scale")


def test_reading_a_video_can_be_cancelled(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mkv", [index / 10 for index in range(20)], [100] * 20)
    seen: list[int] = []

    def check() -> None:
        seen.append(1)
        if len(seen) == 4:
            raise CancelRequested

    with pytest.raises(CancelRequested):
        read_video(path, 17, Fraction(10), (32, 32), "scale", check=check)
    assert len(seen) == 4
