"""LPIPS where its weights are there, by random weights made here; and what is said without them."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from jobs.nerf.metrics import Lpips


class Distance(torch.nn.Module):
    """In the place of lpips.LPIPS: squared distance of random features of pictures -1 to 1, (1, 3, h, w)."""

    def __init__(self, *, net: str, verbose: bool) -> None:
        super().__init__()
        assert (net, verbose) == ("alex", False)
        weights = torch.load(str(Path(torch.hub.get_dir()) / "checkpoints" / "alexnet-0.pth"))
        self.layer = torch.nn.Conv2d(3, 4, 3)
        self.layer.load_state_dict(weights)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for picture in (a, b):
            assert picture.shape == (1, 3, 8, 9) and picture.dtype == torch.float32
            assert float(picture.min()) >= -1.0 and float(picture.max()) <= 1.0
        return ((self.layer(a) - self.layer(b)) ** 2).mean().view(1, 1, 1, 1)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = ModuleType("lpips")
    module.__spec__ = ModuleSpec("lpips", None)
    module.LPIPS = Distance  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lpips", module)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))


def picture(seed: int) -> Any:
    return np.random.default_rng(seed).random((8, 9, 3))


def test_without_the_package_or_its_weights_it_is_unavailable_and_says_why(
    package: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = Lpips()
    assert found.why == f"unavailable: AlexNet's weights are not in {tmp_path}/checkpoints"
    assert found.value(picture(0), picture(1)) is None
    monkeypatch.setitem(sys.modules, "lpips", None)
    assert Lpips().why == "unavailable: the package lpips is not installed"


def test_with_weights_the_distance_is_the_networks_own(package: None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 4, 3)
    (tmp_path / "checkpoints").mkdir()
    torch.save(layer.state_dict(), str(tmp_path / "checkpoints" / "alexnet-0.pth"))
    found = Lpips()
    assert found.why == ""
    a, b = picture(0), picture(1)
    planes = [torch.from_numpy(x).float().permute(2, 0, 1)[None] * 2 - 1 for x in (a, b)]
    wanted = float(((layer(planes[0]) - layer(planes[1])) ** 2).mean().detach())
    assert found.value(a, b) == pytest.approx(wanted) and wanted > 0.01
    assert found.value(a, a) == 0.0
