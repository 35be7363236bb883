"""GPU memory: what is lowered before the start, and what a machine without CUDA says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from farm.errors import DeviceUnavailable, NotInstalled
from jobs.nerf import extensions, training
from jobs.nerf.methods.loader import options_of
from jobs.nerf.spec import Spec
from tests.unit.jobs.local_host import LocalHost


def test_the_cap_and_the_batch_are_lowered_to_the_memory_there_is_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = LocalHost(tmp_path, {})
    wanted = {"source": "p", "method": "splat", "device": "cuda", "train": {"cap": 5_000_000}}
    spec = Spec.model_validate(wanted)
    cuda = torch.device("cuda")
    monkeypatch.setattr(training, "vram_budget", lambda vram, device: 2**30)
    # degree 3 takes 59 floats, four times over (value, gradient, two moments), and 400 bytes to draw
    most = int(2**30 * 0.7 / (4 * 59 * 4 + 400))
    assert training.adapted(spec, options_of(spec), cuda, host).cap == most
    assert f"lowered from 5,000,000 to {most:,} Gaussians" in host.log.text()
    samples = training.fit_samples(2**20, None, cuda, host)
    assert samples == int(2**30 * 0.6 / training.BYTES_PER_SAMPLE) < 2**20
    assert f"lowered from 1,048,576 to {samples:,}" in host.log.text()
    monkeypatch.setattr(training, "vram_budget", lambda vram, device: 2**40)
    assert training.adapted(spec, options_of(spec), cuda, host).cap == 5_000_000
    assert training.fit_samples(2**20, None, torch.device("cpu"), host) == 2**20


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_extensions_are_never_built_without_a_gpu_nor_taken_for_built() -> None:
    with pytest.raises(DeviceUnavailable, match="no GPU here"):
        extensions.build()
    with pytest.raises(DeviceUnavailable, match="sees no GPU"):
        extensions.require_built("gsplat")


def test_a_build_happens_once_per_gpu_and_version_and_tasks_load_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any extension module will do: here one of markupsafe's, said to be that of ``plyfile``."""
    (library,) = Path(str(importlib.import_module("markupsafe").__file__)).parent.glob("_speedups*.so")
    built: list[str] = []

    def compiled(package: str) -> Path:
        built.append(package)
        return library

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(extensions, "PACKAGES", ("plyfile", "no_such_package"))
    monkeypatch.setattr(extensions, "_compile", compiled)
    with pytest.raises(NotInstalled, match="not built for this GPU: run `farm node warm`"):
        extensions.require_built("plyfile")
    assert built == []
    first = dict(extensions.build())
    assert first["plyfile"].startswith("built in") and first["no_such_package"] == "not installed"
    assert dict(extensions.build())["plyfile"] == "built before" and built == ["plyfile"]
    try:
        extensions.require_built("plyfile")
        # the package would find it where an extension that came with it lies, before it compiles one
        assert hasattr(importlib.import_module("plyfile.csrc"), "_escape_inner")
    finally:
        sys.modules.pop("plyfile.csrc", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert extensions.library_of("plyfile") is None
    assert not extensions.load_built("no_such_package")
