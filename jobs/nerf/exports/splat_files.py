"""Gaussians as files: the usual .ply layout of 3D Gaussian splatting, and Niantic's .spz (version 2)."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
SPZ_MAGIC: Final = 0x5053474E
SPZ_VERSION: Final = 2
FRACTION_BITS: Final = 12
"""Bits behind the point of a place in .spz: steps of 1/4096, up to 2,048 either way."""
_SH_BITS: Final = (5, 4, 4)


def write_ply(path: Path, values: Mapping[str, Array], comments: list[str]) -> None:
    """``values``: means (n, 3), scales (n, 3, logarithms), quats (n, 4, w first), opacities (n, before the
    sigmoid), sh0 (n, 1, 3), shN (n, k, 3). Every viewer of splats reads this layout."""
    count = len(values["means"])
    rest = values["shN"].transpose(0, 2, 1).reshape(count, -1)
    names = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2"]
    names += [f"f_rest_{i}" for i in range(rest.shape[1])]
    names += ["opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    quats = values["quats"] / np.maximum(np.linalg.norm(values["quats"], axis=1, keepdims=True), 1e-12)
    rows = np.concatenate(
        [
            values["means"], np.zeros((count, 3), np.float32), values["sh0"][:, 0], rest,
            values["opacities"][:, None], values["scales"], quats,
        ],
        axis=1,
    ).astype("<f4")  # fmt: skip
    head = ["ply", "format binary_little_endian 1.0", *(f"comment {line}" for line in comments)]
    head += [f"element vertex {count}", *(f"property float {name}" for name in names), "end_header", ""]
    with path.open("wb") as file:
        file.write("\n".join(head).encode())
        file.write(rows.tobytes())


def write_spz(path: Path, values: Mapping[str, Array]) -> None:
    """The same, quantised and packed, about a tenth of the size. Raises :class:`ValueError` for places that
    lie too far out for the format."""
    means = values["means"].astype(np.float64)
    if np.abs(means).max(initial=0.0) >= 2 ** (23 - FRACTION_BITS):
        raise ValueError("a place lies over 2,048 lengths out, which .spz cannot hold")
    count, coefficients = len(means), values["shN"].shape[1]
    degree = {0: 0, 3: 1, 8: 2, 15: 3}[coefficients]
    fixed = np.rint(means * 2**FRACTION_BITS).astype("<i4")
    places = fixed.view(np.uint8).reshape(count, 3, 4)[..., :3]
    alphas = _byte(255.0 / (1.0 + np.exp(-values["opacities"].astype(np.float64))))
    colours = _byte(values["sh0"][:, 0] * (0.15 * 255.0) + 0.5 * 255.0)
    scales = _byte((values["scales"] + 10.0) * 16.0)
    quats = values["quats"] / np.maximum(np.linalg.norm(values["quats"], axis=1, keepdims=True), 1e-12)
    quats = np.where(quats[:, :1] < 0, -quats, quats)
    turns = _byte(quats[:, 1:] * 127.5 + 127.5)
    harmonics = _harmonics(values["shN"], degree)
    head = struct.pack("<IIIBBBB", SPZ_MAGIC, SPZ_VERSION, count, degree, FRACTION_BITS, 0, 0)
    body = b"".join(part.tobytes() for part in (places, alphas, colours, scales, turns, harmonics))
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(head + body)


def read_spz(path: Path) -> dict[str, Any]:
    """What a .spz of version 2 holds, as :func:`write_spz` takes it."""
    data = gzip.decompress(path.read_bytes())
    magic, version, count, degree, bits, _, _ = struct.unpack_from("<IIIBBBB", data)
    if magic != SPZ_MAGIC or version != SPZ_VERSION:
        raise ValueError(f"no .spz of version {SPZ_VERSION}")
    at = 16
    coefficients = (degree + 1) ** 2 - 1

    def take(columns: int) -> Any:
        nonlocal at
        part = np.frombuffer(data, np.uint8, count * columns, at).reshape(count, columns)
        at += count * columns
        return part.astype(np.float64)

    raw = take(9).reshape(count, 3, 3)
    fixed = raw[..., 0] + raw[..., 1] * 256 + raw[..., 2] * 65536
    fixed = np.where(fixed >= 2**23, fixed - 2**24, fixed)
    alpha = np.clip(take(1)[:, 0] / 255.0, 1e-6, 1 - 1e-6)
    colours, scales, turns = take(3), take(3), take(3)
    xyz = turns / 127.5 - 1.0
    w = np.sqrt(np.maximum(0.0, 1.0 - (xyz**2).sum(1, keepdims=True)))
    return {
        "means": fixed / 2**bits, "opacities": np.log(alpha / (1 - alpha)),
        "sh0": ((colours / 255.0 - 0.5) / 0.15)[:, None], "scales": scales / 16.0 - 10.0,
        "quats": np.concatenate([w, xyz], 1),
        "shN": (take(coefficients * 3).reshape(count, coefficients, 3) - 128.0) / 128.0,
    }  # fmt: skip


def _harmonics(values: Array, degree: int) -> Any:
    """Harmonics as bytes around 128, rounded to 5 bits in the first degree and to 4 in the others."""
    bits = np.array([_SH_BITS[d - 1] for d in range(1, degree + 1) for _ in range(2 * d + 1)], np.float64)
    step = (2.0 ** (8 - bits))[None, :, None]
    whole = np.rint(values.astype(np.float64) * 128.0 + 128.0)
    return np.clip(np.floor((whole + step / 2) / step) * step, 0, 255).astype(np.uint8)


def _byte(values: Any) -> Any:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
