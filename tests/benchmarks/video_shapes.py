"""Wan's transformers by size, with random weights made on the GPU itself: seconds, and no disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

DEVICE = "cuda"
FLOAT32 = ("time_embedder", "norm1", "norm2", "norm3")
"""Modules that Wan keeps in float32 whatever the number type; its ``scale_shift_table`` too."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer and the film that it is given."""

    name: str
    heads: int
    ffn: int
    layers: int
    width: int = 832
    height: int = 480
    frames: int = 81

    @property
    def latents(self) -> tuple[int, ...]:
        """Shape of the film's latents: four-fold in time, eight-fold in space, 16 channels."""
        return (1, 16, (self.frames - 1) // 4 + 1, self.height // 8, self.width // 8)

    @property
    def tokens(self) -> int:
        """Length of the self-attention: patches of 1x2x2 latents."""
        _, _, frames, height, width = self.latents
        return frames * (height // 2) * (width // 2)

    @property
    def tera_flop(self) -> tuple[float, float]:
        """Arithmetic of one pass in TFLOP: linear layers of the blocks, self-attention."""
        side = self.heads * 128
        linear = 2 * self.tokens * (6 * side * side + 2 * side * self.ffn) * self.layers
        return linear / 1e12, 4 * self.tokens**2 * side * self.layers / 1e12


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("1.3b", heads=12, ffn=8960, layers=30),
        Shape("14b", heads=40, ffn=13824, layers=40),
        Shape("smoke", heads=2, ffn=512, layers=2, width=128, height=128, frames=9),
    )
}


def transformer(shape: Shape) -> Any:
    """Its transformer, number types as when it is loaded from a folder."""
    from diffusers import WanTransformer3DModel

    with torch.device("meta"):
        model = WanTransformer3DModel(
            num_attention_heads=shape.heads,
            ffn_dim=shape.ffn,
            num_layers=shape.layers,
            attention_head_dim=128,
            in_channels=16,
            out_channels=16,
            text_dim=4096,
            freq_dim=256,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=1024,
        )
    rope = type(model.rope)(128, (1, 2, 2), 1024)
    # one weight at a time, so that 14B never stand in memory twice
    for name, module in model.named_modules():
        kept = any(part in name.split(".") for part in FLOAT32)
        for own, weight in list(module.named_parameters(recurse=False)):
            dtype = torch.float32 if kept or own == "scale_shift_table" else torch.bfloat16
            made = torch.empty(weight.shape, device=DEVICE, dtype=dtype)
            setattr(module, own, torch.nn.Parameter(made, requires_grad=False))
    model.rope = rope.to(DEVICE)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not left, f"never made: {left[:5]}"
    generator = torch.Generator(DEVICE).manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                weight.fill_(1.0)
            else:
                weight.normal_(0.0, 0.02, generator=generator)
    return model.eval()


def inputs(shape: Shape) -> dict[str, Any]:
    """What one pass is given: latents, a time and 512 tokens of text."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    made: dict[str, Any] = {"device": DEVICE, "dtype": torch.bfloat16, "generator": generator}
    return {
        "hidden_states": torch.randn(shape.latents, **made),
        "timestep": torch.tensor([500], device=DEVICE),
        "encoder_hidden_states": torch.randn(1, 512, 4096, **made),
        "return_dict": False,
    }
