"""What people watch while a field is trained: one view of it, and the curve so far, as one PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw

SIDE: Final = 320
"""Longest side in pixels of the view."""
_CHART: Final = (320, 240)
_LEFT, _BELOW = 34, 20
_GROUND, _RULE, _TEXT = (16, 19, 26), (52, 60, 74), (160, 168, 184)
_TRAINED, _TESTED = (129, 138, 155), (124, 196, 255)


def compose(view: Any, curve: Sequence[Sequence[float]]) -> bytes:
    """``view`` (height, width, 3), 0 to 1, with the chart of ``curve`` beside it.

    Rows of the curve: iteration, seconds, PSNR of training rays, PSNR of held-out pictures (0: none), loss.
    """
    shown = Image.fromarray((np.clip(view, 0, 1) * 255 + 0.5).astype(np.uint8))
    shown.thumbnail((SIDE, SIDE))
    scale = max(1, min(SIDE // shown.width, _CHART[1] // shown.height))
    if scale > 1:
        shown = shown.resize((shown.width * scale, shown.height * scale), Image.Resampling.NEAREST)
    picture = Image.new("RGB", (shown.width + _CHART[0], max(shown.height, _CHART[1])), _GROUND)
    picture.paste(shown, (0, 0))
    _chart(picture, shown.width, curve)
    out = io.BytesIO()
    picture.save(out, "PNG", compress_level=3)
    return out.getvalue()


def _chart(picture: Image.Image, at: int, curve: Sequence[Sequence[float]]) -> None:
    values = [value for row in curve for value in (row[2], row[3]) if value > 0]
    if len(curve) < 2 or not values:
        return
    pen = ImageDraw.Draw(picture)
    width, height = _CHART
    low, high = int(np.floor(min(values))), int(np.ceil(max(values)))
    high = max(high, low + 1)
    last = max(curve[-1][1], 1e-6)

    def place(row: Sequence[float], column: int) -> tuple[float, float]:
        x = at + _LEFT + row[1] / last * (width - _LEFT - 8)
        return x, 8 + (1 - (row[column] - low) / (high - low)) * (height - _BELOW - 8)

    for value in (low, high):
        y = place([0, 0, value], 2)[1]
        pen.line([(at + _LEFT, y), (at + width - 8, y)], fill=_RULE)
        pen.text((at + 4, y - 6), f"{value}", fill=_TEXT)
    for column, colour, line in ((2, _TRAINED, 1), (3, _TESTED, 2)):
        points = [place(row, column) for row in curve if row[column] > 0]
        if len(points) > 1:
            pen.line(points, fill=colour, width=line)
    newest = curve[-1]
    tested = f", held out {newest[3]:.2f} dB" if newest[3] > 0 else ""
    text = f"{newest[0]:.0f} iterations, {newest[2]:.2f} dB{tested}"
    pen.text((at + _LEFT, height - 14), text, fill=_TEXT)
