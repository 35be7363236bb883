"""A rendered object set for ``nerf`` benchmarks: ``python -m tests.benchmarks.nerf_set FOLDER [VIEWS]
[SIDE]``.

The still life of :mod:`jobs.nerf.demo`, seen by VIEWS (100) cameras of a hemisphere at SIDE x SIDE (800)
pixels, rendered by the kind ``render`` and denoised. FOLDER gets lossless pictures with alpha and a
``transforms.json`` with the cameras they were rendered by. Views that lie there already are kept: a stopped
run goes on.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from jobs.nerf import demo
from jobs.render.camera import KeyframeCamera, keyframe_pose
from tests.unit.jobs.local_host import LocalHost

SAMPLES = 48
CHUNK = 5


def views_spec(views: int, side: int, samples: int, frames: str) -> dict[str, Any]:
    """The render job of some of the views."""
    spec = demo.views_spec(views, (side, side))
    return {**spec, "frames": frames, "samples": samples, "chunk_frames": 1}


def write_transforms(folder: Path, views: int, side: int) -> None:
    """``transforms.json`` of the views that lie in ``folder/images``."""
    camera = KeyframeCamera.model_validate(demo.views_spec(views, (side, side))["camera"])
    frames, focal = [], 0.0
    for number in range(1, views + 1):
        pose = keyframe_pose(camera, number)
        focal = 0.5 * side / math.tan(math.radians(pose.fov) / 2)
        if (folder / name_of(number)).exists():
            frames.append({"file_path": name_of(number), "transform_matrix": pose.camera_to_world()})
    lens = {"fl_x": focal, "fl_y": focal, "cx": side / 2, "cy": side / 2, "w": side, "h": side}
    (folder / "transforms.json").write_text(json.dumps({**lens, "frames": frames}, indent=1), "utf-8")


def name_of(number: int) -> str:
    """Where a view lies in the set's folder."""
    return f"images/{number:03d}.webp"


def main(folder: str, views: str = "100", side: str = "800", samples: str = str(SAMPLES)) -> int:
    """Render what is missing."""
    root, count, pixels = Path(folder), int(views), int(side)
    (root / "images").mkdir(parents=True, exist_ok=True)
    missing = [n for n in range(1, count + 1) if not (root / name_of(n)).exists()]
    for first in range(0, len(missing), CHUNK):
        chunk = missing[first : first + CHUNK]
        with tempfile.TemporaryDirectory(prefix="stillframe-set-") as name:
            host = LocalHost(Path(name), demo.assets())
            host.run_job("render", views_spec(count, pixels, int(samples), ",".join(map(str, chunk))))
            for (_, number), frame in host.published.items():
                part = root / "part.webp"
                Image.open(next(iter(frame.files.values()))).save(part, lossless=True, quality=80, exact=True)
                part.rename(root / name_of(number))
        write_transforms(root, count, pixels)
        print(f"{first + len(chunk)} of {len(missing)} views rendered", flush=True)
    write_transforms(root, count, pixels)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
