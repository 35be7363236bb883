"""Input videos as a model wants them: so many upright RGB frames at an even rate, of the film's size.

Frames are taken by their times, so that a variable frame rate comes out even; a video that is too short, cut
off or damaged where it is needed is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from farm.errors import PermanentFailure
from jobs.fields import MAX_PIXELS
from jobs.video.facts import Facts
from jobs.video.media import fitted
from jobs.video.spec import Fit

_HDR: Final = {16: "PQ", 18: "HLG"}
"""Transfer functions (ITU-T H.273) that 8-bit sRGB cannot hold without a choice of tone mapping."""
_UNSPECIFIED: Final = 2
_WITH_ALPHA: Final = ("yuva", "rgba", "bgra", "argb", "abgr", "gbrap", "ya8", "ya16")


def read_video(
    path: Path,
    frames: int,
    fps: Fraction,
    size: tuple[int, int],
    fit: Fit,
    *,
    facts: Facts | None = None,
    label: str = "the video",
    check: Callable[[], None] = lambda: None,
) -> list[Image.Image]:
    """The first ``frames`` frames at ``fps``, as RGB of ``size``; frame k is what is shown at k / fps.

    ``check`` is called between decoded frames. ``facts`` name the nearest legal count where the video is too
    short. Raises :class:`farm.errors.PermanentFailure` for that, and for a file that is damaged, holds no
    video, is HDR or transparent.
    """
    import av

    times = [Fraction(index) / fps for index in range(frames)]
    out: list[Image.Image] = []
    shown: _Shown | None = None
    end, declared = Fraction(0), None
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise PermanentFailure(f"{label} holds no video stream")
            stream: Any = container.streams.video[0]
            _check_stream(stream, label)
            stream.thread_type = "AUTO"
            declared = _declared_s(container, stream)
            # a damaged frame is an error, not a grey smear
            stream.codec_context.options = {"err_detect": "explode"}
            start: Fraction | None = None
            decoded: Any
            for decoded in container.decode(stream):
                check()
                if decoded.pts is None:
                    raise PermanentFailure(
                        f"{label} has frames without a time; write it anew, such as to MP4"
                    )
                if decoded.is_corrupt:
                    raise PermanentFailure(f"{label} is damaged at {float(end):.2f} s")
                at = Fraction(decoded.pts * decoded.time_base)
                start = at if start is None else start
                at -= start
                while shown is not None and len(out) < frames and times[len(out)] < at:
                    out.append(shown.picture())
                if len(out) == frames:
                    return out
                shown = _Shown(decoded, stream, size, fit, label)
                end = at + Fraction((decoded.duration or 0) * decoded.time_base)
            while shown is not None and len(out) < frames and times[len(out)] < end:
                out.append(shown.picture())
    except (av.FFmpegError, ValueError) as error:
        raise PermanentFailure(
            f"{label} cannot be decoded{f' beyond {float(end):.2f} s' if end else ''}: {error}"
        ) from None
    if len(out) == frames:
        return out
    if shown is None:
        raise PermanentFailure(f"{label} holds no frame that can be decoded")
    cut = declared is not None and float(end) < declared - 1.0 / float(fps) - 0.05
    if cut:
        raise PermanentFailure(
            f"{label} was cut off: it says {declared:.2f} s, and {float(end):.2f} s decode; attach it whole"
        )
    raise PermanentFailure(_too_short(label, end, fps, frames, len(out), facts))


def _too_short(label: str, end: Fraction, fps: Fraction, wanted: int, got: int, facts: Facts | None) -> str:
    text = (
        f"{label} lasts {float(end):.2f} s, which are {got} frames at {fps} frames/s, and {wanted} are wanted"
    )
    if facts is not None:
        counts = facts.counts("v2v")
        legal = [count for count in counts.nearest(got) if count <= got]
        if legal:
            return f"{text}; ask for at most {legal[-1]}"
    return f"{text}; attach a longer one"


def _declared_s(container: Any, stream: Any) -> float | None:
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return container.duration / 1_000_000 if container.duration else None


def _check_stream(stream: Any, label: str) -> None:
    context = stream.codec_context
    if not context.width or not context.height:
        raise PermanentFailure(f"{label} does not say its size; it is damaged, or no video")
    if context.width * context.height > MAX_PIXELS:
        raise PermanentFailure(f"{label} is {context.width}x{context.height}, over {MAX_PIXELS:,} pixels")
    curve = _HDR.get(int(context.color_trc or 0))
    if curve is not None:
        raise PermanentFailure(f"{label} is HDR ({curve}); map it to SDR first, for that is a choice of look")
    if (context.pix_fmt or "").startswith(_WITH_ALPHA):
        raise PermanentFailure(f"{label} has an alpha channel; lay it over a background first")


class _Shown:
    """A decoded frame, made into a picture when it is wanted, and once."""

    def __init__(self, frame: Any, stream: Any, size: tuple[int, int], fit: Fit, label: str) -> None:
        self._frame, self._stream = frame, stream
        self._size, self._fit, self._label = size, fit, label
        self._picture: Image.Image | None = None

    def picture(self) -> Image.Image:
        """Upright, square pixels, sRGB, fitted. Untagged colour is taken for BT.709 from 720 lines up."""
        if self._picture is not None:
            return self._picture
        frame = self._frame
        space = None
        if int(frame.colorspace) == _UNSPECIFIED:
            space = "ITU709" if frame.height >= 720 else "ITU601"
        rgb = frame.reformat(format="rgb24", src_colorspace=space).to_ndarray(format="rgb24")
        turn = int(frame.rotation or 0) % 360
        if turn % 90:
            raise PermanentFailure(f"{self._label} is tilted by {turn} degrees; turn it upright first")
        # counter-clockwise, as FFmpeg counts
        rgb = np.ascontiguousarray(np.rot90(rgb, turn // 90))
        aspect = self._stream.sample_aspect_ratio
        pixel = float(aspect) if aspect else 1.0
        if turn % 180:
            pixel = 1.0 / pixel
        self._picture = fitted(Image.fromarray(rgb), self._size, self._fit, self._label, pixel)
        return self._picture
