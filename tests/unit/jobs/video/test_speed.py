"""Compiled blocks: what kernels are kept under, and that they do not hang on what was compiled before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jobs.video import payload, speed
from tests.unit.jobs.video.making import spec, step_of


def generation(name: str = "wan", **fields: Any) -> payload.Generation:
    return payload.read_step(step_of(spec(name, compile="blocks", **fields)).payload)


def test_each_shape_gets_a_graph_of_its_own_whatever_came_before() -> None:
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        num_attention_heads=1,
        attention_head_dim=12,
        text_dim=16,
        freq_dim=16,
        ffn_dim=16,
        num_layers=1,
        rope_max_seq_len=32,
    )
    tokens: list[list[Any]] = []

    def backend(graph: Any, given: list[Any]) -> Any:
        tokens.append(sorted({side for one in given for side in getattr(one, "shape", [one])}, key=str))
        return graph.forward

    torch.compiler.reset()
    try:
        speed.compile_blocks(model.eval().requires_grad_(False), backend=backend)
        for side in (4, 6, 8, 6):
            model(torch.randn(1, 16, 1, side, 4), torch.tensor([5]), torch.randn(1, 6, 16))
    finally:
        torch.compiler.reset()
    assert len(tokens) == 3
    # a graph for any shape would have a symbol where these have 4, 6 and 8 tokens (patches of 2x2)
    assert all(isinstance(side, int) for one in tokens for side in one)
    assert [half in one for half, one in zip((4, 6, 8), tokens, strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("fields", "other"),
    [
        ({}, {"size": "48x32"}),
        ({}, {"frames": 9}),
        ({}, {"dtype": "bfloat16"}),
        ({"guidance": 5.0}, {"guidance": 1.0}),
        ({}, {"cache": {"kind": "first_block"}}),
        ({}, {"max_sequence_length": 64}),
    ],
)
def test_kernels_are_kept_under_all_that_is_compiled_into_them(
    fields: dict[str, Any], other: dict[str, Any]
) -> None:
    keys = [speed.compile_key(generation(**given), "cpu") for given in (fields, fields | {"seeds": [9]})]
    assert keys[0] == keys[1]
    assert speed.compile_key(generation(**(fields | other)), "cpu") != keys[0]


def test_a_schedule_of_skipped_steps_shares_the_plain_run_s_kernels() -> None:
    skipping = generation(cache={"kind": "schedule", "skip": [2]})
    assert speed.compile_key(skipping, "cpu") == speed.compile_key(generation(), "cpu")
