"""The header of a .safetensors file, read without loading a tensor: names, types, shapes, and completeness.

Format: eight bytes with the header's length N (little endian), N bytes of JSON, then the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

from farm.errors import InvalidInput

MAX_HEADER: Final = 100_000_000
"""Bytes; the limit of the format's own library."""
_WIDTHS: Final[Mapping[str, float]] = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1, "F4": 0.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """Tensors by name, and the file's free metadata."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def read_header(file: BinaryIO, name: str, size: int | None = None) -> Header:
    """The header of an open file. ``size`` is the whole file's in bytes (asked of the file if left out).

    Raises :class:`farm.errors.InvalidInput` for a file that is no safetensors, or that was cut short.
    """
    if size is None:
        size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    if len(start) < 8:
        raise InvalidInput(f"{name} is no safetensors file: it has {size} bytes")
    (length,) = struct.unpack("<Q", start)
    if length > MAX_HEADER or 8 + length > size:
        raise InvalidInput(f"{name} is no safetensors file, or only a part of one")
    try:
        head = json.loads(file.read(length))
        metadata = {str(k): str(v) for k, v in head.pop("__metadata__", {}).items()}
        tensors = {
            key: Tensor(str(item["dtype"]), tuple(map(int, item["shape"]))) for key, item in head.items()
        }
        ends = [
            (key, int(item["data_offsets"][0]), int(item["data_offsets"][1])) for key, item in head.items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        raise InvalidInput(f"{name} is no safetensors file: its header cannot be read") from None
    for key, begin, end in ends:
        width = _WIDTHS.get(tensors[key].dtype)
        if width is not None and end - begin != math.ceil(tensors[key].count * width):
            raise InvalidInput(f"{name} is damaged: tensor {key[:80]} has not the bytes of its shape")
    needed = 8 + length + max((end for _, _, end in ends), default=0)
    if needed != size:
        state = "was cut short" if needed > size else "has bytes too many"
        raise InvalidInput(f"{name} {state}: it has {size:,} bytes, and its header says {needed:,}")
    return Header(tensors, metadata)
