"""Films are read back from the file: count, rate, duration, size, colour tags and colours."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="needs stillframe[render]")

import av

from farm.errors import TaskFailed
from jobs.encode.calm import real_time_threads
from jobs.encode.film import FilmFacts, FilmWriter, film_pixel_format, read_back, read_metadata, verify
from jobs.encode.spec import FilmSettings

BARS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128)]


def bars(width: int = 96, height: int = 64) -> np.ndarray:
    """Four upright bars of known colours."""
    picture = np.zeros((height, width, 3), np.uint8)
    for index, colour in enumerate(BARS):
        picture[:, index * width // 4 : (index + 1) * width // 4] = colour
    return picture


def film(
    path: Path, count: int, picture: np.ndarray, container: str = "mp4", **fields: object
) -> tuple[FilmSettings, tuple[int, int]]:
    settings = FilmSettings.model_validate({"formats": [container], **fields})
    size = settings.film_size(picture.shape[1], picture.shape[0])
    with FilmWriter(path, container, settings, size, threads=2) as writer:
        for _ in range(count):
            writer.add(picture)
    return settings, size


CODECS = [
    ("mp4", "h264", "yuv420p"),
    ("mp4", "h264", "yuv444p"),
    ("webm", "vp9", "yuv420p"),
    ("webm", "vp9", "yuv444p"),
    ("webm", "av1", "yuv420p"),
]


@pytest.mark.parametrize(("container", "codec", "pixel_format"), CODECS)
@pytest.mark.parametrize("fps", ["24", "30000/1001"])
@pytest.mark.parametrize("count", [1, 7])
def test_what_was_meant_reads_back(
    tmp_path: Path, container: str, codec: str, pixel_format: str, fps: str, count: int
) -> None:
    path = tmp_path / f"a.{container}"
    _, size = film(path, count, bars(), container, codec=codec, pixel_format=pixel_format, fps=fps)
    facts = verify(path, frames=count, fps=Fraction(fps), size=size, pixel_format=pixel_format)
    assert facts.frames == count
    assert facts.fps == fps
    assert facts.duration_s == pytest.approx(count / Fraction(fps), abs=0.001)
    assert facts.codec == codec
    # ITU-T H.273: 1 is BT.709 for primaries, transfer and matrix
    assert (facts.primaries, facts.transfer, facts.matrix, facts.full_range) == (1, 1, 1, False)


@pytest.mark.parametrize(("container", "codec", "pixel_format"), CODECS)
def test_colours_survive_as_bt709(tmp_path: Path, container: str, codec: str, pixel_format: str) -> None:
    path = tmp_path / f"a.{container}"
    film(path, 3, bars(), container, codec=codec, pixel_format=pixel_format, quality="high")
    with av.open(str(path)) as source:
        frame = next(source.decode(video=0))
    planes = frame.to_ndarray(format="yuv444p")[:, 32]
    # Y' = 16 + 219 (0.2126 R + 0.7152 G + 0.0722 B); a matrix of BT.601 would give 81, 145 and 41
    for index, luma in enumerate((63, 173, 32, 126)):
        assert abs(int(planes[0, index * 24 + 12]) - luma) <= 2


def test_a_ten_bit_film_reads_back(tmp_path: Path) -> None:
    picture = bars().astype(np.uint16) * 257
    settings = FilmSettings.model_validate(
        {"formats": ["webm"], "codec": "av1", "pixel_format": "yuv420p10le"}
    )
    with FilmWriter(tmp_path / "a.webm", "webm", settings, (96, 64), threads=2) as writer:
        for _ in range(5):
            writer.add(picture)
    facts = verify(tmp_path / "a.webm", frames=5, fps=Fraction(24), size=(96, 64), pixel_format="yuv420p10le")
    assert facts.frames == 5


def test_padding_repeats_the_last_row_and_column(tmp_path: Path) -> None:
    picture = np.zeros((33, 33, 3), np.uint8)
    picture[:, -1] = picture[-1, :] = 200
    _, size = film(tmp_path / "a.mp4", 2, picture, odd_size="pad", quality="high")
    assert size == (34, 34)
    with av.open(str(tmp_path / "a.mp4")) as source:
        grey = next(source.decode(video=0)).to_ndarray(format="gray")
    assert abs(int(grey[10, 33]) - int(grey[10, 32])) <= 6
    assert abs(int(grey[33, 10]) - int(grey[32, 10])) <= 6
    assert int(grey[10, 33]) > int(grey[10, 10]) + 100


def test_cropping_leaves_the_last_row_and_column_out(tmp_path: Path) -> None:
    picture = np.zeros((33, 33, 3), np.uint8)
    picture[:, -1] = picture[-1, :] = 255
    _, size = film(tmp_path / "a.mp4", 2, picture, odd_size="crop", quality="high")
    assert size == (32, 32)
    with av.open(str(tmp_path / "a.mp4")) as source:
        assert next(source.decode(video=0)).to_ndarray(format="gray").max() < 40


def test_every_mismatch_is_named(tmp_path: Path) -> None:
    film(tmp_path / "a.mp4", 5, bars())
    with pytest.raises(TaskFailed) as caught:
        verify(tmp_path / "a.mp4", frames=6, fps=Fraction(25), size=(98, 64), pixel_format="yuv444p")
    for words in ("frame count is 5, not 6", "frame rate is 24, not 25", "96x64, not 98x64", "not yuv444p"):
        assert words in caught.value.message


def test_a_film_cut_short_does_not_pass(tmp_path: Path) -> None:
    film(tmp_path / "a.webm", 30, np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8), "webm")
    data = (tmp_path / "a.webm").read_bytes()
    (tmp_path / "b.webm").write_bytes(data[: len(data) // 2])
    with pytest.raises(TaskFailed):
        verify(tmp_path / "b.webm", frames=30, fps=Fraction(24), size=(96, 64), pixel_format="yuv420p")


def test_a_file_that_is_no_film_fails_with_words(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"nothing")
    with pytest.raises(TaskFailed, match=r"a\.mp4: the film does not decode"):
        read_back(tmp_path / "a.mp4")


def test_the_same_frames_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        film(tmp_path / f"{name}.mp4", 9, bars())
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()


@pytest.mark.parametrize(("container", "codec"), [("mp4", "h264"), ("webm", "vp9"), ("webm", "av1")])
def test_no_encoder_makes_itself_or_its_process_real_time(tmp_path: Path, container: str, codec: str) -> None:
    settings = FilmSettings.model_validate({"formats": [container], "codec": codec})
    policy = os.sched_getscheduler(0)
    with FilmWriter(tmp_path / f"a.{container}", container, settings, (96, 64), threads=2) as writer:
        for _ in range(5):
            writer.add(bars())
        assert real_time_threads() == set()
    assert real_time_threads() == set()
    assert os.sched_getscheduler(0) == policy


def test_facts_are_json() -> None:
    facts = FilmFacts(1, "24", 1 / 24, 2, 2, "h264", "yuv420p", 1, 1, 1, False)
    assert facts.meta()["fps"] == "24"


@pytest.mark.parametrize(
    ("dtype", "pixel_format", "top"), [("uint8", "bgr0", 256), ("uint16", "gbrp16le", 65536)]
)
def test_a_master_keeps_every_bit_at_an_odd_size(
    tmp_path: Path, dtype: str, pixel_format: str, top: int
) -> None:
    path, deep = tmp_path / "a.mkv", dtype == "uint16"
    noise = np.random.default_rng(3).integers(0, top, (4, 33, 47, 3)).astype(dtype)
    settings = FilmSettings.model_validate({"formats": ["mkv"], "fps": "24000/1001"})
    size = settings.film_size(47, 33)
    with FilmWriter(path, "mkv", settings, size, threads=2, deep=deep) as writer:
        for picture in noise:
            writer.add(picture)
    assert film_pixel_format(settings, "mkv", deep=deep) == pixel_format
    facts = verify(path, frames=4, fps=Fraction(24000, 1001), size=(47, 33), pixel_format=pixel_format)
    assert facts.codec == "ffv1"
    with av.open(str(path)) as source:
        back = [f.to_ndarray(format="rgb48le" if deep else "rgb24") for f in source.decode(video=0)]
    assert np.array_equal(np.stack(back), noise)


@pytest.mark.parametrize("container", ["mp4", "webm", "mkv"])
def test_the_settings_that_made_a_film_are_read_back_from_it(tmp_path: Path, container: str) -> None:
    path = tmp_path / f"a.{container}"
    settings = FilmSettings.model_validate({"formats": [container]})
    said = {"prompt": 'a "red" Kreis läuft; x=1\nzweite', "seed": 2**63 - 1, "long": "word " * 2000}
    with FilmWriter(path, container, settings, (96, 64), threads=2, metadata=said) as writer:
        writer.add(bars())
    assert read_metadata(path) == said
    facts = {"frames": 1, "fps": Fraction(24), "size": (96, 64)}
    pixel_format = film_pixel_format(settings, container, deep=False)
    verify(path, **facts, pixel_format=pixel_format, metadata=said)
    with pytest.raises(TaskFailed, match="settings embedded"):
        verify(path, **facts, pixel_format=pixel_format, metadata={"seed": 1})
