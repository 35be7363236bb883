"""Which Mitsuba variant runs here, proven by a render in a child: some LLVM versions abort the process."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from farm.errors import DeviceUnavailable
from farm.settings import settings
from jobs.render.mitsuba.proofs import once
from jobs.render.spec import Spec

OLDEST_USABLE_LLVM: Final = 17
"""Versions 14 to 16 abort the process with Mitsuba 3.9: ``auto`` does not even try those."""
PROBE_TIMEOUT_S: Final = 120.0
_LIBRARY_FOLDERS: Final = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)


@dataclass(frozen=True, slots=True)
class Proof:
    """What a probe found. ``env`` is what a child needs for the variant to work as it did in the probe."""

    variant: str
    works: bool
    reason: str
    env: tuple[tuple[str, str], ...] = ()


def choose(spec: Spec, slot_device: str) -> Proof:
    """The variant that a job gets in this slot. Raises :class:`farm.errors.DeviceUnavailable`, never falls.

    ``slot_device`` is what the slot owns, ``cpu`` or ``cuda``.
    """
    if spec.device == "cuda":
        variant = "cuda_ad_rgb" if spec.variant == "auto" else spec.variant
        if slot_device != "cuda":
            raise DeviceUnavailable(
                "device cuda: this slot owns no CUDA device; ask for device: cpu, or add a GPU slot"
            )
        proof = probe(variant)
    elif spec.variant == "auto":
        proof = _best_on_cpu()
    elif spec.variant.startswith("llvm"):
        proof = _any_llvm(spec.variant, oldest=0)
    else:
        proof = Proof(spec.variant, True, "needs nothing beside the processor")
    if not proof.works:
        raise DeviceUnavailable(f"variant {proof.variant} does not work on this node: {proof.reason}")
    return proof


def _best_on_cpu() -> Proof:
    llvm = _any_llvm("llvm_ad_rgb", oldest=OLDEST_USABLE_LLVM)
    if llvm.works:
        return llvm
    return Proof("scalar_rgb", True, f"llvm_ad_rgb is not used: {llvm.reason}")


@lru_cache(maxsize=8)
def _any_llvm(variant: str, oldest: int) -> Proof:
    """The first LLVM library, newest first, with which the variant renders."""
    libraries = [(version, path) for version, path in llvm_libraries() if version >= oldest]
    if not libraries:
        return Proof(
            variant,
            False,
            f"no LLVM library of version {oldest or 8} or newer is here: apt-get install libllvm19",
        )
    reasons = []
    for version, path in libraries:
        proof = probe(variant, (("DRJIT_LIBLLVM_PATH", str(path)),))
        if proof.works:
            return proof
        reasons.append(f"LLVM {version}: {proof.reason}")
    return Proof(variant, False, "; ".join(reasons))


def llvm_libraries() -> list[tuple[int, Path]]:
    """LLVM shared libraries of this machine with their major version, newest first, one per version."""
    import os

    found: dict[int, Path] = {}
    named = os.environ.get("DRJIT_LIBLLVM_PATH")
    candidates = [Path(named)] if named else []
    for folder in _LIBRARY_FOLDERS:
        candidates += sorted(Path(folder).glob("libLLVM*.so*"))
        candidates += sorted(Path(folder).glob("llvm-*/lib/libLLVM*.so*"))
    for path in candidates:
        match = re.search(r"libLLVM(?:-(\d+)|\.so\.(\d+))", path.name) or re.search(
            r"libLLVM(?:-(\d+)|\.so\.(\d+))", path.resolve().name
        )
        if match and path.exists():
            found.setdefault(int(match[1] or match[2]), path.resolve())
    return sorted(found.items(), reverse=True)


@lru_cache(maxsize=32)
def probe(variant: str, env: tuple[tuple[str, str], ...] = ()) -> Proof:
    """Whether the variant renders a small scene in a child: where that dies, hangs or is wrong, it fails.

    On the processor once for each machine; a GPU's driver may change under us, so that is asked anew.
    """
    if variant.startswith("cuda"):
        return _probe(variant, env)
    failed: list[Proof] = []

    def prove() -> str | None:
        proof = _probe(variant, env)
        if not proof.works:
            failed.append(proof)
        return proof.reason if proof.works else None

    words = once(settings().run_dir / "variants", variant, dict(env), prove)
    return failed[0] if words is None else Proof(variant, True, words, env)


def _probe(variant: str, env: tuple[tuple[str, str], ...]) -> Proof:
    import os

    command = [sys.executable, "-P", "-m", "jobs.render.mitsuba.probe", variant]
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, **dict(env), "PYTHONPATH": root}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=PROBE_TIMEOUT_S, env=environment, check=False,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Proof(variant, False, f"the probe did not end within {PROBE_TIMEOUT_S:.0f} s", env)
    if done.returncode == 0:
        return Proof(variant, True, done.stdout.decode("utf-8", "replace").strip(), env)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    ending = (
        f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    )
    words = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "")
    return Proof(variant, False, f"the probe was {ending}: {words[:300]}".rstrip(": "), env)
