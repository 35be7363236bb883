"""What of an export lies inside a crop box, axis-aligned in the scene's coordinates (gravity up, scaled)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from farm.errors import PermanentFailure
from jobs.nerf.scene import View

Box = tuple[tuple[float, float, float], tuple[float, float, float]]


def inside(places: Any, box: Box, what: str) -> Any:
    """Which of ``places`` (n, 3) lie in ``box``, its faces included; (n,) booleans.

    Raises :class:`PermanentFailure` where none does: ``what`` would be empty.
    """
    low, high = np.array(box[0]), np.array(box[1])
    kept = ((places >= low) & (places <= high)).all(axis=1)
    if not kept.any():
        raise PermanentFailure(
            f"crop {[list(row) for row in box]}: nothing of {what} lies in it; give a box in the scene's "
            "coordinates (those of cameras.json), or crop: none"
        )
    return kept


def crop_mesh(vertices: Any, faces: Any, colours: Any, box: Box) -> tuple[Any, Any, Any]:
    """The faces whose three corners lie in ``box``, and the vertices that they use, numbered anew."""
    faces = faces[inside(vertices, box, "the mesh")[faces].all(axis=1)]
    if not len(faces):
        raise PermanentFailure("crop: no whole face of the mesh lies in the box; make it larger")
    used, renamed = np.unique(faces, return_inverse=True)
    return vertices[used], renamed.reshape(-1, 3), colours[used]


def views_of(places: Any, views: Sequence[View]) -> Any:
    """In how many of ``views`` each of ``places`` (n, 3) falls, what hides it aside; (n,) integers."""
    counts = np.zeros(len(places), dtype=int)
    for view in views:
        x, y, z = ((places - view.matrix[:3, 3]) @ view.matrix[:3, :3]).T
        depth = np.where(z < -1e-9, -z, np.inf)
        u, v = view.cx + view.fx * x / depth, view.cy - view.fy * y / depth
        counts += (z < -1e-9) & (u >= 0) & (u <= view.width) & (v >= 0) & (v <= view.height)
    return counts


def check_seen(box: Box, views: Sequence[View]) -> None:
    """Raise :class:`PermanentFailure` where no view sees any of 9 x 9 x 9 places in ``box``."""
    lines = [np.linspace(low, high, 9) for low, high in zip(*box, strict=True)]
    places = np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(-1, 3)
    if not views_of(places, views).any():
        raise PermanentFailure(
            f"crop {[list(row) for row in box]}: no camera sees into it; give a box in the scene's "
            "coordinates (those of cameras.json), or crop: none"
        )
