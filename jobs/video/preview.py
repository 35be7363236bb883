"""Live previews: latents to a thumbnail, at most two a second, beside the denoise loop.

Where the model's folder brings no tiny decoder (:mod:`jobs.video.tiny_decoder`) it is one matrix, fitted to
the model's own VAE: smooth colour pictures are encoded, and their mean colours are regressed on the latents
that they became. So each VAE gets its own, and none has to be written down.
"""

from __future__ import annotations

import contextlib
import importlib
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from farm.errors import InvalidInput
from jobs.video.folder import TINY_DECODER
from jobs.video.payload import Generation
from jobs.video.png_child import encode
from jobs.video.tiny_decoder import TinyDecoder

torch: Any = importlib.import_module("torch")

EVERY_S: Final = 0.5
_SHARE: Final = 0.05
"""Share of the time that a decoder may work beside the loop: pictures come less often where it is slow."""
_PICTURES: Final = 8
_CELLS: Final = 8
_SIDE: Final = 320
"""Thumbnails are enlarged to about this many pixels on their longer side."""


class Projection:
    """Normalised latents (channels, height, width) to RGB in 0 to 1: ``latents . matrix + offset``."""

    beside_loop = False
    """So little work that it is queued in the loop, which knows when the latents are there."""

    def __init__(self, matrix: Any, offset: Any) -> None:
        self.matrix = matrix
        self.offset = offset
        self.channels = int(matrix.shape[0])

    def rgb(self, latents: Any) -> Any:
        """(channels, height, width) to (height, width, 3) of 8 bits, on the latents' device."""
        if self.matrix.device != latents.device:
            self.matrix = self.matrix.to(latents.device)
            self.offset = self.offset.to(latents.device)
        colours = latents.permute(1, 2, 0).float() @ self.matrix + self.offset
        return colours.mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def painter(vae: Any, generation: Generation) -> Projection | TinyDecoder | None:
    """What turns a model's latents into pictures: its folder's tiny decoder, else the VAE's projection.

    Raises :class:`farm.errors.InvalidInput` for a decoder of other latents than these.
    """
    if all(file.path != TINY_DECODER for file in generation.model.files):
        return fit(vae)
    made = TinyDecoder.read(Path(generation.model.folder) / TINY_DECODER, next(vae.parameters()).device)
    channels = getattr(vae.config, "z_dim", None) or getattr(vae.config, "latent_channels", None)
    if channels not in (None, made.channels):
        raise InvalidInput(
            f"{TINY_DECODER} decodes {made.channels} channels; this VAE's latents have {channels}"
        )
    return made


def fit(vae: Any) -> Projection | None:
    """The projection of a VAE; ``None`` for one that cannot encode a single picture."""
    spatial = getattr(vae.config, "scale_factor_spatial", None)
    side = int(spatial or getattr(vae, "spatial_compression_ratio", None) or 8) * _CELLS
    weight = next(vae.parameters())
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(_PICTURES, 3, 3, 3, generator=generator)
    pictures = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic").clamp_(0, 1)
    try:
        with torch.inference_mode():
            given = (pictures * 2 - 1)[:, :, None].to(weight.device, weight.dtype)
            found = normalised(vae.encode(given).latent_dist.mode(), vae)[:, :, 0].float()
            means = torch.nn.functional.adaptive_avg_pool2d(pictures, found.shape[2:])
            latents = found.movedim(1, -1).flatten(0, 2).cpu()
            colours = means.movedim(1, -1).flatten(0, 2)
            design = torch.cat([latents, torch.ones(len(latents), 1)], dim=1).double()
    except (RuntimeError, AttributeError, ValueError, TypeError):
        return None
    # a little ridge: a VAE may have channels that never change
    gram = design.T @ design + 1e-4 * len(latents) * torch.eye(design.shape[1], dtype=torch.float64)
    solved = torch.linalg.solve(gram, design.T @ colours.double()).float()
    return Projection(solved[:-1], solved[-1])


