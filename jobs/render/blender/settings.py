"""What can be asked of Blender beyond what every render job asks."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from jobs.fields import JobPath, Model, fault

PASSES = (
    "combined", "z", "mist", "position", "normal", "vector", "uv", "object_index", "material_index", "shadow",
    "ambient_occlusion", "emit", "environment", "diffuse_direct", "diffuse_indirect", "diffuse_color",
    "glossy_direct", "glossy_indirect", "glossy_color", "transmission_direct", "transmission_indirect",
    "transmission_color", "volume_direct", "volume_indirect", "cryptomatte_object", "cryptomatte_material",
    "cryptomatte_asset", "shadow_catcher", "transparent",
)  # fmt: skip
"""View layer passes by the names of Blender's ``use_pass_…`` properties."""


def _pass(name: str) -> str:
    if name not in PASSES:
        raise ValueError(f"there is no pass {name!r}; choose among {', '.join(PASSES)}")
    return name


def _as_text(value: object) -> object:
    """A version is text, but ``4.2`` by itself is read as a number on the way here."""
    return f"{value:g}" if isinstance(value, float) else value


def _version(text: str) -> str:
    if not re.fullmatch(r"\d{1,2}\.\d{1,2}", text):
        raise ValueError(f"{text[:20]!r} is not a Blender version; write one like 4.5")
    return text


Simple = bool | int | float | str | list[bool] | list[int] | list[float]


class Override(Model):
    """One simple property of one data-block, set before the render. No Python text is evaluated."""

    on: Literal[
        "scene", "object", "material", "world", "light", "camera", "mesh", "collection", "node_group"
    ] = Field(description="Kind of data-block.")
    name: str = Field(min_length=1, max_length=200, description="Its name in the file.")
    property: str = Field(
        min_length=1,
        max_length=400,
        description='Path of the property: hide_render, or node_tree.nodes["Mix"].inputs[0].default_value.',
    )
    value: Simple = Field(description="A boolean, number, text, or list of numbers, as the property's type.")


class Tiles(Model):
    """A huge still in parts, merged and checked: a grid of border tiles."""

    columns: int = Field(ge=1, le=64, description="Tiles across.")
    rows: int = Field(ge=1, le=64, description="Tiles down.")

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return self.columns * self.rows


class BlenderSettings(Model):
    """Blender's own settings of a render job; what is left out is as the file says."""

    version: Annotated[str, BeforeValidator(_as_text), AfterValidator(_version)] | None = Field(
        default=None, description="Blender version, such as 4.5; left out: the newest of the node."
    )
    scene: str | None = Field(default=None, description="Scene in the file; left out: the active one.")
    view_layer: str | None = Field(default=None, description="View layer; left out: the first one.")
    camera: str | None = Field(
        default=None,
        description="Camera object, or auto to frame all visible objects: either stands for every frame; "
        "left out: the scene's camera, and its markers that switch it.",
    )
    engine: Literal["cycles", "eevee", "workbench"] | None = Field(
        default=None, description="Left out: the file's own engine."
    )
    adaptive: bool | None = Field(
        default=None,
        description="Let Cycles stop a pixel early; left out: as the file says; no, with samples.",
    )
    denoiser: Literal["none", "openimagedenoise", "optix"] | None = Field(
        default=None, description="Cycles denoiser; left out: as the file says."
    )
    motion_blur: bool | None = Field(default=None, description="Left out: as the file says.")
    compositor: bool | None = Field(default=None, description="Left out: as the file says.")
    view_transform: str | None = Field(default=None, description="Such as AgX, Filmic, Standard, Raw.")
    look: str | None = Field(default=None, description="A look of the view transform.")
    exposure: float | None = Field(default=None, ge=-32, le=32, description="Stops of the view.")
    gamma: float | None = Field(default=None, ge=0, le=5, description="Gamma of the view.")
    ocio: JobPath | None = Field(default=None, description="Asset with the OCIO configuration (.ocio).")
    passes: list[Annotated[str, AfterValidator(_pass)]] = Field(
        default=[], max_length=len(PASSES), description="Render passes, kept as layers of EXR outputs."
    )
    resolution_percentage: int | None = Field(
        default=None, ge=1, le=1000, description="Percentage of the resolution; left out: 100, or the file's."
    )
    lights: Literal["file", "studio"] | None = Field(
        default=None, description="studio adds a neutral set; left out: file for .blend, studio for imports."
    )
    overrides: list[Override] = Field(default=[], max_length=200, description="Simple properties to set.")
    allow_missing: bool = Field(
        default=False, description="Render although linked files or images are missing."
    )
    tiles: Tiles | None = Field(default=None, description="Render one still as a grid of tiles.")
    sample_ranges: int | None = Field(
        default=None, ge=2, le=256, description="Render one still as this many ranges of its samples."
    )

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.tiles is not None and self.sample_ranges is not None:
            raise fault("tiles", "tiles and sample_ranges exclude each other; choose one")
        parted = "tiles" if self.tiles else "sample_ranges" if self.sample_ranges else None
        if parted and self.denoiser not in (None, "none"):
            raise fault("denoiser", f"{parted}: a part cannot be denoised by itself; set denoiser: none")
        if parted and self.adaptive:
            raise fault("adaptive", f"{parted}: adaptive sampling leaves seams; set adaptive: false")
        if self.engine not in (None, "cycles") and parted:
            raise fault(parted, f"{parted} need cycles; set engine: cycles")
        if parted and self.compositor:
            raise fault("compositor", f"{parted}: the compositor needs the whole picture; turn it off")
        return self

    @property
    def parted(self) -> bool:
        """Whether one still is rendered in parts."""
        return self.tiles is not None or self.sample_ranges is not None

    def fits(self, device: str, one_frame: bool | None, film: bool) -> None:
        """Check against the rest of the job. ``one_frame`` is ``None`` where the file names the frames."""
        if self.engine not in (None, "cycles") and device != "cpu":
            raise fault("device", f"device {device} is a Cycles device; leave it out for {self.engine}")
        if self.denoiser == "optix" and device not in ("cuda", "optix"):
            raise fault("blender/denoiser", "denoiser optix runs on device cuda or optix only")
        if self.parted and one_frame is not True:
            raise fault("frames", "tiles and sample_ranges render one still: name one frame, such as 12")
        if self.parted and film:
            raise fault("film", "tiles and sample_ranges render one still, which makes no film")
