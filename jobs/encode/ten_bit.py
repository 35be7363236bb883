"""RGB to 10-bit Y'CbCr by the book; swscale's own conversion lifts white to 943 where 940 is meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def yuv420p10(picture: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """(height, width, 3) R'G'B' of 16 bits, even sides, to planes of limited-range BT.709 Y'CbCr 4:2:0.

    Returns (height * 3 / 2, width) as PyAV wants it: Y, then Cb and Cr of half size, row by row. Equations
    of ITU-R BT.709-6 section 3; chroma is sited left (MPEG-2), so filtered 1-2-1 across and averaged down.
    """
    rgb = picture.astype(np.float32) / np.float32(65535.0)
    luma = rgb @ np.array([0.2126, 0.7152, 0.0722], np.float32)
    height, width = luma.shape
    planes: list[npt.NDArray[Any]] = [np.rint(64.0 + 876.0 * luma).reshape(-1)]
    for channel, divisor in ((2, 1.8556), (0, 1.5748)):
        chroma = (rgb[..., channel] - luma) / np.float32(divisor)
        wide = np.pad(chroma, ((0, 0), (1, 1)), mode="edge")
        across = (wide[:, 0:width:2] + 2.0 * wide[:, 1 : width + 1 : 2] + wide[:, 2 : width + 2 : 2]) / 4.0
        half = (across[0::2] + across[1::2]) / 2.0
        planes.append(np.rint(512.0 + 896.0 * half).reshape(-1))
    flat: npt.NDArray[np.uint16] = np.clip(np.concatenate(planes), 4, 1019).astype(np.uint16)
    return flat.reshape((height * 3 // 2, width))
