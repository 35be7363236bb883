"""A picture in a terminal: two pixels a character."""

from __future__ import annotations

import io

from PIL import Image

from api.cli.picture import blocks


def test_each_character_shows_two_pixels() -> None:
    buffer = io.BytesIO()
    picture = Image.new("RGB", (2, 2), (255, 0, 0))
    picture.putpixel((1, 1), (0, 0, 255))
    picture.save(buffer, "PNG")
    text = blocks(buffer.getvalue(), 2)
    assert text.plain == "▀▀\n"
    colours = [(str(s.style.color.triplet.hex), str(s.style.bgcolor.triplet.hex)) for s in text.spans]  # type: ignore[union-attr]
    assert colours == [("#ff0000", "#ff0000"), ("#ff0000", "#0000ff")]


def test_the_shape_is_kept_and_the_width_bounded() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (320, 180)).save(buffer, "PNG")
    lines = blocks(buffer.getvalue(), 48).plain.splitlines()
    # 48 wide is 27 high, so 13 lines of two pixels
    assert (len(lines[0]), len(lines)) == (48, 13)
