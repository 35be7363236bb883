"""Linear layers in fewer bits: what is held so, how far its output is from the plain one, what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farm.errors import InvalidSpec, PermanentFailure
from jobs.video import payload, pipelines
from tests.unit.jobs.video.making import spec, step_of


def generation(**fields: Any) -> payload.Generation:
    asked = payload.read_step(step_of(spec("wan")).payload)
    return asked.model_copy(update=fields)


def transformer(head: int) -> Any:
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=head,
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=1,
        rope_max_seq_len=32,
    )
    return model.eval().requires_grad_(False)


def test_int8_layers_compute_nearly_what_the_plain_ones_do_and_hold_the_blocks_alone() -> None:
    model = transformer(16)
    given = {
        "hidden_states": torch.randn(1, 16, 2, 8, 8),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(1, 6, 32),
        "return_dict": False,
    }
    plain = model(**given)[0]
    compiler = torch._inductor.config.save_config_portable()

    pipelines.quantise(SimpleNamespace(transformer=model), generation(quantisation="int8"))

    block = model.blocks[0]
    held = [*(getattr(block.attn1, name) for name in ("to_q", "to_k", "to_v")), block.attn1.to_out[0]]
    assert all(layer.weight.qdata.dtype == torch.int8 for layer in (*held, block.ffn.net[2]))
    assert not hasattr(model.proj_out.weight, "qdata")
    error = float((model(**given)[0] - plain).norm() / plain.norm())
    # 8 bits a row: steps of about 1/127 of the largest weight, so about a hundredth in the sum
    assert 0 < error < 0.03
    assert torch._inductor.config.save_config_portable() == compiler, "other jobs' kernels would change"


def test_a_model_without_a_layer_of_a_fitting_size_is_refused_rather_than_left_as_it_is() -> None:
    # 2 heads of 12: sides of 24, which no such product takes
    model = transformer(12)
    model.blocks[0].ffn = torch.nn.Identity()
    with pytest.raises(PermanentFailure, match="/quantisation: no layer of transformer has sides"):
        pipelines.quantise(SimpleNamespace(transformer=model), generation(quantisation="int8"))


def test_fp8_needs_a_gpu_that_multiplies_it_and_bfloat16() -> None:
    asked = generation(quantisation="fp8", dtype="bfloat16")
    with pytest.raises(PermanentFailure, match="/quantisation: fp8 needs a GPU"):
        pipelines.quantise(SimpleNamespace(transformer=None), asked)
    with pytest.raises(InvalidSpec, match="/spec/dtype: fp8 layers take bfloat16 in and out, not float16"):
        step_of(spec("wan", quantisation="fp8", device="cuda", dtype="float16"))
