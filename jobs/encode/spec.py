"""What can be asked of an encode job, and of the film of a job of another kind."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from farm.frame_range import FrameRange
from jobs.fields import Colour, FrameRangeText, Model, fault, job_path

Container = Literal["mp4", "webm", "mkv"]
Codec = Literal["h264", "av1", "vp9", "ffv1"]
PixelFormat = Literal["yuv420p", "yuv444p", "yuv420p10le"]

CODECS: Final[dict[str, tuple[Codec, ...]]] = {"mp4": ("h264",), "webm": ("vp9", "av1"), "mkv": ("ffv1",)}
"""Codecs that go into a container; the first is taken where none is named."""
PIXEL_FORMATS: Final[dict[str, tuple[PixelFormat, ...]]] = {
    "h264": ("yuv420p", "yuv444p", "yuv420p10le"),
    "vp9": ("yuv420p", "yuv444p"),
    "av1": ("yuv420p", "yuv420p10le"),
}
LOSSLESS: Final = frozenset({"ffv1"})
"""Codecs that keep every bit of the frames: RGB at the frames' own depth, whatever ``pixel_format`` says."""
CRF_LIMIT: Final[dict[str, int]] = {"h264": 51, "vp9": 63, "av1": 63}
NTSC: Final = {
    "23.976": "24000/1001",
    "23.98": "24000/1001",
    "29.97": "30000/1001",
    "47.952": "48000/1001",
    "59.94": "60000/1001",
    "119.88": "120000/1001",
}
_PATTERN = re.compile(r"(?P<head>[^#%]*)(?:(?P<hashes>#+)|%0?(?P<digits>\d{1,2})?d)(?P<tail>[^#%]*)")


def read_fps(text: str) -> str:
    """Frames per second as a fraction in lowest terms (``24``, ``24000/1001``).

    Raises :class:`ValueError` for anything else; a rounded NTSC rate is answered with the exact one.
    """
    if text in NTSC:
        raise ValueError(f"{text} is a rounded rate; write {NTSC[text]!r}")
    match = re.fullmatch(r"(\d{1,6})(?:/(\d{1,6}))?", text)
    if not match:
        whole = re.fullmatch(r"(\d{1,4})\.(\d{1,6})", text)
        hint = f"; nearest: {Fraction(text).limit_denominator(1001)!s}" if whole else ""
        raise ValueError(f"{text[:20]!r} is not a frame rate; write 24 or 24000/1001{hint}")
    if match[2] and int(match[2]) == 0:
        raise ValueError(f"{text!r} divides by zero; write 24 or 24000/1001")
    fps = Fraction(int(match[1]), int(match[2] or 1))
    if not 1 <= fps <= 240:
        raise ValueError(f"{text} frames/s is out of range; nearest: {1 if fps < 1 else 240}")
    return str(fps)


def _text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def read_pattern(text: str) -> str:
    """Check the pattern of an image sequence, ``shots/a.####.png`` or ``shots/a.%04d.png``."""
    job_path(text)
    if not _PATTERN.fullmatch(text):
        raise ValueError(
            f"{text[:80]!r} must hold the frame number once, as #### or %04d: shots/beauty.####.png"
        )
    if not text.lower().endswith((".png", ".jpg", ".jpeg", ".exr")):
        raise ValueError(f"{text[:80]!r} must end in .png, .jpg or .exr")
    return text


FrameRate = Annotated[str, BeforeValidator(_text), AfterValidator(read_fps)]


