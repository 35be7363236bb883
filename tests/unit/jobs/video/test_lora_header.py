"""Which model a LoRA is for, told from its header, in the spellings of the tools that write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from farm.errors import InvalidInput
from jobs.video.facts import Facts
from jobs.video.folder import inspect
from jobs.video.lora import check_lora
from jobs.video.safetensors_header import Header, Tensor, read_header
from tests.kinds import model_folders as made


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Facts]:
    root = tmp_path_factory.mktemp("models")
    folders = {
        "wan": made.wan21(root / "wan"),
        "wan22": made.wan22(root / "wan22"),
        "ltx": made.ltx(root / "ltx"),
        "cog": made.cogvideox(root / "cog"),
    }
    return {name: inspect(name, folder).facts for name, folder in folders.items()}


def lora(base: str, width: int, down: str = "lora_A", up: str = "lora_B") -> Header:
    pair = {f"{base}.{down}.weight": (8, width), f"{base}.{up}.weight": (width, 8)}
    return Header({name: Tensor("F16", shape) for name, shape in pair.items()}, {})


# Wan 1.3B: 12 heads of 128; A14B: 40 of 128; LTX: 32 of 64; CogVideoX 5B: 48 of 64
FITTING = [
    ("wan", lora("transformer.blocks.29.attn1.to_q", 1536)),
    ("wan", lora("diffusion_model.blocks.0.self_attn.q", 1536)),
    ("wan", lora("lora_unet_blocks_3_self_attn_q", 1536, "lora_down", "lora_up")),
    ("wan", lora("blocks.3.self_attn.q", 1536)),
    ("wan22", lora("transformer_2.blocks.39.attn1.to_q", 5120)),
    ("ltx", lora("transformer.transformer_blocks.27.attn1.to_q", 2048)),
    ("ltx", lora("diffusion_model.transformer_blocks.0.attn1.to_q", 2048)),
    ("cog", lora("transformer.transformer_blocks.41.attn1.to_q", 3072)),
]
FOREIGN = [
    ("wan", lora("transformer.transformer_blocks.0.attn1.to_q", 2048), "for LTX, CogVideoX"),
    ("wan", lora("transformer.single_transformer_blocks.0.attn.to_q", 3072), "for Flux"),
    ("wan", lora("diffusion_model.double_blocks.0.img_attn.proj", 3072), "for Flux or HunyuanVideo"),
    ("wan", lora("unet.down_blocks.0.attentions.0.to_q", 320), "for Stable Diffusion"),
    ("wan", lora("transformer.proj_out", 1536), "changes no block of Wan 2.1"),
    ("wan", lora("transformer.blocks.39.attn1.to_q", 5120), "block 39, and this one has 30"),
    ("wan22", lora("transformer.blocks.0.attn1.to_q", 1536), "reads 1536 channels, and this one has 5120"),
    ("ltx", lora("transformer.blocks.0.attn1.to_q", 1536), "for Wan, not for LTX-Video"),
    ("cog", lora("transformer.transformer_blocks.0.attn1.to_q", 2048), "reads 2048 channels"),
    ("cog", Header({"weight": Tensor("F16", (2, 2))}, {}), "is no LoRA"),
]


@pytest.mark.parametrize(("model", "header"), FITTING)
def test_a_lora_of_the_model_passes_however_it_is_spelled(
    facts: dict[str, Facts], model: str, header: Header
) -> None:
    check_lora(header, facts[model], "style.safetensors")


@pytest.mark.parametrize(("model", "header", "message"), FOREIGN)
def test_a_lora_of_another_model_is_named(
    facts: dict[str, Facts], model: str, header: Header, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_lora(header, facts[model], "style.safetensors")


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    path = made.safetensors(tmp_path / "a.safetensors", {"x": (2, 3)})
    with path.open("rb") as file:
        assert read_header(file, "a").tensors == {"x": Tensor("F16", (2, 3))}
    whole = path.read_bytes()
    for data, message in (
        (whole + b"\0", "bytes too many"),
        (whole[:-1], "was cut short"),
        (whole[:20], "only a part"),
        (b"", "it has 0 bytes"),
        (b"\xff" * 64, "no safetensors file"),
        (whole.replace(b"[2, 3]", b"[2, 9]"), "has not the bytes of its shape"),
        (whole.replace(b'"shape"', b'"SHAPE"'), "header cannot be read"),
    ):
        path.write_bytes(data)
        with path.open("rb") as file, pytest.raises(InvalidInput, match=message):
            read_header(file, "a.safetensors")
