"""Write a film with PyAV and read it back: every frame decoded, counted and timed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt

from farm.errors import TaskFailed
from jobs.encode.calm import calm
from jobs.encode.spec import LOSSLESS, FilmSettings
from jobs.encode.ten_bit import yuv420p10

ENCODERS: Final = {"h264": "libx264", "vp9": "libvpx-vp9", "av1": "libsvtav1", "ffv1": "ffv1"}
MEDIA_TYPES: Final = {"mp4": "video/mp4", "webm": "video/webm", "mkv": "video/x-matroska"}
_MUXERS: Final = {"mkv": "matroska"}
_BT709: Final = 1
"""Code of ITU-R BT.709 for primaries, transfer and matrix alike (ITU-T H.273)."""

_QUALITY: Final[dict[str, dict[str, tuple[int, dict[str, str]]]]] = {
    "h264": {
        "draft": (28, {"preset": "veryfast"}),
        "good": (18, {"preset": "medium"}),
        "high": (12, {"preset": "slow"}),
    },
    "vp9": {
        "draft": (40, {"cpu-used": "6"}),
        "good": (28, {"cpu-used": "4"}),
        "high": (16, {"cpu-used": "2"}),
    },
    "av1": {
        "draft": (45, {"preset": "11"}),
        "good": (28, {"preset": "8"}),
        "high": (16, {"preset": "5"}),
    },
}


@dataclass(frozen=True, slots=True)
class FilmFacts:
    """What a film holds, as decoding it shows."""

    frames: int
    fps: str
    duration_s: float
    width: int
    height: int
    codec: str
    pixel_format: str
    primaries: int
    transfer: int
    matrix: int
    full_range: bool

    def meta(self) -> dict[str, Any]:
        """The facts as JSON."""
        return asdict(self)


class FilmWriter:
    """Writes frames into one film. Use as a context manager; frames all have one size.

    ``size`` is the size of the film, from :meth:`FilmSettings.film_size`. Frames that are one pixel smaller
    are padded by repeating their last row or column, and cut where they are larger. The colour matrix is
    BT.709, limited range, and tagged so; a lossless film is RGB at the depth
    of the frames (``deep``: 16 bits). ``metadata`` is written as JSON into the film's comment.
    """

    def __init__(
        self,
        path: Path,
        container: str,
        settings: FilmSettings,
        size: tuple[int, int],
        threads: int,
        *,
        deep: bool = False,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        codec = settings.codec_for(container)
        options = _options(codec, settings)
        if codec == "vp9":
            options |= {"b": "0", "row-mt": "1", "deadline": "good"}
        if codec == "av1":
            options["svtav1-params"] = f"lp={max(1, min(threads, 16))}"
        if codec == "h264" and settings.pixel_format == "yuv420p":
            options["profile"] = "high"
        container_options = {"movflags": "+faststart"} if container == "mp4" else {}
        self.size = size
        self.pixel_format = film_pixel_format(settings, container, deep=deep)
        self._lossless = codec in LOSSLESS
        self.fps = Fraction(settings.fps)
        self.count = 0
        self._output = av.open(
            str(path),
            "w",
            format=_MUXERS.get(container, container),
            options={"fflags": "+bitexact", **container_options},
        )
        if metadata:
            self._output.metadata["comment"] = json.dumps(metadata, sort_keys=True, ensure_ascii=False)
        stream: Any = self._output.add_stream(ENCODERS[codec], rate=self.fps, options=options)
        stream.width, stream.height = size
        stream.pix_fmt = self.pixel_format
        stream.time_base = 1 / self.fps
        context = stream.codec_context
        context.thread_count = max(1, threads)
        context.gop_size = 1 if self._lossless else max(1, round(2 * self.fps))
        if not self._lossless:
            context.color_primaries = context.color_trc = context.colorspace = _BT709
            context.color_range = av.video.reformatter.ColorRange.MPEG
        self._stream = stream
        self._calm = calm()

    def __enter__(self) -> FilmWriter:
        self._calm.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for packet in self._stream.encode(None):
                    self._output.mux(packet)
        finally:
            self._output.close()
            self._calm.__exit__(kind, error, trace)

    def add(self, picture: npt.NDArray[Any]) -> None:
        """Append one frame: (height, width, 3), uint8 or uint16, sRGB-encoded."""
        width, height = self.size
        picture = picture[:height, :width]
        short = (height - picture.shape[0], width - picture.shape[1])
        if any(short):
            picture = np.pad(picture, ((0, short[0]), (0, short[1]), (0, 0)), mode="edge")
        ranges = av.video.reformatter.ColorRange
        if self._lossless:
            frame = av.VideoFrame.from_ndarray(
                np.ascontiguousarray(picture), format="rgb48le" if picture.dtype == np.uint16 else "rgb24"
            ).reformat(format=self.pixel_format)
        elif picture.dtype == np.uint16:
            frame = av.VideoFrame.from_ndarray(yuv420p10(picture), format="yuv420p10le")
        else:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24").reformat(
                format=self.pixel_format,
                src_colorspace="ITU709",
                dst_colorspace="ITU709",
                src_color_range=ranges.JPEG,
                dst_color_range=ranges.MPEG,
                interpolation="BICUBIC",
            )
        if not self._lossless:
            frame.color_primaries = frame.color_trc = frame.colorspace = _BT709
            frame.color_range = ranges.MPEG
        frame.pts = self.count
        frame.time_base = 1 / self.fps
        self.count += 1
        for packet in self._stream.encode(frame):
            self._output.mux(packet)


def film_pixel_format(settings: FilmSettings, container: str, *, deep: bool) -> str:
    """Pixel format of a film: as the settings say, or RGB at the frames' depth (16 bits where ``deep``)."""
    if settings.codec_for(container) not in LOSSLESS:
        return settings.pixel_format
    return "gbrp16le" if deep else "bgr0"


