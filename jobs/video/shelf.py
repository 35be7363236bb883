"""Weights that wait in host memory for their turn on the GPU: one page-locked stretch a model.

From page-locked memory a model comes back at the rate of the bus (50 GiB/s on an H200), from ordinary memory
at a small part of it. One stretch, because torch rounds page-locked allocations up to powers of two.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import weakref
from collections.abc import Iterable
from typing import Any, Final

from farm.errors import TaskFailed
from jobs.pacing import own_pace

torch: Any = importlib.import_module("torch")

_ALIGNMENT: Final = 256


class Shelf:
    """Holds the tensors of modules for as long as it lives; :meth:`put` moves them here.

    Raises :class:`farm.errors.TaskFailed` where the memory cannot be page-locked.
    """

    def __init__(self, modules: Iterable[Any], *, lock: bool = True) -> None:
        # what is not one dense stretch (a view) is little, and moves by itself
        found = _distinct(modules)
        self._tensors = [tensor for tensor in found if tensor.is_contiguous()]
        self._others = [tensor for tensor in found if not tensor.is_contiguous()]
        self.nbytes = sum(_room(tensor) for tensor in self._tensors)
        # pages of its own: two stretches that share one could not both be locked
        pages = mmap.mmap(-1, max(1, self.nbytes))
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self._memory = torch.frombuffer(pages, dtype=torch.uint8)[: self.nbytes]
        self._unlock: Any = None
        if lock and self.nbytes:
            cudart = torch.cuda.cudart()
            code = int(cudart.cudaHostRegister(self._memory.data_ptr(), self.nbytes, 0))
            if code != 0:
                # the error would else be told to whoever launches a kernel next
                with contextlib.suppress(RuntimeError, AssertionError):
                    torch.zeros(1, device="cuda")
                raise TaskFailed(
                    f"{self.nbytes:,} bytes of weights cannot be page-locked (CUDA error {code})"
                )
            # before the memory is given back, whoever forgets the model
            self._unlock = weakref.finalize(self, cudart.cudaHostUnregister, self._memory.data_ptr())

    def put(self) -> None:
        """The tensors' values come here, at the pace that the plan gives; their places elsewhere are free."""
        at, pace = 0, own_pace()
        for tensor in self._tensors:
            data, size = tensor.data, tensor.numel() * tensor.element_size()
            here = self._memory[at : at + size].view(data.dtype).view(data.shape)
            pace.copy(here, data, page_locked=self._unlock is not None)
            at += _room(tensor)
            tensor.data = here
        for tensor in self._others:
            tensor.data = tensor.data.cpu()
        if self._unlock is not None:
            # the copies are only queued so far
            torch.cuda.synchronize()

    def close(self) -> None:
        """Unlock the memory; whatever still lies in it stays valid."""
        if self._unlock is not None:
            self._unlock()
            self._unlock = None
        self._tensors.clear()
        self._others.clear()
        self._memory = None


def _room(tensor: Any) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return size + -size % _ALIGNMENT


def _distinct(modules: Iterable[Any]) -> list[Any]:
    """Parameters and buffers, each once."""
    found = {id(tensor): tensor for module in modules for tensor in (*module.parameters(), *module.buffers())}
    return list(found.values())
