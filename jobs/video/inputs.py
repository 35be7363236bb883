"""The pictures and videos that a job starts from, read as the pipelines want them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jobs.engine import Host
from jobs.video.media import read_image
from jobs.video.moving import read_video
from jobs.video.payload import Generation


def read_inputs(generation: Generation, host: Host) -> dict[str, Any]:
    """``image``, ``last_image`` and ``video`` of the job as PIL pictures of the film's size.

    Raises :class:`farm.errors.PermanentFailure` for an input that cannot be used as it is.
    """
    size, found = (generation.width, generation.height), dict[str, Any]()
    with host.phase("fetch"):
        for name in ("image", "last_image"):
            path = getattr(generation, name)
            if path is not None:
                found[name] = read_image(
                    host.asset(path),
                    size,
                    generation.fit,
                    background=generation.background,
                    label=f"/{name}: {path}",
                )
        if generation.video is not None:
            found["video"] = read_video(
                host.asset(generation.video),
                generation.frames,
                Fraction(generation.fps),
                size,
                generation.fit,
                facts=generation.model.facts,
                label=f"/video: {generation.video}",
                check=host.check,
            )
    return found
