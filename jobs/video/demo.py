"""The demo job: a moving shape from the tiny model that ships with the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jobs.video.tiny.clips import ALL_WISHES
from jobs.video.tiny.model import WEIGHTS

MODEL: Final = "stillframe-tiny"
_PLACE: Final = 17
"""Which of the 72 wishes; its place is its seed in the obedience test as well."""


def available() -> bool:
    """Whether the tiny model's weights are in this tree."""
    return (WEIGHTS / "model_index.json").is_file()


def models() -> dict[str, Path]:
    """Models that the job needs: name to folder."""
    return {MODEL: WEIGHTS}


def assets() -> dict[str, Path]:
    """The job needs no file."""
    return {}


def spec() -> dict[str, Any]:
    """Spec of the demo job, kind ``video``: the tiny model at its own recorded settings."""
    return {
        "model": MODEL,
        "prompt": ALL_WISHES[_PLACE].prompt,
        "seeds": [_PLACE],
        "film": {"formats": ["mp4"], "quality": "high", "name": "moving-shape"},
    }
