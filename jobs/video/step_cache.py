"""Step caching by a fixed schedule: at chosen steps the denoiser does not run, its outputs are carried on.

A denoiser's output changes slowly from step to step in the middle of the loop. A schedule names the steps
that are skipped, by index and for a given number of steps; at these the last outputs are taken again, or
extrapolated linearly from the last two (the first-order case of TaylorSeer, arXiv 2503.06923). Which steps
are skipped never depends on the weights or the prompt, so a schedule that passed the quality gate is the one
that runs, and a resumed run skips the same steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

torch: Any = importlib.import_module("torch")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps to skip out of ``total``; ``order`` 0 repeats the last output, 1 extrapolates from two."""

    skipped: frozenset[int]
    total: int
    order: int = 0

    def __post_init__(self) -> None:
        if self.order not in (0, 1):
            raise ValueError(f"order {self.order}: 0 repeats, 1 extrapolates; there is no other")
        bad = sorted(step for step in self.skipped if not 0 < step < self.total)
        if bad:
            raise ValueError(f"step {bad[0]} cannot be skipped: choose among 1 to {self.total - 1}")

    @property
    def share(self) -> float:
        """Share of the forward passes that still run."""
        return 1 - len(self.skipped) / self.total

    @classmethod
    def regular(cls, total: int, every: int, first: int, last: int, order: int = 0) -> Schedule:
        """Run one step of ``every`` between ``first`` and ``total - last``, and all steps outside."""
        inside = range(first, total - last)
        return cls(frozenset(step for step in inside if step > 0 and (step - first) % every), total, order)


@dataclass(slots=True)
class _Kept:
    """The last two computed outputs of one call, and the steps they are from."""

    steps: list[int] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


class StepCache:
    """Runs a schedule for one job. Keys name the call within a step: conditional, unconditional."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._kept: dict[str, _Kept] = {}
        self._pending: dict[str, tuple[int, Any]] = {}
        self.skipped_passes = 0

    def forward(self, key: str, step: int, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The denoiser's output at ``step``: computed, or carried on where the schedule says so."""
        kept = self._kept.get(key)
        if step in self.schedule.skipped and kept is not None and kept.outputs:
            self.skipped_passes += 1
            return self._carried(kept, step)
        output = inner(*args, **kwargs)
        self._pending[key] = (step, output)
        return output

    def commit(self) -> None:
        """The step is done: its outputs count. A step that is interrupted leaves no mark."""
        for key, (step, output) in self._pending.items():
            kept = self._kept.setdefault(key, _Kept())
            keep = self.schedule.order + 1
            kept.steps = [*kept.steps, step][-keep:]
            kept.outputs = [*kept.outputs, output][-keep:]
        self._pending.clear()

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint before ``step`` keeps; nothing where that step computes everything anyway."""
        if self.schedule.order == 0 and step not in self.schedule.skipped:
            return {}
        return {key: {"steps": kept.steps, "outputs": kept.outputs} for key, kept in self._kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self._kept = {key: _Kept(list(kept["steps"]), list(kept["outputs"])) for key, kept in state.items()}
        self._pending.clear()

    def _carried(self, kept: _Kept, step: int) -> Any:
        last = kept.outputs[-1]
        if self.schedule.order == 0 or len(kept.outputs) < 2:
            return last
        before = kept.outputs[-2]
        share = (step - kept.steps[-1]) / (kept.steps[-1] - kept.steps[-2])
        return _combine(last, before, share)


def _combine(last: Any, before: Any, share: float) -> Any:
    """``last + share * (last - before)`` in every tensor of an output."""
    if isinstance(last, torch.Tensor):
        return torch.lerp(before.float(), last.float(), 1.0 + share).to(last.dtype)
    if isinstance(last, tuple):
        return tuple(_combine(a, b, share) for a, b in zip(last, before, strict=True))
    if hasattr(last, "items"):
        return type(last)(**{key: _combine(value, before[key], share) for key, value in last.items()})
    return last
