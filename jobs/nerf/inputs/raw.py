"""What a source gives before anything is undistorted: pictures, and cameras where it has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from farm.errors import PermanentFailure

Array = npt.NDArray[np.float64]

PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "SIMPLE_PINHOLE": ("f", "cx", "cy"),
    "PINHOLE": ("fl_x", "fl_y", "cx", "cy"),
    "SIMPLE_RADIAL": ("f", "cx", "cy", "k1"),
    "RADIAL": ("f", "cx", "cy", "k1", "k2"),
    "OPENCV": ("fl_x", "fl_y", "cx", "cy", "k1", "k2", "p1", "p2"),
    "OPENCV_FISHEYE": ("fl_x", "fl_y", "cx", "cy", "k1", "k2", "k3", "k4"),
    "FULL_OPENCV": ("fl_x", "fl_y", "cx", "cy", "k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6"),
    "SIMPLE_RADIAL_FISHEYE": ("f", "cx", "cy", "k1"),
    "RADIAL_FISHEYE": ("f", "cx", "cy", "k1", "k2"),
}
"""Lens models, with COLMAP's order of their parameters."""


@dataclass(frozen=True, slots=True)
class Lens:
    """A camera's lens for pictures of one size: a COLMAP model and its parameters in COLMAP's order."""

    model: str
    width: int
    height: int
    params: tuple[float, ...]

    @staticmethod
    def of(model: str, width: int, height: int, values: Mapping[str, float], label: str) -> Lens:
        """By parameter names; raises :class:`PermanentFailure` for values that no lens has."""
        named = dict(values)
        named.setdefault("f", named.get("fl_x", 0.0))
        params = tuple(float(named.get(name, 0.0)) for name in PARAMETERS[model])
        if not np.isfinite(params).all() or params[0] <= 0.0:
            raise PermanentFailure(
                f"{label}: the lens has focal length {params[0]!r} and parameters {params[1:]}; "
                "all must be finite numbers, and the focal length above zero"
            )
        return Lens(model, width, height, params)

    @property
    def distorted(self) -> bool:
        """Whether straight lines are bent."""
        names = PARAMETERS[self.model]
        fish = "FISHEYE" in self.model
        return fish or any(v != 0.0 for n, v in zip(names, self.params, strict=True) if n[0] in "kp")

    def value(self, name: str) -> float:
        """A parameter by name; ``fl_x`` and ``fl_y`` also where the model has one focal length."""
        names = PARAMETERS[self.model]
        if name in ("fl_x", "fl_y") and "f" in names:
            name = "f"
        return self.params[names.index(name)] if name in names else 0.0


@dataclass(slots=True)
class RawPicture:
    """One picture as the source has it; ``matrix`` is camera-to-world in OpenGL's convention."""

    name: str
    path: Path
    matrix: Array | None = None
    lens: Lens | None = None
    split: str | None = None
    """``train`` or ``test`` where the source says so."""
    mask: Path | None = None
    frame: int = 0
    upright: bool = False
    """Whether ``lens`` and ``matrix`` already belong to the picture after its EXIF orientation."""


@dataclass(slots=True)
class RawScene:
    """What a source gives. ``points``: (n, 6), positions and colours 0 to 1, in the source's coordinates."""

    pictures: list[RawPicture]
    points: Array = field(default_factory=lambda: np.zeros((0, 6)))
    notes: list[str] = field(default_factory=list)
    in_time: bool = False
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def posed(self) -> bool:
        """Whether every picture has its camera."""
        return all(p.matrix is not None and p.lens is not None for p in self.pictures)
