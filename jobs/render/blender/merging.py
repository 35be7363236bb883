"""Parts of one huge still to the whole: tiles side by side, sample ranges averaged by their samples.

Parts are multilayer EXRs of 32-bit floats with the same channels. Every pixel must be covered exactly
once, and every sample exactly once; what is missing or doubled is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from farm.errors import NotInstalled, TaskFailed
from jobs.engine import StoredArtifact

_COPIED = ("Depth", "IndexOB", "IndexMA", "Crypto")
"""Passes that have no average, as in Cycles' own merging of images: the first range's stand for all."""


def merge(
    stored: Sequence[StoredArtifact],
    parts: Sequence[Mapping[str, Any]],
    size: tuple[int, int],
    channels: list[str],
) -> dict[str, Any]:
    """Channel name to (height, width) float32. ``parts`` are what was asked for, in order of their index.

    Raises :class:`farm.errors.TaskFailed` where a part is missing, has another size or other channels.
    """
    found = {int(part.meta["index"]): part for part in stored}
    lost = [str(index) for index in range(len(parts)) if index not in found]
    if lost:
        raise TaskFailed(f"{len(lost)} of {len(parts)} parts are missing: {', '.join(lost[:10])}")
    if "border" in parts[0]:
        return _tiles([(found[i], part["border"]) for i, part in enumerate(parts)], size, channels)
    return _ranges([(found[i], part["first"], part["count"]) for i, part in enumerate(parts)], size, channels)


def _tiles(
    tiles: list[tuple[StoredArtifact, list[int]]], size: tuple[int, int], channels: list[str]
) -> dict[str, Any]:
    width, height = size
    covered = np.zeros((height, width), dtype=np.uint8)
    whole = {name: np.zeros((height, width), dtype=np.float32) for name in channels}
    for part, (left, bottom, right, top) in tiles:
        pixels = read(part.path, (right - left, top - bottom), channels, part.name)
        # borders count from the lower left corner, rows of a picture from the top
        rows, columns = slice(height - top, height - bottom), slice(left, right)
        covered[rows, columns] += 1
        for name in channels:
            whole[name][rows, columns] = pixels[name]
    wrong = int(np.count_nonzero(covered != 1))
    if wrong:
        raise TaskFailed(f"the tiles do not cover the picture: {wrong:,} pixels are missing or doubled")
    return whole


def _ranges(
    ranges: list[tuple[StoredArtifact, int, int]], size: tuple[int, int], channels: list[str]
) -> dict[str, Any]:
    expected = 0
    sums: dict[str, Any] = {}
    for part, first, count in sorted(ranges, key=lambda item: item[1]):
        if first != expected:
            raise TaskFailed(f"samples {expected} to {first} are missing or doubled before {part.name}")
        expected = first + count
        pixels = read(part.path, size, channels, part.name)
        for name in channels:
            if name.split(".")[-2].startswith(_COPIED):
                sums.setdefault(name, pixels[name])
            else:
                sums[name] = sums.get(name, 0.0) + pixels[name].astype(np.float64) * count
    return {
        name: values if name.split(".")[-2].startswith(_COPIED) else (values / expected).astype(np.float32)
        for name, values in sums.items()
    }


def read(path: Path, size: tuple[int, int], channels: list[str], label: str) -> dict[str, Any]:
    """Channels of a part; its size and channels must be what was asked for."""
    with _openexr().File(str(path), separate_channels=True) as file:
        found = {name: np.asarray(channel.pixels) for name, channel in file.channels().items()}
    if set(found) != set(channels):
        raise TaskFailed(f"{label}: its channels are {', '.join(sorted(found))}, not {', '.join(channels)}")
    shape = next(iter(found.values())).shape
    if shape != (size[1], size[0]):
        raise TaskFailed(f"{label} is {shape[1]}x{shape[0]}, but {size[0]}x{size[1]} was asked for")
    return found


def write(channels: Mapping[str, Any], path: Path, *, half: bool) -> None:
    """An EXR of these channels; data keeps 32 bits in a file of half floats, as in Blender's own."""
    kept = {
        name: values.astype(np.float16) if half and _is_color(name) else values
        for name, values in channels.items()
    }
    _write(kept, path)


def write_beauty(channels: Mapping[str, Any], layer: str, path: Path) -> None:
    """The beauty of a view layer as an EXR of that pass alone, in linear light, as an engine may read it."""
    _write({f"Combined.{letter}": channels[f"{layer}.Combined.{letter}"] for letter in "RGBA"}, path)


def _is_color(name: str) -> bool:
    return name[-1] in "RGBA" and ".UV." not in name


def _write(channels: Mapping[str, Any], path: Path) -> None:
    openexr = _openexr()
    header = {"compression": openexr.ZIP_COMPRESSION, "type": openexr.scanlineimage}
    with openexr.File(header, {n: np.ascontiguousarray(v) for n, v in channels.items()}) as file:
        file.write(str(path))


def _openexr() -> Any:
    try:
        import OpenEXR
    except ImportError:
        raise NotInstalled("merging parts needs OpenEXR: pip install 'stillframe[render]'") from None
    return OpenEXR
