"""Views that are only to be looked at: set on their background and rounded to bytes where they were drawn.

A 1080p view is 6 MB of bytes then, where its colour, opacity and depth are 41 MB of floats, which the host
would have to go through again and again. The bytes are those that
:func:`jobs.nerf.rendering.write_outputs` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from PIL import Image

from farm.errors import TaskFailed
from jobs.nerf.png_files import write_png
from jobs.nerf.rendering import Look, file_of
from jobs.nerf.spec import Spec
from jobs.render.outputs import JpegOutput, PngOutput

Tensor = torch.Tensor


def only_looked_at(spec: Spec) -> bool:
    """Whether all outputs are 8-bit pictures of the beauty layer."""
    return all(
        output.layers == ("beauty",)
        and (isinstance(output, JpegOutput) or (isinstance(output, PngOutput) and output.bits == 8))
        for output in spec.outputs
    )


@torch.no_grad()
def as_bytes(colour: Tensor, opacity: Tensor, look: Look, clear: bool) -> tuple[Tensor, Tensor]:
    """Bytes (height, width, 3, or 4 where ``clear``) on the device of premultiplied colour and opacity, and
    two facts as float32: 1 where all values are finite, and the mean opacity. Nothing waits for the device.
    """
    colour, opacity = colour.float(), opacity.float()
    shown = (colour + (1.0 - opacity[..., None]) * look.shown.to(colour)).clamp(0.0, 1.0)
    finite = torch.isfinite(shown).all() & torch.isfinite(opacity).all()
    if clear:
        alpha = opacity.clamp(0.0, 1.0)[..., None]
        shown = torch.cat([(colour / alpha.clamp_min(1e-4)).clamp(0.0, 1.0), alpha], -1)
    return (shown * 255 + 0.5).to(torch.uint8), torch.stack([finite.float(), opacity.mean()])


def write_bytes(
    pixels: npt.NDArray[Any], finite: bool, spec: Spec, folder: Path, number: int
) -> dict[str, Path]:
    """Write every output of a view that is only looked at.

    Raises :class:`TaskFailed`, naming frame and layer, where not all values were ``finite``.
    """
    if not finite:
        raise TaskFailed(f"frame {number}: layer beauty holds values that are not finite")
    files = {}
    for output in spec.outputs:
        path = file_of(folder, number, output.name)
        if isinstance(output, JpegOutput):
            Image.fromarray(pixels).save(path, "JPEG", quality=output.quality, subsampling=0)
        else:
            write_png(path, pixels)
        files[output.name] = path
    return files
