"""A tiny decoder that a model's folder brings: its pictures, where it is used, and what is refused."""

from __future__ import annotations

import io
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from farm.errors import InvalidInput
from jobs.video import folder, payload, pipelines, preview
from jobs.video.tiny_decoder import TinyDecoder
from tests.kinds import tiny_pipelines
from tests.unit.jobs.video.making import spec, step_of


def weights(channels: int = 16, width: int = 16, times: tuple[int, ...] = (1, 2, 2)) -> dict[str, Any]:
    """A decoder that hands its first three latent channels through to red, green and blue.

    Its blocks add nothing (all zeros beside their skip). Of the frames that each stage grows, only the last
    holds the picture: a decoder that took another would show black.
    """
    through = torch.zeros(width, channels, 3, 3)
    for channel in range(3):
        through[channel, channel, 1, 1] = 1.0
    made = {"decoder.1.weight": through, "decoder.1.bias": torch.zeros(width)}
    same = torch.zeros(width, width, 3, 3)
    same[range(width), range(width), 1, 1] = 1.0
    for first, grown in zip((3, 9, 15), times, strict=True):
        for block in range(first, first + 3):
            for place, taken in ((0, 2 * width), (2, width), (4, width)):
                made[f"decoder.{block}.conv.{place}.weight"] = torch.zeros(width, taken, 3, 3)
                made[f"decoder.{block}.conv.{place}.bias"] = torch.zeros(width)
        grow = torch.zeros(grown, width, width, 1, 1)
        grow[-1, range(width), range(width)] = 1.0
        made[f"decoder.{first + 4}.conv.weight"] = grow.reshape(grown * width, width, 1, 1)
        made[f"decoder.{first + 5}.weight"] = same.clone()
    made["decoder.22.weight"] = same[:3].clone()
    made["decoder.22.bias"] = torch.zeros(3)
    return made


def test_a_latent_frame_becomes_the_last_of_its_frames_at_eight_times_its_sides(tmp_path: Path) -> None:
    save_file(weights() | {"encoder.0.weight": torch.zeros(1)}, tmp_path / "taehv.safetensors")
    decoder = TinyDecoder.read(tmp_path / "taehv.safetensors", "cpu")
    latents = torch.zeros(16, 2, 3)
    latents[0, 0, 0], latents[1, 1, 2] = 0.5, 9.0

    picture = decoder.rgb(latents)

    assert decoder.channels == 16
    assert picture.shape == (16, 24, 3)
    expected = np.zeros((16, 24, 3), np.uint8)
    # latents are bent to within 3 of nought, and light ends at 1
    expected[:8, :8, 0] = round(255 * 3 * math.tanh(0.5 / 3))
    expected[8:, 16:, 1] = 255
    assert np.array_equal(picture.numpy(), expected)


def test_the_folder_of_a_model_brings_it_and_previews_are_its_pictures(tmp_path: Path) -> None:
    place = tiny_pipelines.copy("wan", tmp_path / "wan")
    save_file(weights(), place / folder.TINY_DECODER)
    version = folder.inspect("wan", place)
    assert folder.TINY_DECODER in [file.path for file in version.files]
    generation = payload.read_step(step_of(spec("wan"), {"wan": version}).payload)
    vae = pipelines.load(generation).pipeline.vae

    sent: list[bytes] = []
    previews = preview.Previews(preview.painter(vae, generation), generation, sent.append)
    latents = torch.zeros(1, 16, 2, 4, 4)
    latents[:, 2] = 9.0
    previews.offer(latents)
    # the thread has a copy: the loop goes on in the same memory
    latents.zero_()
    until = time.monotonic() + 30
    while not sent and time.monotonic() < until:
        time.sleep(0.01)
    previews.close()

    picture = np.asarray(Image.open(io.BytesIO(sent[0])))
    assert picture.shape == (320, 320, 3)
    assert np.array_equal(np.unique(picture.reshape(-1, 3), axis=0), [[0, 0, 255]])


def test_weights_of_another_network_are_refused_where_they_are_added(tmp_path: Path) -> None:
    place = tiny_pipelines.copy("wan", tmp_path / "wan")
    save_file({"decoder.conv_in.weight": torch.zeros(1)}, place / folder.TINY_DECODER)
    with pytest.raises(InvalidInput, match=r"no TAEHV decoder: it has no decoder\.1\.weight"):
        folder.inspect("wan", place)
    wrong = weights()
    del wrong["decoder.10.conv.2.bias"]
    save_file(wrong, place / folder.TINY_DECODER)
    with pytest.raises(InvalidInput, match=r"no TAEHV decoder: .*10\.conv\.2\.bias"):
        TinyDecoder.read(place / folder.TINY_DECODER, "cpu")


def test_a_decoder_of_other_latents_is_refused(tmp_path: Path) -> None:
    place = tiny_pipelines.copy("wan", tmp_path / "wan")
    save_file(weights(channels=48), place / folder.TINY_DECODER)
    generation = payload.read_step(step_of(spec("wan"), {"wan": folder.inspect("wan", place)}).payload)
    with pytest.raises(InvalidInput, match="decodes 48 channels; this VAE's latents have 16"):
        preview.painter(pipelines.load(generation).pipeline.vae, generation)
