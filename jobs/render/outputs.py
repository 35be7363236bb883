"""The files that a render makes for every frame: PNG, JPEG and multilayer EXR."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from farm.plan import OutputDecl
from jobs.fields import Model

Layer = Literal["beauty", "depth", "normal", "albedo"]

CHANNELS: Final[dict[str, tuple[str, ...]]] = {
    "beauty": ("R", "G", "B"),
    "depth": ("depth.Z",),
    "normal": ("normal.X", "normal.Y", "normal.Z"),
    "albedo": ("albedo.R", "albedo.G", "albedo.B"),
}
"""Channel names of each layer in an EXR; the beauty has no prefix, so that every viewer shows it."""
LINEAR: Final = "linear-rec709"
SRGB: Final = "srgb"
DATA: Final = "data"
_NAME = r"^[a-z0-9][a-z0-9_-]{0,62}\.%s$"
_SHORTHANDS: Final[dict[str, dict[str, Any]]] = {
    "png": {"format": "png"},
    "png16": {"format": "png", "bits": 16},
    "jpeg": {"format": "jpeg"},
    "exr": {"format": "exr"},
    "exr32": {"format": "exr", "dtype": "float"},
}


_Named = TypeVar("_Named", bound="PngOutput | JpegOutput | ExrOutput")


class PngOutput(Model):
    """A PNG of one layer: beauty and albedo through the sRGB curve, normals as (n + 1) / 2."""

    format: Literal["png"] = "png"
    layer: Layer = Field(default="beauty", description="beauty, normal or albedo; depth needs an EXR.")
    bits: Literal[8, 16] = Field(default=8, description="Bits per channel.")
    name: str = Field(default="", description="File name; left out: the layer's name with .png.")

    @model_validator(mode="after")
    def _names(self) -> Self:
        if self.layer == "depth":
            raise ValueError(
                "depth has no upper bound and does not fit a PNG; use "
                '{"format": "exr", "layers": ["depth"], "dtype": "float"}'
            )
        return _named(self, f"{self.layer}.png", "png")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in this file."""
        return (self.layer,)


class JpegOutput(Model):
    """A JPEG of the beauty, through the sRGB curve."""

    format: Literal["jpeg"] = "jpeg"
    quality: int = Field(default=90, ge=1, le=100, description="JPEG quality, 1 to 100.")
    name: str = Field(default="", description="File name; left out: beauty.jpg.")

    @model_validator(mode="after")
    def _names(self) -> Self:
        return _named(self, "beauty.jpg", "jpe?g")

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in this file."""
        return ("beauty",)


class ExrOutput(Model):
    """An EXR with any layers, in linear light."""

    format: Literal["exr"] = "exr"
    layers: tuple[Layer, ...] = Field(
        default=("beauty", "depth", "normal", "albedo"),
        min_length=1,
        description="Layers, in the channels R G B (A), depth.Z, normal.X/Y/Z, albedo.R/G/B.",
    )
    dtype: Literal["half", "float"] = Field(
        default="half", description="16-bit or 32-bit floating point, for all channels of the file."
    )
    name: str = Field(default="", description="File name; left out: layers.exr, or the only layer's name.")

    @model_validator(mode="after")
    def _names(self) -> Self:
        if len(set(self.layers)) != len(self.layers):
            raise ValueError(f"layers names one twice: {', '.join(self.layers)}")
        return _named(self, f"{self.layers[0]}.exr" if len(self.layers) == 1 else "layers.exr", "exr")


def _named(output: _Named, default: str, suffix: str) -> _Named:
    name = output.name or default
    if not re.fullmatch(_NAME % suffix, name):
        raise ValueError(
            f"name {name[:80]!r} must be lower-case letters, digits, _ and -, and end as {default!r} does"
        )
    # the models are frozen; this fills in a default while the instance is made
    object.__setattr__(output, "name", name)
    return output


def _shorthand(value: Any) -> Any:
    if isinstance(value, str):
        if value not in _SHORTHANDS:
            raise ValueError(
                f"{value[:40]!r} is not a format; choose {', '.join(_SHORTHANDS)}, or write an object"
            )
        return _SHORTHANDS[value]
    return value


Output = Annotated[
    Annotated[PngOutput | JpegOutput | ExrOutput, Field(discriminator="format")], BeforeValidator(_shorthand)
]


def declare(output: PngOutput | JpegOutput | ExrOutput, size: tuple[int, int], alpha: bool) -> OutputDecl:
    """The declaration that the written file is checked against. ``size`` in pixels."""
    width, height = size
    with_alpha = ("A",) if alpha and "beauty" in output.layers else ()
    if isinstance(output, ExrOutput):
        channels = tuple(c for layer in output.layers for c in CHANNELS[layer]) + with_alpha
        dtype: Literal["float16", "float32"] = "float16" if output.dtype == "half" else "float32"
        data = not {"beauty", "albedo"} & set(output.layers)
        return OutputDecl(output.name, "exr", width, height, channels, dtype, DATA if data else LINEAR)
    if isinstance(output, JpegOutput):
        return OutputDecl(output.name, "jpeg", width, height, ("R", "G", "B"), "uint8", SRGB)
    depth: Literal["uint8", "uint16"] = "uint8" if output.bits == 8 else "uint16"
    space = DATA if output.layer == "normal" else SRGB
    return OutputDecl(output.name, "png", width, height, ("R", "G", "B", *with_alpha), depth, space)
