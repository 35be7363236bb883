"""The pictures and videos that a job starts from, read as the pipelines want them."""

from __future__ import annotations

from typing import Any

from jobs.engine import Host
from jobs.video.payload import Generation


def read_inputs(generation: Generation, host: Host) -> dict[str, Any]:
    """``image``, ``last_image`` and ``video`` of the job as PIL pictures of the film's size."""
    return {}
