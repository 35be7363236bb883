"""Out of memory: which stage it was, and what would fit."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from farm.errors import PermanentFailure
from jobs.video.payload import Generation
from jobs.video.residency import release_memory

torch: Any = importlib.import_module("torch")


class OutOfMemory(PermanentFailure):
    """The film does not fit into the memory of the device."""

    slug = "out-of-memory"
    title = "The film does not fit into the memory of the device"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or the system had no more memory to give."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "CUDA out of memory" in text or "not enough memory" in text
    )


def advice(generation: Generation, stage: str, weights: int, had: int, wanted: int) -> str:
    """What fits instead; ``had`` and ``wanted`` are bytes of the device and of the film with the weights."""
    ways = []
    if stage == "decode" and not generation.vae_tiling:
        ways.append("set vae_tiling")
    if generation.device == "cuda" and generation.offload == "none":
        ways.append("set offload to model (or group, which needs least)")
    # activations grow with the number of pixels; a tenth is left for what fragments
    room = 0.9 * (had - weights) / max(1, wanted - weights)
    if 0 < room < 1:
        facts = generation.model.facts
        side = facts.size_divisor
        size = (generation.width, generation.height)
        width, height = (max(side, int(x * room**0.5) // side * side) for x in size)
        if not facts.fixed_size and (width, height) != size:
            ways.append(f"make it {width}x{height}")
        fewer = facts.counts(generation.task).nearest(max(1, int(generation.frames * room)))
        if fewer[0] < generation.frames:
            ways.append(f"make {fewer[0]} frames")
    return "; or ".join(ways) or "choose a smaller size or fewer frames"


@contextmanager
def explained(generation: Generation, stage: list[str], weights: int) -> Iterator[None]:
    """Turn an error of memory within into :class:`OutOfMemory`, which says what fits.

    ``stage[-1]`` is where the film is, ``weights`` the bytes of its model.
    """
    try:
        yield
        return
    except BaseException as error:
        if not is_out_of_memory(error):
            raise
        text = _described(generation, stage[-1], weights, error)
    # outside of the handler: nothing holds the failed call's tensors any more
    release_memory()
    raise OutOfMemory(text)


def _described(generation: Generation, stage: str, weights: int, error: BaseException) -> str:
    tried = re.search(r"[Tt]ried to allocate (?:([\d.]+) (MiB|GiB)|(\d+) bytes)", str(error))
    more = 0
    if tried:
        scale = {"MiB": 2**20, "GiB": 2**30}
        more = int(float(tried[1]) * scale[tried[2]]) if tried[1] else int(tried[3])
    if generation.device == "cuda":
        had, place = torch.cuda.get_device_properties(0).total_memory, "GPU"
        wanted = torch.cuda.max_memory_allocated() + more
    else:
        memory = psutil.virtual_memory()
        had, place = memory.total, "machine"
        wanted = memory.used + more
    return (
        f"/size: {generation.frames} frames of {generation.width}x{generation.height} do not fit: at the "
        f"{stage} stage {wanted / 2**30:.1f} GiB were wanted, and the {place} has {had / 2**30:.1f} GiB. "
        f"What fits: {advice(generation, stage, weights, had, wanted)}"
    )
