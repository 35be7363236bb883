"""Pick sharp frames from a film: evenly in time, the sharpest of each stretch, HDR brought to sRGB."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from farm.errors import PermanentFailure
from jobs.engine import Host
from jobs.nerf.inputs.raw import RawPicture, RawScene

FEWEST: Final = 3
_LOOK: Final = 320
"""Longest side in pixels at which blur is judged."""
_HDR: Final = {16: "pq", 18: "hlg"}
"""Transfer characteristics (ITU-T H.273) that are not shown by sRGB's curve."""
_WHITE: Final = 65_283.0
"""What FFmpeg's scaler makes of white where it turns 10 or 12 bits of limited range to 16 bits of RGB.

Divided by 65,535, PQ's curve makes a mid grey 7 % too dark."""


def pick_frames(path: Path, label: str, folder: Path, count: int, max_side: int, host: Host) -> RawScene:
    """The sharpest frame of each of ``count`` equal stretches of time, as PNG files in ``folder``.

    Raises :class:`PermanentFailure` for what is no film, and for one with fewer than three frames.
    """
    marks = list(_sharpness(path, label, host))
    if len(marks) < FEWEST:
        raise PermanentFailure(
            f"{label} has {len(marks)} frame{'s' if len(marks) != 1 else ''}: too few views of a scene; film "
            "slowly around it, or send photographs"
        )
    chosen = choose(marks, count)
    folder.mkdir(parents=True, exist_ok=True)
    scene = RawScene([], in_time=True)
    for index, (time_s, image) in enumerate(_decoded(path, label, set(chosen), max_side, host)):
        target = folder / f"frame_{index + 1:05d}.png"
        image.save(target, compress_level=1)
        scene.pictures.append(RawPicture(f"{label}@{time_s:.3f}s", target, frame=chosen[index]))
    left = len(marks) - len(chosen)
    scene.notes.append(
        f"{label}: {len(chosen)} of {len(marks)} frames picked by time and sharpness, {left} left"
    )
    return scene


def choose(marks: list[tuple[float, float]], count: int) -> list[int]:
    """Indices of the sharpest frame in each of ``count`` stretches; ``marks`` are (time, sharpness)."""
    if len(marks) <= count:
        return list(range(len(marks)))
    first, last = marks[0][0], marks[-1][0]
    span = max(last - first, 1e-9)
    best: dict[int, int] = {}
    for index, (time_s, sharp) in enumerate(marks):
        stretch = min(count - 1, int((time_s - first) / span * count))
        if stretch not in best or sharp > marks[best[stretch]][1]:
            best[stretch] = index
    return [best[stretch] for stretch in sorted(best)]


def _open(path: Path, label: str) -> Any:
    import av

    try:
        container = av.open(str(path))
    except (av.FFmpegError, OSError) as error:
        raise PermanentFailure(f"{label} is no film that can be read ({error}); convert it to MP4") from None
    if not container.streams.video:
        container.close()
        raise PermanentFailure(f"{label} has no picture; send a film")
    container.streams.video[0].thread_type = "AUTO"
    return container


def _frames(path: Path, label: str, host: Host) -> Iterator[tuple[int, Any]]:
    import av

    with _open(path, label) as container:
        try:
            for index, frame in enumerate(container.decode(video=0)):
                host.check()
                yield index, frame
        except av.FFmpegError as error:
            raise PermanentFailure(f"{label} is damaged ({error}); export it again") from None


def _sharpness(path: Path, label: str, host: Host) -> Iterator[tuple[float, float]]:
    """Time in seconds and variance of the Laplacian of every frame."""
    for index, frame in _frames(path, label, host):
        scale = min(1.0, _LOOK / max(frame.width, frame.height))
        small = frame.reformat(max(2, int(frame.width * scale)), max(2, int(frame.height * scale)), "gray")
        grey = small.to_ndarray().astype(np.float32)
        edges = 4 * grey[1:-1, 1:-1] - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
        yield (
            float(frame.time if frame.time is not None else index),
            float(edges.var()) if edges.size else 0.0,
        )


def _decoded(
    path: Path, label: str, wanted: set[int], max_side: int, host: Host
) -> Iterator[tuple[float, Image.Image]]:
    for index, frame in _frames(path, label, host):
        if index not in wanted:
            continue
        curve = _HDR.get(int(getattr(frame, "color_trc", 0) or 0))
        image = _from_hdr(frame, curve) if curve else frame.to_image()
        turn = int(getattr(frame, "rotation", 0) or 0) % 360
        if turn:
            image = image.rotate(turn, expand=True)
        scale = max_side / max(image.size)
        if scale < 1.0:
            size = (round(image.width * scale), round(image.height * scale))
            image = image.resize(size, Image.Resampling.LANCZOS)
        yield float(frame.time if frame.time is not None else index), image


def _from_hdr(frame: Any, curve: str) -> Image.Image:
    """BT.2020 HDR as sRGB: the curve undone, diffuse white at 1, highlights rolled off, primaries changed."""
    values = np.minimum(frame.to_ndarray(format="rgb48le").astype(np.float32) / _WHITE, 1.0)
    if curve == "pq":
        m1, m2 = 2610 / 16384, 2523 / 4096 * 128
        c1, c2, c3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32
        root = np.power(values, 1 / m2)
        nits = 10_000 * np.power(np.maximum(root - c1, 0) / (c2 - c3 * root), 1 / m1)
        linear = nits / 203.0
    else:
        a, b, c = 0.17883277, 0.28466892, 0.55991073
        scene = np.where(values <= 0.5, values * values / 3, (np.exp((values - c) / a) + b) / 12)
        linear = scene / ((math.exp((0.75 - c) / a) + b) / 12)
    to_709 = np.array(
        [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
    )
    linear = np.maximum(linear @ to_709.T, 0.0)
    # as it is up to 0.8, then towards 1
    rolled = np.where(linear <= 0.8, linear, 0.8 + 0.2 * (1 - np.exp(-(linear - 0.8) / 0.2)))
    encoded = np.where(rolled <= 0.0031308, rolled * 12.92, 1.055 * np.power(rolled, 1 / 2.4) - 0.055)
    return Image.fromarray(np.clip(np.rint(encoded * 255), 0, 255).astype(np.uint8))
