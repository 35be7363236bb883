"""Variants are proven by a child, so that one which aborts costs a child and not the slot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mitsuba", reason="needs stillframe[render]")

from farm.errors import DeviceUnavailable
from jobs.render.mitsuba.variants import OLDEST_USABLE_LLVM, choose, llvm_libraries, probe
from jobs.render.spec import Spec


def spec(**fields: Any) -> Spec:
    return Spec.model_validate({"scene": "a.xml", **fields})


def test_scalar_renders_the_probe() -> None:
    proof = probe("scalar_rgb")
    assert proof.works, proof.reason


def test_a_variant_that_does_not_exist_fails_with_a_reason() -> None:
    proof = probe("abacus_rgb")
    assert not proof.works
    assert "exit status 1" in proof.reason


def test_auto_is_llvm_where_a_probe_proves_it_and_scalar_with_the_reason_elsewhere() -> None:
    proof = choose(spec(), "cpu")
    assert proof.works
    usable = [version for version, _ in llvm_libraries() if version >= OLDEST_USABLE_LLVM]
    if proof.variant == "scalar_rgb":
        assert "llvm_ad_rgb is not used" in proof.reason
    else:
        assert usable
        assert dict(proof.env)["DRJIT_LIBLLVM_PATH"]


def test_an_llvm_that_aborts_is_noticed_and_named() -> None:
    old = {version: path for version, path in llvm_libraries() if 14 <= version <= 16}
    if not old:
        pytest.skip("no LLVM 14 to 16 on this machine")
    version = max(old)
    proof = probe("llvm_ad_rgb", (("DRJIT_LIBLLVM_PATH", str(old[version])),))
    assert not proof.works
    assert "signal" in proof.reason or "status" in proof.reason


def test_llvm_that_was_asked_for_is_never_replaced() -> None:
    libraries = llvm_libraries()
    if any(version >= OLDEST_USABLE_LLVM for version, _ in libraries):
        assert choose(spec(variant="llvm_ad_rgb"), "cpu").variant == "llvm_ad_rgb"
    else:
        with pytest.raises(DeviceUnavailable, match="llvm_ad_rgb does not work on this node"):
            choose(spec(variant="llvm_ad_rgb"), "cpu")


def test_cuda_is_the_device_asked_for_or_a_failure() -> None:
    with pytest.raises(DeviceUnavailable, match="owns no CUDA device"):
        choose(spec(device="cuda"), "cpu")
    if not Path("/dev/nvidiactl").exists():
        with pytest.raises(DeviceUnavailable, match="cuda_ad_rgb does not work on this node"):
            choose(spec(device="cuda"), "cuda")
