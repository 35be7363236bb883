"""The child that turns frames in shared memory into PNG files; ``python -m jobs.video.png_child FD``.

Reads one JSON object a line on stdin: ``offset``, ``width``, ``height``, ``bits`` (8 or 16), ``path`` and
``text`` (keyword to text, embedded); answers each with a line: ``path`` and ``bytes``, or ``path`` and
``error``. Frames are RGB, row by row, in the machine's byte order. Ends when stdin ends. Imports no torch.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_LEVEL: Final = 1
"""Frames are many and disks are quick: level 6 takes five times as long for a tenth less."""


def encode(frame: npt.NDArray[Any], text: Mapping[str, str]) -> bytes:
    """A PNG of (height, width, 3) samples of 8 or 16 bits, sRGB, with ``text`` as UTF-8 text chunks."""
    height, width, _ = frame.shape
    deep = frame.dtype == np.uint16
    rows = (frame.astype(">u2") if deep else frame).view(np.uint8).reshape(height, -1)
    lines = np.empty((height, rows.shape[1] + 1), np.uint8)
    # filter 2: each row as its difference to the row above
    lines[:, 0] = 2
    lines[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=lines[1:, 1:])
    parts = [
        _SIGNATURE,
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16 if deep else 8, 2, 0, 0, 0)),
        _chunk(b"sRGB", b"\0"),
    ]
    for keyword, value in text.items():
        parts.append(_chunk(b"iTXt", keyword.encode("latin-1") + b"\0\0\0\0\0" + value.encode()))
    parts += [_chunk(b"IDAT", zlib.compress(lines.data, _LEVEL)), _chunk(b"IEND", b"")]
    return b"".join(parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def main() -> int:
    """Serve until stdin ends."""
    fd = int(sys.argv[1])
    with mmap.mmap(fd, os.fstat(fd).st_size, access=mmap.ACCESS_READ) as memory:
        for line in sys.stdin:
            request = json.loads(line)
            answer: dict[str, Any] = {"path": request["path"]}
            try:
                answer["bytes"] = _write(memory, request)
            except OSError as error:
                answer["error"] = f"{error.strerror}"
            print(json.dumps(answer), flush=True)
    return 0


def _write(memory: mmap.mmap, request: Mapping[str, Any]) -> int:
    shape = (request["height"], request["width"], 3)
    dtype = np.dtype(np.uint16 if request["bits"] == 16 else np.uint8)
    frame = np.frombuffer(memory, dtype, shape[0] * shape[1] * 3, request["offset"]).reshape(shape)
    data = encode(frame, request["text"])
    del frame  # the mapping cannot be closed while an array looks into it
    with open(request["path"], "xb") as file:  # noqa: PTH123  a plain name, quickly
        file.write(data)
    return len(data)


if __name__ == "__main__":
    sys.exit(main())
