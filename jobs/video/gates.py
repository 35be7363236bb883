"""The quality gate: a lossy choice is taken only where its measured likeness to the plain run is good enough.

A measurement compares, frame by frame, films of calibration prompts made plainly and with the choice, same
seeds, on the model version itself. It is kept with the version under the key of :func:`choice`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from jobs.fields import Model
from jobs.video.families import APPROXIMATE

if TYPE_CHECKING:
    from jobs.video.payload import Generation

MIN_SSIM: Final = 0.95
MIN_PSNR_DB: Final = 30.0


class Gate(Model):
    """One measurement of one lossy choice. ``ssim`` and ``psnr_db`` are the worst over prompts of the means
    over frames; ``psnr_db`` is at most 100 (equal frames).
    """

    ssim: float
    psnr_db: float
    prompts: int
    steps: int
    width: int
    height: int
    frames: int
    measured_on: str
    """Device and library builds in words."""

    @property
    def passed(self) -> bool:
        """Whether the choice may be used."""
        return self.ssim >= MIN_SSIM and self.psnr_db >= MIN_PSNR_DB


def choices(generation: Generation) -> dict[str, str]:
    """Lossy choices of a generation: the spec's field to what its loss depends on; none: nothing is lossy."""
    found: dict[str, str] = {}
    cache = generation.cache
    if cache is not None:
        amount = cache.threshold if cache.threshold is not None else cache.interval
        what = ",".join(map(str, cache.skip)) if cache.kind == "schedule" else f"{amount:g}"
        # which steps are skipped, or how far apart they lie, means something for that many steps alone
        found["cache"] = f"cache:{cache.kind}:{generation.steps}:{what}"
    if generation.quantisation != "none":
        found["quantisation"] = f"quantisation:{generation.quantisation}"
    if generation.attention in APPROXIMATE:
        found["attention"] = f"attention:{generation.attention}"
    return found


def choice(generation: Generation) -> str | None:
    """The key under which the measurement of all lossy choices together is kept; ``None``: nothing is lossy.

    Together, because two that pass alone need not pass with each other.
    """
    return "+".join(choices(generation).values()) or None


def check(
    generation: Generation,
    measured: Mapping[str, Gate],
    untested: bool,
    refuse: Callable[[str, str], None],
) -> None:
    """Call ``refuse(field, message)`` where the lossy choices are unmeasured or below the gate.

    ``untested`` lets unmeasured ones pass (the measuring itself runs so); failed ones never pass.
    """
    lossy, key = choices(generation), choice(generation)
    if key is None:
        return
    field, gate = next(iter(lossy)), measured.get(key)
    if gate is None and not untested:
        refuse(
            field,
            f"how much {key} changes {generation.model.name} was never measured; measure it with "
            f"`farm models gate {generation.model.name}`, or set untested to take it as it comes",
        )
    elif gate is not None and not gate.passed:
        refuse(
            field,
            f"{key} on {generation.model.name} was measured at SSIM {gate.ssim:.3f} and PSNR "
            f"{gate.psnr_db:.1f} dB, below {MIN_SSIM:g} and {MIN_PSNR_DB:g} dB; leave it out",
        )
