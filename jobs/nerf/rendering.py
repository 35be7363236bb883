"""From a field and a camera to a picture: background, exposure, depth, normals, files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from farm.errors import TaskFailed
from jobs.nerf.methods.base import Adam
from jobs.nerf.png_files import write_png
from jobs.nerf.scene import Scene, View
from jobs.nerf.spec import Spec
from jobs.render.outputs import ExrOutput, JpegOutput, PngOutput

Tensor = torch.Tensor
Pixels = npt.NDArray[np.float32]
_NAMED: Final = {"black": (0.0, 0.0, 0.0), "white": (1.0, 1.0, 1.0)}
_RATE: Final = 0.005


@dataclass(slots=True)
class Picture:
    """A rendered view, float32, (height, width, ...): sRGB colour (premultiplied where not yet on a
    background), opacity, depth along the optical axis in normalised lengths, normal (of the world)."""

    colour: Pixels
    opacity: Pixels
    depth: Pixels
    normal: Pixels | None = None


class Look:
    """What lies behind the field, and how each training picture was exposed. Learnt beside the field."""

    def __init__(self, background: str, pictures: int, appearance: bool, device: torch.device) -> None:
        self.background = background
        self.appearance = appearance
        self.device = device
        fixed = _NAMED.get(background)
        if background.startswith("#"):
            raw = bytes.fromhex(background[1:])
            fixed = (raw[0] / 255, raw[1] / 255, raw[2] / 255)
        self.colour = torch.tensor(fixed or (0.5, 0.5, 0.5), device=device)
        # per picture and channel: logarithm of a gain, and an offset
        self.exposure = torch.zeros(pictures, 6, device=device)
        self.optimiser = Adam(0.9, 0.99, 1e-8)

    @staticmethod
    def of(spec: Spec, scene: Scene, device: torch.device, pictures: int) -> Look:
        """As the job asks; ``auto`` is random behind a bounded scene, else learnt."""
        wanted = spec.train.background
        if wanted == "auto":
            wanted = "random" if scene.bounded else "learned"
        return Look(wanted, pictures, spec.train.appearance, device)

    def behind(self, count: int, drawn: torch.Generator) -> Tensor:
        """Background colours (count, 3) for training."""
        if self.background == "random":
            return torch.rand(count, 3, generator=drawn, device=self.device)
        return self.colour.expand(count, 3)

    def exposed(self, colour: Tensor, picture: Tensor) -> Tensor:
        """Colours (n, 3) as the picture of each was exposed."""
        if not self.appearance:
            return colour
        values = self.exposure[picture]
        return colour * torch.exp(values[:, :3]) + values[:, 3:]

    def wanted(self) -> list[Tensor]:
        """Parameters whose gradients :meth:`learn` takes."""
        found = [self.colour] if self.background == "learned" else []
        return [*found, self.exposure] if self.appearance else found

    def learn(self, grads: list[Tensor | None]) -> None:
        """One step; ``grads`` in the order of :meth:`wanted`."""
        for value, grad in zip(self.wanted(), grads, strict=True):
            if grad is None:
                continue
            name = "colour" if value is self.colour else "exposure"
            self.optimiser.step(name, value, grad, _RATE)
        if self.appearance:
            # the pictures' mean exposure is the field's own
            self.exposure.sub_(self.exposure.mean(0, keepdim=True))

    @property
    def shown(self) -> Tensor:
        """The background that views are shown on: the learnt or given one; black where it was random."""
        return torch.zeros_like(self.colour) if self.background == "random" else self.colour.clamp(0, 1)

    def state(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint."""
        return {"colour": self.colour, "exposure": self.exposure, **self.optimiser.state()}

    def facts(self) -> dict[str, Any]:
        """What a checkpoint needs beside them."""
        return {"background": self.background, **self.optimiser.facts()}

    def load(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Back to a checkpoint."""
        self.background = str(facts["background"])
        self.colour = tensors["colour"].to(self.device)
        self.exposure = tensors["exposure"].to(self.device)
        self.optimiser.load(tensors, facts, self.device)


def on_background(picture: Picture, look: Look) -> Pixels:
    """Colours 0 to 1 with the background behind them, sRGB."""
    behind = look.shown.detach().cpu().numpy().astype(np.float32)
    return np.clip(picture.colour + (1.0 - picture.opacity[..., None]) * behind, 0.0, 1.0)


def normals_of(depth: Pixels, opacity: Pixels, view: View) -> Pixels:
    """Normals in world axes from the depth along the optical axis, facing the camera; 0 where nothing is."""
    y, x = np.meshgrid(np.arange(view.height) + 0.5, np.arange(view.width) + 0.5, indexing="ij")
    local = np.stack([(x - view.cx) / view.fx, -(y - view.cy) / view.fy, -np.ones_like(x)], -1)
    points = local * depth[..., None]
    across = np.gradient(points, axis=1)
    down = np.gradient(points, axis=0)
    normal = np.cross(down, across)
    normal /= np.maximum(np.linalg.norm(normal, axis=-1, keepdims=True), 1e-12)
    normal *= np.where((normal * local).sum(-1, keepdims=True) > 0, -1.0, 1.0)
    world = normal @ view.matrix[:3, :3].T
    return np.where(opacity[..., None] > 0.5, world, 0.0).astype(np.float32)


def to_png(colour: Pixels) -> bytes:
    """Colours 0 to 1 as a PNG."""
    out = io.BytesIO()
    Image.fromarray((np.clip(colour, 0, 1) * 255 + 0.5).astype(np.uint8)).save(out, "PNG", compress_level=3)
    return out.getvalue()


def to_linear(srgb: Any) -> Pixels:
    """The sRGB curve undone."""
    linear: Pixels = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4).astype(
        np.float32
    )
    return linear


def file_of(folder: Path, number: int, output: str) -> Path:
    """Where an output of a view is written."""
    return folder / f"{number}-{output}"


def write_outputs(
    picture: Picture, look: Look, view: View, spec: Spec, folder: Path, number: int, unit: float
) -> dict[str, Path]:
    """Write every output of a view. ``unit``: source lengths per normalised length, for depth.

    Raises :class:`TaskFailed`, naming frame and layer, for values that are not finite.
    """
    layers: dict[str, Pixels] = {"beauty": on_background(picture, look)}
    wanted = {layer for output in spec.outputs for layer in output.layers}
    alpha = np.clip(picture.opacity, 0.0, 1.0)
    if "depth" in wanted:
        layers["depth"] = (picture.depth * unit)[..., None].astype(np.float32)
    if "normal" in wanted:
        layers["normal"] = normals_of(picture.depth, picture.opacity, view)
    for name, values in layers.items():
        if not np.isfinite(values).all():
            raise TaskFailed(f"frame {number}: layer {name} holds values that are not finite")
    files = {}
    for output in spec.outputs:
        path = file_of(folder, number, output.name)
        if isinstance(output, ExrOutput):
            _write_exr(layers, picture, alpha, output, spec.transparent, path)
        else:
            _write_plain(layers, picture, alpha, output, spec.transparent, path)
        files[output.name] = path
    return files


def _write_plain(
    layers: dict[str, Pixels], picture: Picture, alpha: Pixels, output: PngOutput | JpegOutput, clear: bool,
    path: Path,
) -> None:  # fmt: skip
    values = layers["normal"] * 0.5 + 0.5 if output.layers == ("normal",) else layers["beauty"]
    if clear:
        if output.layers == ("beauty",):
            values = picture.colour / np.maximum(alpha[..., None], 1e-4)
        values = np.concatenate([np.clip(values, 0, 1), alpha[..., None]], -1)
    if isinstance(output, PngOutput) and output.bits == 16:
        write_png(path, (np.clip(values, 0, 1) * 65535 + 0.5).astype(np.uint16))
        return
    pixels = (np.clip(values, 0, 1) * 255 + 0.5).astype(np.uint8)
    if isinstance(output, JpegOutput):
        Image.fromarray(pixels).save(path, "JPEG", quality=output.quality, subsampling=0)
    else:
        write_png(path, pixels)


def _write_exr(
    layers: dict[str, Pixels], picture: Picture, alpha: Pixels, output: ExrOutput, clear: bool, path: Path
) -> None:
    import OpenEXR

    kind = np.float16 if output.dtype == "half" else np.float32
    channels: dict[str, Any] = {}
    for layer in output.layers:
        if layer == "beauty":
            shown = layers["beauty"]
            if clear:
                straight = np.clip(picture.colour / np.maximum(alpha[..., None], 1e-4), 0, 1)
                linear = to_linear(straight) * alpha[..., None]
                channels["A"] = alpha.astype(kind)
            else:
                linear = to_linear(shown)
            channels |= {c: np.ascontiguousarray(linear[..., i].astype(kind)) for i, c in enumerate("RGB")}
        elif layer == "depth":
            channels["depth.Z"] = np.ascontiguousarray(layers["depth"][..., 0].astype(kind))
        elif layer == "normal":
            channels |= {
                f"normal.{c}": np.ascontiguousarray(layers["normal"][..., i].astype(kind))
                for i, c in enumerate("XYZ")
            }
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    with OpenEXR.File(header, channels) as file:
        file.write(str(path))
