"""Regional compilation: a denoiser's repeated blocks, kernels cached under all that they depend on."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from jobs.video import caching
from jobs.video.payload import Generation
from jobs.video.pipelines import Loaded

torch: Any = importlib.import_module("torch")

_MOST_SHAPES: Final = 64
"""Shapes that one process compiles a block for."""


def compile_key(generation: Generation, device: Any) -> dict[str, Any]:
    """All that compiled kernels depend on; a change of any of them compiles anew."""
    cuda = torch.device(device).type == "cuda"
    return {
        "torch": torch.__version__,
        "triton": _version("triton"),
        "diffusers": _version("diffusers"),
        "torchao": _version("torchao") if generation.quantisation != "none" else None,
        "cuda": torch.version.cuda if cuda else None,
        "arch": ".".join(map(str, torch.cuda.get_device_capability(device))) if cuda else "cpu",
        "model": generation.model.digest,
        "dtype": generation.dtype,
        "quantisation": generation.quantisation,
        "attention": generation.attention,
        "loras": len(generation.loras),
        "shape": [generation.frames, generation.height, generation.width],
        # some families run both passes as one batch, and hooks of caches are compiled into the blocks
        "guided": generation.guidance > 1,
        "text": generation.max_sequence_length,
        "cache": generation.cache.kind if generation.cache and caching.hooked(generation) else None,
    }


def prepare(loaded: Loaded, generation: Generation, denoisers: list[Any]) -> str | None:
    """Compile the denoisers' repeated blocks if the job asks for it; the key's hash, ``None`` without.

    The kernels lie in ``FARM_COMPILE_CACHE`` (left out: the user's cache folder), one folder a key. Torch
    compiles at the first pass of each shape: :func:`needs_warm_up` tells whether that is still to come.
    """
    if generation.compile == "none":
        return None
    key = compile_key(generation, loaded.device)
    digest = digest_of(key)
    folder = cache_root() / digest
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key.json").write_text(json.dumps(key, indent=2, sort_keys=True) + "\n")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    if "compiled" not in loaded.notes:
        for denoiser in denoisers:
            compile_blocks(denoiser)
        loaded.notes["compiled"] = set()
    return digest


def compile_blocks(denoiser: Any, **options: Any) -> None:
    """Let torch compile a denoiser's repeated blocks, each shape for itself.

    Left to itself torch makes kernels for any shape once it has seen two: a film's bits would hang on the
    films that the slot made before. And beyond eight shapes it would stop compiling, without a word.
    """
    limits: Any = importlib.import_module("torch._dynamo.config")
    limits.recompile_limit = max(limits.recompile_limit, _MOST_SHAPES)
    denoiser.compile_repeated_blocks(dynamic=False, **options)


def needs_warm_up(loaded: Loaded, digest: str | None) -> bool:
    """Whether the next pass would compile."""
    return digest is not None and digest not in loaded.notes["compiled"]


@contextmanager
def warming_up(loaded: Loaded, digest: str) -> Iterator[None]:
    """Compile within, one process of a machine at a time: the others then find the kernels."""
    with (cache_root() / digest / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    loaded.notes["compiled"].add(digest)


def digest_of(key: dict[str, Any]) -> str:
    """Name of a key's folder."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]


def cache_root() -> Path:
    """Where compiled kernels are kept."""
    own = os.environ.get("FARM_COMPILE_CACHE")
    return Path(own) if own else Path.home() / ".cache" / "stillframe" / "kernels"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
