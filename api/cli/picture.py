"""A small picture in a terminal: two pixels a character, in 24-bit colour."""

from __future__ import annotations

import io

from rich.color import Color
from rich.style import Style
from rich.text import Text


def blocks(png: bytes, columns: int = 48) -> Text:
    """The picture, at most ``columns`` characters wide and half as many lines high, its shape kept."""
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(png), formats=("PNG",)) as opened:
        picture = opened.convert("RGB")
    scale = min(columns / picture.width, columns / picture.height)
    width = max(1, round(picture.width * scale))
    height = max(2, round(picture.height * scale) // 2 * 2)
    pixels = np.asarray(picture.resize((width, height)))
    text = Text(no_wrap=True)
    for row in range(0, height, 2):
        for column in range(width):
            above, below = (Color.from_rgb(*map(int, pixels[line, column])) for line in (row, row + 1))
            text.append("▀", Style(color=above, bgcolor=below))
        text.append("\n")
    return text
