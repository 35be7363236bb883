"""How alike two pictures are: PSNR, SSIM, and LPIPS where its weights are installed."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
_C1: Final = 0.01**2
_C2: Final = 0.03**2


def psnr(a: Array, b: Array, keep: npt.NDArray[np.bool_] | None = None) -> float:
    """Peak signal-to-noise ratio in dB of pictures 0 to 1, (height, width, 3); ``keep``: pixels that count.

    Equal pictures give 100.
    """
    squares = ((a.astype(np.float64) - b.astype(np.float64)) ** 2).mean(-1)
    mean = float(squares.mean() if keep is None else squares[keep].mean())
    return 100.0 if mean <= 1e-10 else float(-10.0 * np.log10(mean))


def ssim(a: Array, b: Array) -> float:
    """Structural similarity (Wang 2004) of pictures 0 to 1: a Gaussian window of 11 pixels, sigma 1.5.

    The mean over colours and over the places where the whole window fits; the window shrinks to the picture
    where that is smaller.
    """
    size = min(11, a.shape[0], a.shape[1])
    line = np.exp(-0.5 * ((np.arange(size) - (size - 1) / 2) / 1.5) ** 2)
    line /= line.sum()

    def blur(x: Array) -> Array:
        rows = np.lib.stride_tricks.sliding_window_view(x, size, axis=0) @ line
        return np.asarray(np.lib.stride_tricks.sliding_window_view(rows, size, axis=1) @ line)

    x, y = a.astype(np.float64), b.astype(np.float64)
    mx, my = blur(x), blur(y)
    vx, vy, vxy = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    value = ((2 * mx * my + _C1) * (2 * vxy + _C2)) / ((mx * mx + my * my + _C1) * (vx + vy + _C2))
    return float(value.mean())


class Lpips:
    """Learned perceptual distance (Zhang 2018, AlexNet). ``value`` is ``None`` and ``why`` says so without
    it.

    Nothing is ever downloaded: the weights must lie in torch's folder already.
    """

    def __init__(self) -> None:
        self._model: Any = None
        self.why = ""
        if importlib.util.find_spec("lpips") is None:
            self.why = "unavailable: the package lpips is not installed"
            return
        try:
            import torch

            weights = torch.hub.get_dir()
            from pathlib import Path

            if not list(Path(weights, "checkpoints").glob("alexnet-*.pth")):
                self.why = f"unavailable: AlexNet's weights are not in {weights}/checkpoints"
                return
            lpips: Any = importlib.import_module("lpips")
            self._model = lpips.LPIPS(net="alex", verbose=False).eval()
        except (ImportError, OSError, RuntimeError) as error:
            self.why = f"unavailable: {error}"

    def value(self, a: Array, b: Array) -> float | None:
        """Distance of pictures 0 to 1; ``None`` where unavailable."""
        if self._model is None:
            return None
        import torch

        def tensor(x: Array) -> Any:
            return torch.from_numpy(np.ascontiguousarray(x)).float().permute(2, 0, 1)[None] * 2 - 1

        with torch.no_grad():
            return float(self._model(tensor(a), tensor(b)))
