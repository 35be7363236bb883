"""Wan's transformer at real sizes, random weights made on the device: the same weights from the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

FLOAT32 = ("time_embedder", "scale_shift_table", "norm1", "norm2", "norm3")
"""What Wan keeps in float32 whatever the number type."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A denoiser's size, and the film that it is measured with."""

    heads: int
    layers: int
    ffn: int
    head: int = 128
    text: int = 4096
    freq: int = 256
    size: tuple[int, int] = (832, 480)
    frames: int = 81


SHAPES = {
    "14b": Shape(heads=40, layers=40, ffn=13824),
    "1.3b": Shape(heads=12, layers=30, ffn=8960),
    "tiny": Shape(heads=2, layers=2, ffn=32, head=12, text=32, freq=32, size=(32, 32), frames=5),
}


def transformer(shape: Shape, device: Any, dtype: Any) -> Any:
    """A Wan transformer of that size with random weights on ``device``, number types as when it is loaded."""
    from diffusers import WanTransformer3DModel

    longest = 1024
    with torch.device("meta"):
        model = WanTransformer3DModel(
            num_attention_heads=shape.heads,
            attention_head_dim=shape.head,
            in_channels=16,
            out_channels=16,
            text_dim=shape.text,
            freq_dim=shape.freq,
            ffn_dim=shape.ffn,
            num_layers=shape.layers,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=longest,
        )
    rope = type(model.rope)(shape.head, (1, 2, 2), longest)
    model = model.to(dtype).to_empty(device=device).eval().requires_grad_(False)
    model.rope = rope.to(device)
    generator = torch.Generator(device).manual_seed(0)
    for name, module in model.named_modules():
        if any(part in name.split(".") for part in FLOAT32):
            module.to(torch.float32)
    for name, weight in model.named_parameters():
        if "scale_shift_table" in name:
            weight.data = weight.data.float()
        if "norm" in name and name.endswith("weight"):
            weight.fill_(1.0)
        else:
            weight.normal_(0.0, 0.02, generator=generator)
    return model
