"""Rendered pixels to layers and files. Arrays are (height, width, channels) float32 in linear light."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mitsuba as mi
import numpy as np

from farm.errors import PermanentFailure, TaskFailed
from jobs.render.outputs import CHANNELS, ExrOutput, JpegOutput, PngOutput
from jobs.render.spec import Spec

Picture = dict[str, Any]
"""Layer name to pixels; the beauty has four channels (premultiplied alpha) where the job is transparent."""
_WIDTH = {"depth": 1, "normal": 3, "albedo": 3}


def auxiliary_layers(spec: Spec) -> list[str]:
    """Layers beside the beauty that outputs or the denoiser ask for, in the order they are rendered."""
    wanted = {layer for output in spec.outputs for layer in output.layers}
    if spec.denoise != "none":
        wanted |= {"albedo", "normal"}
    return [layer for layer in ("depth", "normal", "albedo") if layer in wanted]


def split_layers(pixels: Any, integrator: Any, spec: Spec, layers: list[str], number: int) -> Picture:
    """Name the channels of a rendered image.

    Raises :class:`farm.errors.TaskFailed`, naming frame and layer, for pixels that are not finite.
    """
    base = 4 if spec.transparent else 3
    picture: Picture = {"beauty": pixels[..., :base]}
    own = [name for name in integrator.aov_names() if not name.startswith("img.")] if layers else []
    if layers and len(own) != pixels.shape[-1] - base:
        raise PermanentFailure(
            "the scene's integrator makes layers of its own, which do not go with AOVs; "
            "set integrator to path"
        )
    for layer in layers:
        first = next(i for i, name in enumerate(own) if name.startswith(f"{layer}."))
        picture[layer] = pixels[..., base + first : base + first + _WIDTH[layer]]
    for layer, values in picture.items():
        bad = int(values.size - np.count_nonzero(np.isfinite(values)))
        if bad:
            raise TaskFailed(
                f"frame {number}: layer {layer} has {bad} values that are not finite (NaN or infinity); look "
                "for emitters or materials with extreme values"
            )
    return picture


def write_outputs(picture: Picture, spec: Spec, folder: Path, number: int) -> dict[str, str]:
    """Write every output of a frame; returns output name to file name in ``folder``."""
    files: dict[str, str] = {}
    for output in spec.outputs:
        path = folder / f"{number}-{output.name}"
        if isinstance(output, ExrOutput):
            write_exr(picture, output, path, number)
        else:
            _write_display(picture, output, spec, path)
        files[output.name] = path.name
    return files


def _write_display(picture: Picture, output: PngOutput | JpegOutput, spec: Spec, path: Path) -> None:
    layer = "beauty" if isinstance(output, JpegOutput) else output.layer
    values = picture[layer]
    gamma = layer != "normal"
    if layer == "normal":
        values = (values + 1.0) * np.float32(0.5)
    if layer == "beauty" and values.shape[-1] == 4:
        alpha = np.clip(values[..., 3:4], 0.0, 1.0)
        colour = np.where(alpha > 0, values[..., :3] / np.maximum(alpha, 1e-8), 0.0)
        values = np.concatenate([colour, alpha], axis=-1)
    if layer == "beauty" and spec.exposure:
        values = np.concatenate([values[..., :3] * np.float32(2.0**spec.exposure), values[..., 3:]], axis=-1)
    four = values.shape[-1] == 4
    bitmap = mi.Bitmap(
        np.ascontiguousarray(values, dtype=np.float32),
        mi.Bitmap.PixelFormat.RGBA if four else mi.Bitmap.PixelFormat.RGB,
    )
    deep = isinstance(output, PngOutput) and output.bits == 16
    plain = bitmap.convert(
        component_format=mi.Struct.Type.UInt16 if deep else mi.Struct.Type.UInt8, srgb_gamma=gamma
    )
    if isinstance(output, JpegOutput):
        plain.write(str(path), mi.Bitmap.FileFormat.JPEG, output.quality)
    else:
        plain.write(str(path), mi.Bitmap.FileFormat.PNG)


def write_exr(picture: Picture, output: ExrOutput, path: Path, number: int) -> None:
    """A scan-line EXR with ZIP compression. Half floats must hold the values, else the frame fails."""
    import OpenEXR

    dtype = np.float16 if output.dtype == "half" else np.float32
    channels: dict[str, Any] = {}
    for layer in output.layers:
        values = picture[layer]
        names = [*CHANNELS[layer], *(["A"] if layer == "beauty" and values.shape[-1] == 4 else [])]
        if dtype is np.float16 and float(np.abs(values).max()) > 65504.0:
            raise TaskFailed(
                f"frame {number}: {output.name}: layer {layer} reaches "
                f"{float(np.abs(values).max()):.6g}, over the 65504 of a half float; "
                "set the output's dtype to float"
            )
        for index, name in enumerate(names):
            channels[name] = np.ascontiguousarray(values[..., index].astype(dtype))
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    with OpenEXR.File(header, channels) as file:
        file.write(str(path))
