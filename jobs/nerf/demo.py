"""The demo chain: a render job makes views of a still life, a nerf job after it learns the scene."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jobs.render import demo as still_life

_SCENE: Final = Path(__file__).resolve().parent / "demo_scene" / "scene.xml"
VIEWS: Final = 32
SIZE: Final = (80, 60)
ITERATIONS: Final = 600
"""By number, not by time: the picture is then the same on a slow machine."""
_TARGET: Final = (0.0, 1.05, 0.0)
_DISTANCE: Final = 8.4
_FOV: Final = 51.0
_GOLDEN: Final = 137.50776
"""Degrees between neighbours, so that any few of the views look from all around."""


def assets() -> dict[str, Path]:
    """Job path to file, for every asset of the job that renders the views."""
    files = {path: file for path, file in still_life.assets().items() if path != "scene.xml"}
    return {"scene.xml": _SCENE, **files}


def available() -> bool:
    """Whether what trains a field is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "safetensors"))


def before() -> dict[str, Any]:
    """Body of the job that comes first."""
    return {"kind": "render", "name": "orbit-views", "spec": views_spec()}


def figure(artifacts: Mapping[str, Mapping[str, Any]]) -> str:
    """PSNR on the held-out views, from the evaluation's report."""
    report = artifacts["report.json"]
    return f"{report['psnr']:.2f} dB PSNR on {report['views']} views that it never saw"


def views_spec(views: int = VIEWS, size: tuple[int, int] = SIZE) -> dict[str, Any]:
    """Spec of the job, kind ``render``, that makes the views: a hemisphere of cameras around the scene."""
    return {
        "scene": "scene.xml",
        "frames": f"1-{views}",
        "resolution": list(size),
        "samples": 48,
        "camera": {
            "type": "keyframes",
            "interpolation": "hold",
            "keyframes": [_keyframe(i, views) for i in range(views)],
        },
        "outputs": ["png"],
        "transparent": True,
        "exposure": 0.35,
        "denoise": "oidn",
        "chunk_frames": 8,
    }


def spec(source: str, iterations: int = ITERATIONS) -> dict[str, Any]:
    """Spec of the job, kind ``nerf``, that learns the scene from the frames of job ``source``."""
    return {
        "source": {"type": "job", "job": source},
        "method": "nerf",
        "train": {"iterations": iterations, "preview_s": 5.0, "sh_degree": 0},
        "path": {"type": "orbit", "elevation": 22.0, "fov": 42.0},
        "frames": "1-48",
        "resolution": [320, 240],
        "outputs": ["png"],
        "chunk_frames": 12,
        "film": {"formats": ["mp4"], "fps": "24", "quality": "high", "name": "orbit"},
    }


def _keyframe(index: int, views: int) -> dict[str, Any]:
    share = (index + 0.5) / views
    low, high = math.sin(math.radians(4.0)), math.sin(math.radians(62.0))
    lift, turn = math.asin(low + (high - low) * share), math.radians(_GOLDEN * index)
    flat = _DISTANCE * math.cos(lift)
    origin = (
        _TARGET[0] + flat * math.sin(turn),
        _TARGET[1] + _DISTANCE * math.sin(lift),
        _TARGET[2] + flat * math.cos(turn),
    )
    return {
        "frame": index + 1,
        "origin": [round(value, 6) for value in origin],
        "target": list(_TARGET),
        "fov": _FOV,
    }
