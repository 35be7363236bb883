"""The demo job: a turntable of the still life in ``demo_scene``, with its film."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).resolve().parent / "demo_scene"


def assets() -> dict[str, Path]:
    """Job path to file, for every asset of the demo job."""
    files = [
        _FOLDER / "scene.xml",
        *sorted(_FOLDER.glob("meshes/*.ply")),
        *sorted(_FOLDER.glob("textures/*.png")),
    ]
    return {str(path.relative_to(_FOLDER)): path for path in files}


def spec(frames: str = "1-48", formats: tuple[str, ...] = ("mp4",)) -> dict[str, Any]:
    """Spec of the demo job, kind ``render``: a loop of two seconds at 320x180."""
    return {
        "scene": "scene.xml",
        "frames": frames,
        "resolution": [320, 180],
        "samples": 12,
        "camera": {
            "type": "orbit",
            "azimuth": -12,
            "elevation": 17,
            "target": [0, 1.34, 0],
            "distance": 13.2,
            "fov": 34,
        },
        "outputs": ["png"],
        "exposure": 0.35,
        "denoise": "oidn",
        "chunk_frames": 6,
        "film": {"formats": list(formats), "fps": "24", "quality": "high", "name": "turntable"},
    }
