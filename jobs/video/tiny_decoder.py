"""A tiny decoder for previews: one latent frame to a picture, where a model's folder brings its weights.

The network is the decoder of TAEHV (github.com/madebyollin/taehv), a distilled autoencoder that takes the
denoiser's own normalised latents: three stages of blocks that remember the frame before, each doubling the
sides, two of them doubling the frames. Its weights, as safetensors, lie in the model's folder under
:data:`jobs.video.folder.TINY_DECODER` and are part of the version like any other file. Widths and strides are
read from the shapes.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from farm.errors import InvalidInput

torch: Any = importlib.import_module("torch")

_STAGES: Final = (3, 9, 15)
"""Places of the first of three blocks of each stage; behind them: enlarge, grow in time, narrow."""
_LAST: Final = 22


class TinyDecoder:
    """Latents (channels, height, width) to a picture."""

    beside_loop = True
    """Too much work for the loop: the thread of the previews does it."""

    def __init__(self, network: Any, channels: int, patch: int) -> None:
        self._network = network
        self._patch = patch
        self.channels = channels

    @classmethod
    def read(cls, path: Path, device: Any) -> TinyDecoder:
        """From a file. Raises :class:`farm.errors.InvalidInput` for weights of another network."""
        weights = importlib.import_module("safetensors.torch").load_file(str(path))
        own = {
            name.removeprefix("decoder."): weight
            for name, weight in weights.items()
            if re.match(r"decoder\.\d+\.", name)
        }
        try:
            network = _network(own)
            network.load_state_dict(own)
        except (KeyError, RuntimeError) as error:
            why = " ".join(str(error).split())[:300]
            raise InvalidInput(f"{path.name} is no TAEHV decoder: {why}") from None
        channels, out = own["1.weight"].shape[1], own[f"{_LAST}.weight"].shape[0]
        patch = round((out / 3) ** 0.5)
        if out != 3 * patch * patch:
            raise InvalidInput(f"{path.name} is no TAEHV decoder: its last layer gives {out} channels")
        kind = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
        return cls(network.eval().requires_grad_(False).to(device, kind), channels, patch)

    def rgb(self, latents: Any) -> Any:
        """(channels, height, width) to (height, width, 3) of 8 bits, on the latents' device."""
        weight = next(self._network.parameters())
        with torch.inference_mode():
            # what a first frame becomes is the last of its frames: those before it have no past
            frame = self._network(latents[None].to(weight))[-1:]
            if self._patch > 1:
                frame = torch.nn.functional.pixel_shuffle(frame, self._patch)
            return frame[0].permute(1, 2, 0).float().mul(255).round_().clamp_(0, 255).to(torch.uint8)


class _Clamp(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    def forward(self, x: Any) -> Any:
        return torch.tanh(x / 3) * 3


class _Block(torch.nn.Module):  # type: ignore[misc]
    """Three convolutions over a frame and the one before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        nn = torch.nn
        self.conv = nn.Sequential(
            nn.Conv2d(width * 2, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.skip = nn.Identity()

    def forward(self, x: Any) -> Any:
        before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
        return torch.relu(self.conv(torch.cat([x, before], dim=1)) + self.skip(x))


class _Grow(torch.nn.Module):  # type: ignore[misc]
    """One frame to ``times`` frames."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(width, width * times, 1, bias=False)

    def forward(self, x: Any) -> Any:
        _, width, height, breadth = x.shape
        return self.conv(x).reshape(-1, width, height, breadth)


def _network(weights: Mapping[str, Any]) -> Any:
    """The network of these shapes. Raises :class:`KeyError` for a weight that is not there."""
    nn = torch.nn
    width, channels = weights["1.weight"].shape[:2]
    layers: list[Any] = [_Clamp(), nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    for first in _STAGES:
        grown = weights[f"{first + 4}.conv.weight"].shape[0] // width
        narrow = weights[f"{first + 5}.weight"].shape[0]
        layers += [_Block(width) for _ in range(3)]
        layers += [nn.Upsample(scale_factor=2), _Grow(width, grown)]
        layers.append(nn.Conv2d(width, narrow, 3, padding=1, bias=False))
        width = narrow
    out = weights[f"{_LAST}.weight"].shape[0]
    return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(width, out, 3, padding=1))
