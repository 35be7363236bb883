"""The pictures and the video that a sample starts from, as the pipelines take them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from jobs.engine import Host
from jobs.video.media import read_image
from jobs.video.moving import read_video
from jobs.video.payload import Generation


def read_inputs(generation: Generation, host: Host) -> dict[str, Any]:
    """``image``, ``last_image`` (PIL) and ``video`` (a list of PIL) of the job, of the film's size.

    Raises :class:`farm.errors.PermanentFailure` for what cannot be read, naming the input.
    """
    size = (generation.width, generation.height)
    found: dict[str, Any] = {}
    with host.phase("fetch"):
        for name, path in (("image", generation.image), ("last_image", generation.last_image)):
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
