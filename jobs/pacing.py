"""Copies between a GPU and the host in pieces, when a neighbour's GPU hangs on the same PCIe switch.

Frames, weights of models, checkpoints and pictures to train on go through it. A frame copy fills the link to
the processor: 51 GiB/s for as long as it lasts. A decode step behind the same switch waits for it with its
few kilobytes. The plan says so with :data:`VARIABLE`, and copies then go in pieces of 8 MiB with rests in
between, so that they keep to the rate. Without the variable nothing is changed.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from farm.errors import InvalidInput

VARIABLE = "STILLFRAME_COPY_BYTES_PER_S"
PIECE = 8 * 2**20


@dataclass(slots=True)
class CopyPace:
    """``bytes_per_s`` 0: as fast as it goes."""

    bytes_per_s: int = 0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free_at: float = 0.0

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> CopyPace:
        """As the plan says. Raises :class:`farm.errors.InvalidInput` for anything but a whole number."""
        told = environment.get(VARIABLE, "0")
        if not told.isdigit():
            raise InvalidInput(f"{VARIABLE} = {told!r}: write bytes per second as a whole number")
        return cls(int(told))

    def spans(self, count: int, bytes_each: int) -> Iterator[slice]:
        """Slices of ``count`` equal parts, with the rests taken in between; all at once without a rate."""
        if not self.bytes_per_s:
            yield slice(0, count)
            return
        step = max(1, PIECE // max(1, bytes_each))
        for begin in range(0, count, step):
            end = min(count, begin + step)
            now = self.clock()
            if now < self._free_at:
                self.sleep(self._free_at - now)
            began = max(now, self._free_at)
            yield slice(begin, end)
            self._free_at = began + (end - begin) * bytes_each / self.bytes_per_s

    def copy(self, target: Any, source: Any, *, page_locked: bool) -> None:
        """``target.copy_(source)`` of two contiguous torch tensors of one size, at the pace.

        Each piece is waited for where there is a rate; else, with ``page_locked`` memory, the copy may still
        be under way when this returns.
        """
        if not self.bytes_per_s:
            target.copy_(source, non_blocking=page_locked)
            return
        to, of = target.reshape(-1), source.reshape(-1)
        for span in self.spans(math.prod(source.shape), source.element_size()):
            # a blocking copy: the next piece is not to be queued behind this one
            to[span].copy_(of[span])

    def taken(self, tensor: Any, device: Any) -> Any:
        """A torch tensor on a device (itself where it is there already), copied at the pace."""
        import torch

        if not self.bytes_per_s or tensor.device == torch.device(device):
            return tensor.to(device)
        if tensor.is_contiguous():
            there = torch.empty_like(tensor, device=device)
            self.copy(there, tensor, page_locked=False)
            return there
        # in a layout of its own: as one piece, with its rest before the next
        for _ in self.spans(1, tensor.numel() * tensor.element_size()):
            there = tensor.to(device)
        return there

    def move(self, modules: Iterable[Any], device: Any) -> None:
        """Weights and buffers of torch modules to a device, at the pace; without a rate nothing is done.

        Before ``.to(device)``, which then finds them there. Tensors of a class of their own (quantised ones)
        are left to it.
        """
        if not self.bytes_per_s:
            return
        import torch

        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                if type(tensor.data) is torch.Tensor and tensor.device != torch.device(device):
                    tensor.data = self.taken(tensor.data, device)


def own_pace() -> CopyPace:
    """This process's pace, as its environment says; one for all its copies, so that they share the rate."""
    return _pace_of(os.environ.get(VARIABLE, "0"))


@functools.cache
def _pace_of(told: str) -> CopyPace:
    return CopyPace.of_environment({VARIABLE: told})
