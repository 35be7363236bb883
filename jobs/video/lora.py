"""Does a LoRA belong to a model? Told by the names and shapes in its header, before anything is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from farm.errors import InvalidInput
from jobs.video.facts import Facts
from jobs.video.safetensors_header import Header

_DOWN: Final = (
    ".lora_A.weight",
    ".lora_A.default.weight",
    ".lora_down.weight",
    "_lora.down.weight",
    ".lora.down.weight",
)
_UP: Final = (
    ".lora_B.weight",
    ".lora_B.default.weight",
    ".lora_up.weight",
    "_lora.up.weight",
    ".lora.up.weight",
)
_BLOCKS: Final = {
    "wan2.1": ("blocks",),
    "wan2.2": ("blocks",),
    "ltx": ("transformer_blocks",),
    "cogvideox": ("transformer_blocks",),
}
_FOREIGN: Final = (
    ("double_blocks", "Flux or HunyuanVideo"),
    ("single_transformer_blocks", "Flux or HunyuanVideo"),
    ("joint_blocks", "Stable Diffusion 3"),
    ("down_blocks", "Stable Diffusion (a U-Net)"),
    ("transformer_blocks", "LTX, CogVideoX or another transformer_blocks model"),
    ("blocks", "Wan"),
)
_INDEX: Final = re.compile(r"(?:^|[._])(?P<blocks>[a-z_]*blocks)[._](?P<index>\d+)[._]")


def check_lora(header: Header, facts: Facts, name: str) -> None:
    """Raise :class:`farm.errors.InvalidInput` where a LoRA cannot be one of this model's."""
    downs = {key: tensor for key, tensor in header.tensors.items() if key.endswith(_DOWN)}
    ups = {key for key in header.tensors if key.endswith(_UP)}
    if not downs or not ups:
        raise InvalidInput(f"{name} is no LoRA: it holds no pair of low-rank matrices")
    wanted = _BLOCKS.get(facts.family)
    if wanted is None:
        return
    title = facts.record().title
    places = [match for key in downs if (match := _INDEX.search(key)) is not None]
    kinds = {match["blocks"].removeprefix("lora_unet_") for match in places}
    if places and not any(kind.endswith(wanted) and _is(kind, wanted) for kind in kinds):
        raise InvalidInput(f"{name} is a LoRA for {_guess(kinds)}, not for {title}")
    if not places:
        raise InvalidInput(f"{name} changes no block of {title}; it is a LoRA for another kind of model")
    layers = facts.denoiser_layers
    deepest = max(int(match["index"]) for match in places)
    if layers is not None and deepest >= layers:
        raise InvalidInput(
            f"{name} is for a larger model: it changes block {deepest}, and this one has {layers} (0 to "
            f"{layers - 1})"
        )
    widths = {
        tensor.shape[1] for key, tensor in downs.items() if _reads_stream(key) and len(tensor.shape) == 2
    }
    if facts.denoiser_width is not None and widths and facts.denoiser_width not in widths:
        seen = ", ".join(map(str, sorted(widths)))
        raise InvalidInput(
            f"{name} is for a model of another width: it reads {seen} channels, and this one has "
            f"{facts.denoiser_width}"
        )


def _is(kind: str, wanted: Iterable[str]) -> bool:
    """``blocks`` is not ``double_blocks``; prefixes such as ``lora_transformer_`` do not count."""
    return any(kind in (word, f"diffusion_model_{word}", f"lora_transformer_{word}") for word in wanted)


def _guess(kinds: set[str]) -> str:
    for word, owner in _FOREIGN:
        if any(kind.endswith(word) for kind in kinds):
            return owner
    return "another kind of model"


def _reads_stream(key: str) -> bool:
    """Whether a matrix reads the denoiser's own channels: queries, not keys of a cross attention."""
    return bool(re.search(r"(?:self_attn|attn1)[._](?:to_)?[qkv](?:[._]|$)", key))
