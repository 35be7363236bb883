"""LoRAs: one job's, and no other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from farm.errors import PermanentFailure
from jobs.video import loras, payload, pipelines
from tests.unit.jobs.video.making import spec, step_of


def lora(
    path: Path, width: int = 24, layer: str = "blocks.0.attn1.to_q", prefix: str = "transformer."
) -> Path:
    made = torch.Generator().manual_seed(1)
    save_file(
        {
            f"{prefix}{layer}.lora_A.weight": torch.randn(4, width, generator=made),
            f"{prefix}{layer}.lora_B.weight": torch.randn(width, 4, generator=made),
        },
        path,
    )
    return path


def loaded(name: str, **fields: Any) -> tuple[Any, Any]:
    generation = payload.read_step(step_of(spec(name)).payload)
    model = pipelines.load(generation)
    return model.view(generation), generation.model_copy(update={"loras": fields["loras"]} if fields else {})


def wish(**fields: Any) -> Any:
    from jobs.video.spec import Lora

    return Lora(path="a.safetensors", **fields)


def weights(view: Any, name: str = "transformer") -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in getattr(view, name).state_dict().items()}


def product(view: Any, name: str = "transformer") -> torch.Tensor:
    layer = getattr(view, name).blocks[0].attn1.to_q
    with torch.inference_mode():
        return torch.as_tensor(layer(torch.ones(1, 24)))


def test_a_lora_changes_its_own_job_by_its_weight_and_then_is_gone(tmp_path: Path) -> None:
    view, generation = loaded("wan", loras=[wish(weight=0.5)])
    path = lora(tmp_path / "a.safetensors")
    before, plain = weights(view), product(view)
    with loras.applied(view, generation, [path]):
        half = product(view) - plain
    from safetensors.torch import load_file

    layers = load_file(path)
    down, up = (layers[f"transformer.blocks.0.attn1.to_q.lora_{side}.weight"] for side in "AB")
    # a rank-4 product without alpha: the scale is one, times the weight
    assert torch.allclose(half, 0.5 * (torch.ones(1, 24) @ down.T @ up.T), atol=1e-4)
    after = weights(view)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(product(view), plain)


def test_a_lora_of_one_expert_leaves_the_other_alone(tmp_path: Path) -> None:
    view, generation = loaded("wan22", loras=[wish(expert="low_noise")])
    high, low = product(view), product(view, "transformer_2")
    with loras.applied(view, generation, [lora(tmp_path / "a.safetensors")]):
        assert torch.equal(product(view), high)
        assert not torch.equal(product(view, "transformer_2"), low)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"width": 32}, r"for another model: blocks.0.attn1.to_q has 24 values in, not 32"),
        ({"layer": "blocks.7.attn1.to_q"}, r"for another model: wan has no layer 'blocks.7.attn1.to_q'"),
    ],
)
def test_a_lora_of_another_model_is_refused(fields: dict[str, Any], text: str, tmp_path: Path) -> None:
    view, generation = loaded("wan", loras=[wish()])
    before = weights(view)
    with (
        pytest.raises(PermanentFailure, match=text),
        loras.applied(view, generation, [lora(tmp_path / "a.safetensors", **fields)]),
    ):
        pass
    assert weights(view).keys() == before.keys()


def test_a_file_that_is_no_lora_is_refused(tmp_path: Path) -> None:
    view, generation = loaded("wan", loras=[wish()])
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"not a safetensors file")
    with (
        pytest.raises(PermanentFailure, match="is not a safetensors file"),
        loras.applied(view, generation, [path]),
    ):
        pass
