"""Attention backends: what works is told by the operator that ran, what does not is refused with a reason."""

from __future__ import annotations

import pytest
import torch

from farm.errors import PermanentFailure
from jobs.video.attention import Attention, probe


def test_the_operator_that_ran_is_told() -> None:
    assert probe("native", "cpu", torch.float32) == ["aten::_scaled_dot_product_flash_attention_for_cpu"]
    # plain arithmetic has no operator of its own
    assert probe("math", "cpu", torch.float32) == ["math"]


def test_a_backend_for_gpus_is_refused_without_one() -> None:
    with pytest.raises(PermanentFailure, match=r"^/attention: xformers needs an NVIDIA GPU; choose native"):
        probe("xformers", "cpu", torch.float32)


def test_a_backend_that_fails_its_first_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As xformers does that was built for another torch: it imports, and fails when it is called."""
    from diffusers.models import attention_dispatch

    def fails(*_: object, **__: object) -> None:
        raise NotImplementedError("No operator found for `memory_efficient_attention_forward`")

    monkeypatch.setattr(attention_dispatch, "dispatch_attention_fn", fails)
    with pytest.raises(
        PermanentFailure, match=r"native does not work here \(NotImplementedError: No operator"
    ):
        Attention().use("native", [torch.nn.Linear(1, 1)], "cpu", torch.float32)
