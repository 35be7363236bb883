"""The decode-shaped model, tried in small on a CPU: shapes, cache and the tokens that reach the host."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_pinning.stillness import decode_load

torch = pytest.importorskip("torch")


def test_each_step_writes_its_place_of_the_cache_and_tells_its_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = {"LAYERS": 2, "WIDTH": 64, "INNER": 96, "HEADS": 4, "CONTEXT": 8, "VOCABULARY": 50}
    for name, value in small.items():
        monkeypatch.setattr(decode_load, name, value)
    forward, tell = decode_load.decode_model("cpu")
    inside = _cells(forward)
    before = inside["layers"][1]["k"].clone()
    step: Any = decode_load._step_of(forward, tell, lambda: None, held=forward)
    for _ in range(3):
        step()
    after = inside["layers"][1]["k"]
    changed = [place for place in range(8) if not torch.equal(before[:, :, place], after[:, :, place])]
    assert changed == [0, 1, 2]
    assert inside["place"].tolist() == [3]
    assert _cells(tell)["seen"].tolist() == inside["tokens"].tolist()
    assert 0 < step.launch_share() <= 1 and inside["place"].tolist() == [(3 + 30) % 8]
    assert step.held is forward


def _cells(function: Any) -> dict[str, Any]:
    names = function.__code__.co_freevars
    return {name: cell.cell_contents for name, cell in zip(names, function.__closure__, strict=True)}
