"""The engine of ``encode``: frames in, one verified film out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from farm.errors import PermanentFailure
from farm.frame_range import FrameRange
from jobs.encode.film import MEDIA_TYPES, FilmWriter, film_pixel_format, verify
from jobs.encode.pictures import is_deep, read_picture
from jobs.encode.spec import LOSSLESS, FilmSettings, Sequence
from jobs.engine import Host, TaskContext


@dataclass(frozen=True, slots=True)
class _Picture:
    number: int
    path: Path
    label: str


class EncodeEngine:
    """Encodes in the slot's process: PyAV releases the interpreter, and frames are small."""

    def open(self, host: Host) -> None:
        """Nothing to prepare."""

    def close(self) -> None:
        """Nothing is held."""

    def run(self, task: TaskContext, host: Host) -> None:
        """Make the film of ``task.payload['format']`` and publish it as an artifact."""
        settings = FilmSettings.model_validate(dict(task.step["film"]))
        container = str(task.payload["format"])
        pictures = _pictures(task.step["source"], host)
        lossless = settings.codec_for(container) in LOSSLESS
        deep = is_deep(pictures[0].path) if lossless else settings.pixel_format.endswith("10le")
        metadata = task.step.get("metadata")
        threads = int(task.device.get("threads") or len(os.sched_getaffinity(0)))
        path = host.scratch / f"{settings.name}.{container}"
        began = time.monotonic()
        size, shape = (0, 0), (0, 0)
        with host.phase("work"):
            frames = _decoded(pictures, settings, deep, host)
            first = next(frames)
            shape = (first.shape[1], first.shape[0])
            size = _film_size(settings, shape, container)
            with FilmWriter(path, container, settings, size, threads, deep=deep, metadata=metadata) as writer:
                writer.add(first)
                for picture, item in zip(frames, pictures[1:], strict=True):
                    if picture.shape != first.shape:
                        raise PermanentFailure(
                            f"{item.label} is {picture.shape[1]}x{picture.shape[0]}, but the film began with "
                            f"{shape[0]}x{shape[1]} ({pictures[0].label}); all frames need one size"
                        )
                    writer.add(picture)
            facts = verify(
                path,
                frames=len(pictures),
                fps=Fraction(settings.fps),
                size=size,
                pixel_format=film_pixel_format(settings, container, deep=deep),
                metadata=metadata,
            )
        meta: dict[str, Any] = facts.meta() | {
            "source_width": shape[0],
            "source_height": shape[1],
            "odd_size": settings.odd_size if size != shape else "even",
            "background": settings.background,
            "exposure": settings.exposure,
            "bytes": path.stat().st_size,
        }
        name = path.name
        with host.phase("write"):
            sha256 = host.publish_artifact(name, path, MEDIA_TYPES[container], meta)
        host.result({"film": name, "sha256": sha256, **meta})
        host.progress(1.0, f"{name} is verified")
        host.log.write(
            f"{name}: {facts.frames} frames, {facts.fps} frames/s, {facts.duration_s:.3f} s, "
            f"{size[0]}x{size[1]} {facts.codec} {facts.pixel_format}, {meta['bytes']:,} bytes, "
            f"made and read back in {time.monotonic() - began:.2f} s"
        )


def _film_size(settings: FilmSettings, shape: tuple[int, int], container: str) -> tuple[int, int]:
    try:
        return settings.film_size(*shape, container)
    except ValueError as error:
        raise PermanentFailure(f"the film's size: {error}") from None


def _decoded(pictures: list[_Picture], settings: FilmSettings, deep: bool, host: Host) -> Iterator[Any]:
    for index, item in enumerate(pictures):
        host.check()
        yield read_picture(item.path, settings, ten_bit=deep, label=item.label)
        host.progress(0.95 * (index + 1) / len(pictures), f"frame {item.number}")


def _pictures(source: dict[str, Any], host: Host) -> list[_Picture]:
    """The frames of a source in order; :class:`farm.errors.PermanentFailure` names what is missing."""
    if "assets" in source:
        sequence = Sequence.model_validate(dict(source["assets"]))
        return [
            _Picture(n, host.asset(sequence.path(n)), f"frame {n} ({sequence.path(n)})")
            for n in FrameRange.parse(sequence.frames)
        ]
    wanted = FrameRange.parse(source["frames"])
    stored = host.frames(source["step"], source["output"], wanted)
    missing = wanted.without(frame.number for frame in stored)
    if missing is not None:
        raise PermanentFailure(
            f"step {source['step']!r} has no {source['output']} for frames {str(missing)[:200]}; "
            "retry that step"
        )
    return [
        _Picture(f.number, f.path, f"frame {f.number} ({source['output']})")
        for f in sorted(stored, key=lambda frame: frame.number)
    ]


def create() -> EncodeEngine:
    """A fresh engine."""
    return EncodeEngine()
