"""What of an export lies inside a crop box, axis-aligned in the scene's coordinates (gravity up, scaled)."""

from __future__ import annotations

from typing import Any

import numpy as np

from farm.errors import PermanentFailure

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
