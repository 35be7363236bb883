"""How a gang shares one sample: what was asked for, or the best choice for this model and size, and why.

A choice comes from a row that was measured (:data:`MEASURED`, by ``tests/benchmarks/gang_gpu.py``) for the
same denoiser, number of GPUs and about the same length, where there is one; else from arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from farm.errors import PermanentFailure
from jobs.video.facts import Facts
from jobs.video.families import RING_BACKENDS, Share
from jobs.video.payload import Generation
from jobs.video.sequence_split import heads_of

_NEAR: Final = 2.0
"""A measured row counts for sequences up to so many times longer or shorter."""
_TITLES: Final[Mapping[Share, str]] = {
    "guidance": "the guidance split",
    "ulysses": "the sequence by heads (Ulysses)",
    "ring": "the sequence in a ring",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of a denoise step with guidance on one machine, by way of sharing."""

    gpu: str
    """The device's name, as torch tells it."""
    width: int
    layers: int
    tokens: int
    gpus: int
    alone_s: float
    """The best of one GPU."""
    shared_s: Mapping[Share, float]


MEASURED: Final[tuple[Measured, ...]] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """How the ranks share, and the reason, which the job's record keeps."""

    share: Share
    why: str
    ring: int = 1
    ulysses: int = 1


def check(generation: Generation) -> None:
    """Before anything is loaded: raises :class:`farm.errors.PermanentFailure` where nothing can be shared."""
    if generation.gpus == 1:
        return
    record = generation.model.record()
    if generation.gang == "guidance":
        if not record.guidance_split or generation.gpus != 2:
            raise PermanentFailure(f"/gang: {record.title} shares no guidance on {generation.gpus} GPUs")
        if generation.guidance <= 1:
            raise PermanentFailure(
                f"/gang: guidance {generation.guidance:g} makes one pass a step, and there is nothing "
                "to share; set guidance over 1, or gpus to 1"
            )
    elif not record.context_parallel and not (generation.gang == "auto" and _two_passes(generation)):
        raise PermanentFailure(f"/gpus: {record.title} cannot split its sequence; set gpus to 1")


def choose(generation: Generation, denoisers: list[Any], gpu: str) -> Choice:
    """The way to share a generation on several GPUs called ``gpu``.

    Raises :class:`farm.errors.PermanentFailure` where what was asked for cannot be.
    """
    heads, size = heads_of(denoisers), generation.gpus
    can = _possible(generation, heads)
    asked = generation.gang
    if asked != "auto":
        if asked not in can:
            raise PermanentFailure(f"/gang: {asked} cannot be here: {_why_not(generation, asked, heads)}")
        return _made(asked, "asked for by the job", size)
    if not can:
        raise PermanentFailure(
            f"/gpus: {size} do not share this film: {_why_not(generation, 'ulysses', heads)}, and "
            f"{_why_not(generation, 'ring', heads)}; set gpus to 1"
        )
    measured = _measured(generation, gpu)
    if measured is not None:
        known = {share: seconds for share, seconds in measured.shared_s.items() if share in can}
        if known:
            best = min(known, key=lambda share: known[share])
            figures = ", ".join(
                f"{_TITLES[share]} {measured.alone_s / seconds:.2f}x"
                for share, seconds in sorted(known.items(), key=lambda item: item[1])
            )
            return _made(best, f"measured on {measured.gpu}, {measured.tokens:,} tokens: {figures}", size)
    return _by_arithmetic(can, size)


def tokens_of(facts: Facts, width: int, height: int, frames: int) -> int:
    """Length of the denoiser's sequence; ``size_divisor`` is one side of a token in pixels."""
    latent_frames = (frames - 1) // facts.temporal + 1
    latent_frames = -(-latent_frames // (facts.temporal_patch or 1))
    return latent_frames * (width // facts.size_divisor) * (height // facts.size_divisor)


def _by_arithmetic(can: list[Share], size: int) -> Choice:
    if "guidance" in can:
        why = (
            "by arithmetic: each GPU does one of the two passes whole, and they exchange one result a step, "
            "where a split sequence exchanges four tensors in every block"
        )
        return _made("guidance", why, size)
    if "ulysses" in can:
        why = (
            "by arithmetic: for attention a rank sends a share of its own tokens, four tensors a block, "
            "where a ring gathers the keys and values of all ranks and merges partial results"
        )
        return _made("ulysses", why, size)
    return _made("ring", f"the attention heads cannot be divided among {size} GPUs", size)


def _made(share: Share, why: str, size: int) -> Choice:
    return Choice(share, why, ring=size if share == "ring" else 1, ulysses=size if share == "ulysses" else 1)


def _two_passes(generation: Generation) -> bool:
    return generation.model.record().guidance_split and generation.gpus == 2 and generation.guidance > 1


def _possible(generation: Generation, heads: int) -> list[Share]:
    can: list[Share] = ["guidance"] if _two_passes(generation) else []
    if generation.model.record().context_parallel:
        if heads and heads % generation.gpus == 0:
            can.append("ulysses")
        if generation.attention in RING_BACKENDS:
            can.append("ring")
    return can


def _why_not(generation: Generation, share: Share, heads: int) -> str:
    if share == "guidance":
        return "it needs two GPUs, guidance over 1 and a model that makes two passes a step"
    if not generation.model.record().context_parallel:
        return f"{generation.model.record().title} cannot split its sequence"
    if share == "ulysses":
        return f"{heads} attention heads cannot be divided among {generation.gpus} GPUs"
    return (
        f"a ring merges partial results, which attention {generation.attention} does not give; "
        f"take {' or '.join(RING_BACKENDS)}"
    )


def _measured(generation: Generation, gpu: str) -> Measured | None:
    facts = generation.model.facts
    tokens = tokens_of(facts, generation.width, generation.height, generation.frames)
    shape = (gpu, facts.denoiser_width, facts.denoiser_layers, generation.gpus)
    rows = [
        row
        for row in MEASURED
        if (row.gpu, row.width, row.layers, row.gpus) == shape
        and 1 / _NEAR <= tokens / max(1, row.tokens) <= _NEAR
    ]
    return min(rows, key=lambda row: abs(row.tokens - tokens), default=None)
