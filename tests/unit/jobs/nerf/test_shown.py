"""Views that are only looked at: bytes of the device are those of the long way, and PNGs hold every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from farm.errors import TaskFailed
from jobs.nerf.png_files import write_png
from jobs.nerf.rendering import Look, Picture, write_outputs
from jobs.nerf.scene import View
from jobs.nerf.shown import as_bytes, only_looked_at, write_bytes
from jobs.nerf.spec import Spec

CPU = torch.device("cpu")
VIEW = View("v", 37, 23, 40.0, 40.0, 18.5, 11.5, np.eye(4))
PNG: dict[str, Any] = {"name": "beauty.png", "format": "png"}
JPEG: dict[str, Any] = {"name": "beauty.jpg", "format": "jpeg", "quality": 90}
EXR: dict[str, Any] = {"name": "layers.exr", "format": "exr", "layers": ["beauty", "depth"]}


def spec_of(*outputs: dict[str, Any], **more: Any) -> Spec:
    return Spec.model_validate({"source": "set/transforms.json", "outputs": outputs, **more})


def drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Colour and opacity that leave 0 to 1 on both sides, with clear and opaque places; and depth."""
    dice = torch.Generator().manual_seed(2)
    opacity = (torch.rand(23, 37, generator=dice) * 1.6 - 0.3).clamp(0.0, 1.0000001)
    return torch.rand(23, 37, 3, generator=dice) * 1.4 - 0.2, opacity, opacity * 3


def test_bytes_alone_leave_the_device_only_where_bytes_are_all_that_is_asked_for() -> None:
    assert only_looked_at(spec_of(PNG)) and only_looked_at(spec_of(PNG, JPEG))
    deep, normal = {**PNG, "name": "deep.png", "bits": 16}, {**PNG, "name": "n.png", "layer": "normal"}
    for other in (EXR, deep, normal):
        assert not only_looked_at(spec_of(PNG, other))


@pytest.mark.parametrize("background", ["black", "#3377bb"])
@pytest.mark.parametrize("clear", [False, True])
def test_bytes_of_the_device_are_those_of_the_long_way(tmp_path: Path, background: str, clear: bool) -> None:
    spec = spec_of(PNG, transparent=True) if clear else spec_of(PNG, JPEG)
    look, parts = Look(background, 1, False, CPU), drawn()
    pixels, facts = as_bytes(parts[0], parts[1], look, clear)
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    new = write_bytes(pixels.numpy(), bool(facts[0]), spec, tmp_path / "new", 7)
    picture = Picture(*(part.numpy() for part in parts))
    old = write_outputs(picture, look, VIEW, spec, tmp_path / "old", 7, 1.0)
    assert new.keys() == old.keys() == {output.name for output in spec.outputs}
    for name in new:
        found, wanted = (np.asarray(Image.open(files[name])) for files in (new, old))
        assert found.shape == (23, 37, 4 if clear else 3) and np.array_equal(found, wanted)
    assert float(facts[1]) == pytest.approx(float(picture.opacity.mean()))


@pytest.mark.parametrize("where", [0, 1])
def test_values_that_are_not_finite_are_refused_by_name(tmp_path: Path, where: int) -> None:
    parts = drawn()
    parts[where][5, 6] = float("nan")
    pixels, facts = as_bytes(parts[0], parts[1], Look("black", 1, False, CPU), False)
    with pytest.raises(TaskFailed, match="frame 7: layer beauty holds values that are not finite"):
        write_bytes(pixels.numpy(), bool(facts[0]), spec_of(PNG), tmp_path, 7)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("channels", [3, 4])
def test_a_png_holds_every_bit(tmp_path: Path, channels: int) -> None:
    """Read by Pillow and, for 16 bits, of which Pillow keeps 8, by FFmpeg."""
    dice = np.random.default_rng(5)
    path = tmp_path / "a.png"
    pixels = dice.integers(0, 256, (19, 31, channels), np.uint8)
    write_png(path, pixels)
    with Image.open(path) as image:
        image.verify()
    assert np.array_equal(np.asarray(Image.open(path)), pixels)
    deep = dice.integers(0, 65536, (19, 31, channels), np.uint16)
    write_png(path, deep)
    with av.open(str(path)) as file:
        frame = next(file.decode(video=0))
    assert np.array_equal(frame.to_ndarray(format="rgb48le" if channels == 3 else "rgba64le"), deep)
