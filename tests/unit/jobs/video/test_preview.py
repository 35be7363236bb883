"""Previews: colours come back, the loop never waits."""

from __future__ import annotations

import io
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from jobs.video import payload, preview
from tests.unit.jobs.video.making import spec, step_of


class LinearVae(torch.nn.Module):
    """Its latents are the mean colours of 8x8 blocks, mixed by a known matrix, then made small."""

    config = SimpleNamespace(scale_factor_spatial=8, latents_mean=None, latents_std=None, scaling_factor=0.5)
    mix = torch.tensor([[2.0, 0.5, 0.0], [-1.0, 1.0, 0.3], [0.2, 0.0, 3.0], [1.0, 1.0, 1.0]])

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def encode(self, pictures: torch.Tensor) -> Any:
        means = torch.nn.functional.avg_pool3d(pictures, (1, 8, 8))
        mixed = torch.einsum("lc,ncfhw->nlfhw", self.mix, means)
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: mixed))


def test_the_projection_gives_the_colours_back() -> None:
    projection = preview.fit(LinearVae())
    assert projection is not None
    colour = torch.tensor([0.8, 0.2, 0.4])
    latents = (LinearVae.mix @ (colour * 2 - 1)) * 0.5
    shown = projection.rgb(latents[:, None, None].expand(4, 6, 9))
    assert shown.shape == (6, 9, 3)
    assert np.abs(shown[0, 0].numpy().astype(int) - [204, 51, 102]).max() <= 2


def test_a_slow_viewer_holds_nobody_up_and_gets_two_a_second() -> None:
    release, sent = threading.Event(), []

    def send(png: bytes) -> None:
        sent.append(png)
        release.wait(10)

    generation = payload.read_step(step_of(spec("wan")).payload)
    projection = preview.Projection(torch.eye(16)[:, :3].contiguous(), torch.zeros(3))
    previews = preview.Previews(projection, generation, send)
    latents = torch.zeros(1, 16, 2, 4, 6)
    latents[:, 0] = 1.0
    for _ in range(50):
        previews.offer(latents)
    # fifty steps went by while the first picture is still being sent
    until = time.monotonic() + 10
    while not sent and time.monotonic() < until:
        time.sleep(0.01)
    assert len(sent) == 1
    release.set()
    previews.close()
    picture = Image.open(io.BytesIO(sent[0]))
    assert picture.size == (318, 212)
    assert picture.getpixel((0, 0)) == (255, 0, 0)


def test_the_middle_of_each_layout_is_found() -> None:
    wan = payload.read_step(step_of(spec("wan")).payload)
    frames = torch.arange(3.0).view(1, 1, 3, 1, 1).expand(1, 16, 3, 4, 4)
    assert float(preview.middle_frame(frames, 16, wan)[0, 0, 0]) == 1.0
    cog = torch.arange(3.0).view(1, 3, 1, 1, 1).expand(1, 3, 16, 4, 4)
    assert float(preview.middle_frame(cog, 16, wan)[0, 0, 0]) == 1.0
    ltx = payload.read_step(step_of(spec("ltx", size="64x96")).payload)
    packed = torch.arange(3.0 * 2 * 3).view(1, 18, 1).expand(1, 18, 8)
    assert preview.middle_frame(packed, 8, ltx)[0].tolist() == [[6.0, 7.0], [8.0, 9.0], [10.0, 11.0]]
    assert preview.middle_frame(torch.zeros(1, 7, 8), 8, ltx) is None