def _options(codec: str, settings: FilmSettings) -> dict[str, str]:
    if codec in LOSSLESS:
        # version 3 with a checksum in every slice: what archives ask for, and what bit rot shows in
        return {"level": "3", "slicecrc": "1"}
    crf, preset = _QUALITY[codec][settings.quality]
    return {"crf": str(crf if settings.crf is None else settings.crf), **preset}


def read_back(path: Path) -> FilmFacts:
    """Decode the whole film. Raises :class:`farm.errors.TaskFailed` when it cannot be decoded."""
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            times: list[float] = []
            frame: Any = None
            for frame in container.decode(stream):
                times.append(float(frame.pts * frame.time_base))
            if frame is None:
                raise TaskFailed(f"{path.name}: no frame could be decoded from the film")
            rate = stream.average_rate or stream.base_rate
            duration = container.duration / av.time_base if container.duration else times[-1]
            context = stream.codec_context
            return FilmFacts(
                frames=len(times),
                fps=str(_measured_rate(times, rate)),
                duration_s=round(float(duration), 6),
                width=frame.width,
                height=frame.height,
                codec=str(context.codec.canonical_name),
                pixel_format=frame.format.name,
                primaries=int(context.color_primaries),
                transfer=int(context.color_trc),
                matrix=int(context.colorspace),
                full_range=int(context.color_range) == int(av.video.reformatter.ColorRange.JPEG),
            )
    except (av.FFmpegError, IndexError) as error:
        raise TaskFailed(f"{path.name}: the film does not decode ({error})") from None


def read_metadata(path: Path) -> dict[str, Any] | None:
    """The settings embedded in a film's comment, ``None`` where it has none."""
    with av.open(str(path)) as container:
        comments = [value for name, value in container.metadata.items() if name.lower() == "comment"]
    try:
        found = json.loads(comments[0]) if comments else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _measured_rate(times: list[float], declared: Fraction | None) -> Fraction:
    """The declared rate where every frame stands at its time (WebM rounds to ms), else the true one."""
    if declared and all(abs(t - times[0] - i / declared) < 1.5e-3 for i, t in enumerate(times)):
        return declared
    if len(times) < 2:
        return declared or Fraction(0)
    return Fraction((len(times) - 1) / max(times[-1] - times[0], 1e-9)).limit_denominator(1001)


def verify(
    path: Path,
    *,
    frames: int,
    fps: Fraction,
    size: tuple[int, int],
    pixel_format: str,
    metadata: Mapping[str, Any] | None = None,
) -> FilmFacts:
    """Check what :func:`read_back` finds against what was meant.

    Raises :class:`farm.errors.TaskFailed` that names the figure that differs. The duration may differ by
    half a frame and a container's millisecond.
    """
    facts = read_back(path)
    wanted = frames / fps
    differences = [
        f"{name} is {found}, not {meant}"
        for name, found, meant in (
            ("the frame count", facts.frames, frames),
            ("the frame rate", facts.fps, str(fps)),
            ("the size", f"{facts.width}x{facts.height}", f"{size[0]}x{size[1]}"),
            ("the pixel format", facts.pixel_format, pixel_format),
        )
        if found != meant
    ]
    if abs(facts.duration_s - float(wanted)) > float(0.5 / fps) + 0.002:
        differences.append(f"the duration is {facts.duration_s:.3f} s, not {float(wanted):.3f} s")
    if metadata and read_metadata(path) != metadata:
        differences.append("the settings embedded in it are not those that were written")
    if differences:
        raise TaskFailed(f"{path.name} does not read back as it was meant: {'; '.join(differences)}")
    return facts