class FilmLook(Model):
    """How frames become a film, but for its frame rate."""

    formats: list[Container] = Field(
        default=["mp4"],
        min_length=1,
        max_length=3,
        description="Files to make: mp4 (H.264), webm (VP9, AV1), mkv (a lossless FFV1 master in RGB).",
    )
    codec: Codec | None = Field(
        default=None, description="h264 (mp4), vp9 or av1 (webm), ffv1 (mkv). Left out: h264, vp9, ffv1."
    )
    quality: Literal["draft", "good", "high"] = Field(
        default="good", description="Preset of speed and constant quality; see `crf` for a number."
    )
    crf: int | None = Field(
        default=None, ge=0, le=63, description="Constant quality, 0 (best) to 51 (h264) or 63 (vp9, av1)."
    )
    pixel_format: PixelFormat = Field(
        default="yuv420p",
        description=(
            "yuv420p plays everywhere; yuv444p keeps full colour (h264, vp9); yuv420p10le is 10 bit. "
            "A master (mkv) keeps the frames' RGB."
        ),
    )
    odd_size: Literal["refuse", "pad", "crop"] = Field(
        default="refuse",
        description=(
            "yuv420p needs even sides. refuse: an odd size is an error that names the choices; pad: the last "
            "column or row is repeated once; crop: the last column or row is left out."
        ),
    )
    background: Colour | None = Field(
        default=None,
        description="Colour (#rrggbb, sRGB) under transparent frames; without it they are refused.",
    )
    exposure: float = Field(
        default=0.0, ge=-20, le=20, description="Stops by which linear EXR frames are brightened."
    )
    name: str = Field(
        default="film", pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$", description="Name of the file, without suffix."
    )

    @model_validator(mode="after")
    def _codec_fits(self) -> Self:
        if len(set(self.formats)) != len(self.formats):
            raise fault("formats", "formats names the same container twice")
        for container in self.formats:
            if self.codec and self.codec not in CODECS[container]:
                raise fault(
                    "codec",
                    f"codec {self.codec} does not go into {container}; "
                    f"choose {' or '.join(CODECS[container])}, or leave codec out",
                )
            codec = self.codec_for(container)
            if codec in LOSSLESS:
                continue
            if self.pixel_format not in PIXEL_FORMATS[codec]:
                raise fault(
                    "pixel_format",
                    f"pixel_format {self.pixel_format} is not made by {codec}; "
                    f"choose {' or '.join(PIXEL_FORMATS[codec])}",
                )
            if self.crf is not None and self.crf > CRF_LIMIT[codec]:
                raise fault("crf", f"crf {self.crf} is over {CRF_LIMIT[codec]}, the worst of {codec}")
        return self

    def codec_for(self, container: str) -> Codec:
        """The codec that fills ``container``."""
        return self.codec or CODECS[container][0]

    def film_size(self, width: int, height: int, container: str | None = None) -> tuple[int, int]:
        """Size of the film for frames of that size in pixels; of all formats, or in one container.

        Raises :class:`ValueError` with the nearest legal sizes and the other ways out.
        """
        containers = [container] if container else self.formats
        if all(self.codec_for(c) in LOSSLESS for c in containers):
            return width, height
        if self.pixel_format == "yuv444p" or (width % 2 == 0 and height % 2 == 0):
            return width, height
        padded = (width + width % 2, height + height % 2)
        cropped = (width - width % 2, height - height % 2)
        if self.odd_size == "pad":
            return padded
        if self.odd_size == "crop" and min(cropped) > 0:
            return cropped
        raise ValueError(
            f"{width}x{height} is odd, and {self.pixel_format} needs even sides; nearest sizes: "
            f"{cropped[0]}x{cropped[1]} and {padded[0]}x{padded[1]}. Or set odd_size to pad or crop, or "
            "pixel_format to yuv444p"
        )


class FilmSettings(FilmLook):
    """How frames become a film."""

    fps: FrameRate = Field(default="24", description="Frames per second, a whole number or a fraction.")


class Sequence(Model):
    """Frames that are assets of the job."""

    pattern: Annotated[str, AfterValidator(read_pattern)] = Field(
        description="Job path with the frame number as #### or %04d: shots/beauty.####.png"
    )
    frames: FrameRangeText = Field(description="Frame numbers, such as 1-100; none may be missing.")

    def path(self, number: int) -> str:
        """Job path of one frame."""
        match = _PATTERN.fullmatch(self.pattern)
        assert match is not None
        digits = len(match["hashes"]) if match["hashes"] else int(match["digits"] or 1)
        sign, magnitude = ("-" if number < 0 else ""), abs(number)
        return f"{match['head']}{sign}{magnitude:0{digits}d}{match['tail']}"


class Spec(FilmSettings):
    """An encode job: an image sequence among its assets becomes one film per format."""

    source: Sequence = Field(description="The image sequence.")
    timeout_s: float = Field(default=3600.0, gt=0, le=604_800, description="Longest time of one film.")
    max_retries: int = Field(default=2, ge=0, le=20, description="Retries after the first attempt.")

    def numbers(self) -> FrameRange:
        """The frame numbers of the source."""
        return FrameRange.parse(self.source.frames)
