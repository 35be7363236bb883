"""Where the camera goes: what a person may ask for. The arithmetic is in :mod:`jobs.nerf.cameras`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from jobs.fields import JobPath, Model
from jobs.render.camera import Keyframe

DEFAULT_FRAMES: Final = "1-48"
"""Frames of a path that names none."""


class OrbitPath(Model):
    """A turntable around what the pictures look at, fitted to the cameras that took them."""

    type: Literal["orbit"] = "orbit"
    elevation: float | None = Field(
        default=None, ge=-89, le=89, description="Degrees above the scene; left out: the cameras' median."
    )
    azimuth: float = Field(default=0.0, ge=-3600, le=3600, description="Angle of the first frame, degrees.")
    turns: float = Field(default=1.0, ge=-100, le=100, description="Turns over the frames.")
    distance: float = Field(
        default=1.0,
        gt=0,
        le=100,
        description="Distance from the middle, as a multiple of the cameras' median.",
    )
    fov: float | None = Field(
        default=None, gt=0, lt=175, description="Horizontal field of view, degrees; left out: the cameras'."
    )


class InterpolatePath(Model):
    """A smooth way through the training cameras, in the order of their names."""

    type: Literal["interpolate"] = "interpolate"
    loop: bool = Field(default=False, description="Go back to the first camera at the end.")
    every: int = Field(default=1, ge=1, le=1000, description="Use every n-th camera.")


class SpiralPath(Model):
    """A spiral around the mean camera that keeps looking at the scene, for pictures taken from one side."""

    type: Literal["spiral"] = "spiral"
    turns: float = Field(default=2.0, ge=-100, le=100, description="Turns over the frames.")
    radius: float = Field(
        default=0.5, gt=0, le=10, description="Radius as a multiple of the cameras' own spread."
    )
    zoom: float = Field(default=0.2, ge=0, lt=1, description="How far it goes in and out, of the distance.")


class FilePath(Model):
    """A camera path in nerfstudio's JSON form (``camera_path``, ``keyframes``)."""

    type: Literal["file"] = "file"
    path: JobPath = Field(description="Asset with the path.")
    coordinates: Literal["scene", "source"] = Field(
        default="scene",
        description=(
            "scene: of the job's transforms.json, as nerfstudio means it; source: of the pictures' own."
        ),
    )


class KeyframePath(Model):
    """Keyframes in the source's coordinates, as a render job's camera has them."""

    type: Literal["keyframes"] = "keyframes"
    keyframes: list[Keyframe] = Field(min_length=1, max_length=10_000, description="In order of frame.")
    interpolation: Literal["linear", "smooth", "hold"] = Field(
        default="smooth", description="smooth: cubic through all keyframes; linear: straight; hold: jumps."
    )


Path = Annotated[
    OrbitPath | InterpolatePath | SpiralPath | FilePath | KeyframePath, Field(discriminator="type")
]