def normalised(latents: Any, vae: Any) -> Any:
    """A VAE's latents (1, channels, ...) as the denoiser sees them."""
    config = vae.config
    # LTX keeps them as buffers, the others in their configuration
    kept = dict(vae.named_buffers(recurse=False))
    mean, std = (
        kept.get(name) if getattr(config, name, None) is None else getattr(config, name)
        for name in ("latents_mean", "latents_std")
    )
    if mean is not None and std is not None:
        shape = (1, -1) + (1,) * (latents.ndim - 2)
        mean, std = (torch.as_tensor(values).to(latents).view(shape) for values in (mean, std))
        latents = (latents - mean) / std
    return latents * (getattr(config, "scaling_factor", None) or 1.0)


def middle_frame(latents: Any, channels: int, generation: Generation) -> Any:
    """(channels, height, width) of the middle latent frame; ``None`` for a layout that is not known."""
    if latents.ndim == 5 and latents.shape[1] == channels:
        return latents[0, :, latents.shape[2] // 2]
    if latents.ndim == 5 and latents.shape[2] == channels:
        return latents[0, latents.shape[1] // 2]
    facts = generation.model.facts
    if latents.ndim == 3 and latents.shape[2] == channels:
        # LTX: one token a latent pixel, row by row and frame by frame
        height, width = generation.height // facts.size_divisor, generation.width // facts.size_divisor
        if height and width and latents.shape[1] % (height * width) == 0:
            frames = latents[0].view(-1, height, width, channels)
            return frames[frames.shape[0] // 2].permute(2, 0, 1)
    return None


class Previews:
    """Takes latents from the loop and sends thumbnails from a thread; whoever comes too soon is dropped."""

    def __init__(
        self, painter: Projection | TinyDecoder, generation: Generation, send: Callable[[bytes], None]
    ) -> None:
        self._painter = painter
        self._generation = generation
        self._send = send
        self._next = time.monotonic()
        self._queue: queue.Queue[tuple[Any, Any] | None] = queue.Queue(1)
        self._thread = threading.Thread(target=self._work, name="preview", daemon=True)
        self._thread.start()
        self.sent = 0

    def offer(self, latents: Any) -> None:
        """Called at every step; does next to nothing more often than twice a second."""
        now = time.monotonic()
        if now < self._next or not self._queue.empty():
            return
        frame = middle_frame(latents, self._painter.channels, self._generation)
        if frame is None:
            self._next = float("inf")
            return
        self._next = now + EVERY_S
        if self._painter.beside_loop:
            # a copy: the next step may write over the latents
            given = frame.clone()
        else:
            given = _to_host(self._painter.rgb(frame))
        ready = None
        if frame.is_cuda:
            ready = torch.cuda.Event(blocking=True)
            ready.record()
        self._queue.put((given, ready))

    def close(self) -> None:
        """End the thread; what it holds is sent first."""
        self._queue.put(None)
        self._thread.join(5.0)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            given, ready = item
            if ready is not None:
                ready.synchronize()
            try:
                picture = np.asarray(self._decoded(given) if self._painter.beside_loop else given)
                times = max(1, _SIDE // max(picture.shape[:2]))
                large = np.ascontiguousarray(picture.repeat(times, 0).repeat(times, 1))
                self._send(encode(large, {}))
                self.sent += 1
            except Exception:  # noqa: BLE001, S110  a preview is never worth a film
                pass

    def _decoded(self, latents: Any) -> Any:
        """The decoder's picture in host memory, made behind whatever the loop has queued."""
        began = time.monotonic()
        stream = torch.cuda.Stream(latents.device, priority=0) if latents.is_cuda else None
        with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
            picture = _to_host(self._painter.rgb(latents))
            if stream is not None:
                done = torch.cuda.Event(blocking=True)
                done.record(stream)
                done.synchronize()
        self._next = max(self._next, began + (time.monotonic() - began) / _SHARE)
        return picture


def _to_host(colours: Any) -> Any:
    """On its way to page-locked memory, where it comes from a GPU."""
    if not colours.is_cuda:
        return colours
    copy = torch.empty(colours.shape, dtype=colours.dtype, pin_memory=True)
    return copy.copy_(colours, non_blocking=True)
