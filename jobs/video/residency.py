"""The models that a slot keeps: the last ones on the device, older ones in host memory, both in a budget."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from farm.errors import TaskFailed
from jobs.video import pipelines
from jobs.video.payload import Generation
from jobs.video.pipelines import Loaded

torch: Any = importlib.import_module("torch")

_DEVICE_SHARE: Final = 0.6
_HOST_SHARE: Final = 0.25


def _host_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Residency:
    """Loaded models by device and warm key.

    ``device_budget`` and ``host_budget`` are in bytes; left out, they are shares of the memories. The model
    that is asked for is always loaded, whatever the budget; others make room for it.
    """

    def __init__(
        self,
        device_budget: int | None = None,
        host_budget: int | None = None,
        load: Callable[[Generation], Loaded] = pipelines.load,
    ) -> None:
        self._device_budget = device_budget
        self._host_budget = int(_host_memory() * _HOST_SHARE) if host_budget is None else host_budget
        self._load = load
        self._kept: OrderedDict[str, Loaded] = OrderedDict()

    @property
    def keys(self) -> list[str]:
        """Warm keys of what is loaded, the longest unused first."""
        return [loaded.key for loaded in self._kept.values()]

    def get(self, generation: Generation, load_turn: Callable[[], Any]) -> Loaded:
        """The model of a job, loaded where it is not; ``load_turn()`` gives the context to load in.

        Raises what :func:`jobs.video.pipelines.load` raises.
        """
        # a slot with a GPU also takes jobs for its processor
        key = f"{generation.device}:{generation.warm_key}"
        found = self._kept.get(key)
        if found is None:
            with load_turn():
                expected = max(generation.model.facts.weight_bytes, 1)
                self._make_room(expected, on_device=generation.device == "cuda")
                found = self._load(generation)
                self._kept[key] = found
        self._kept.move_to_end(key)
        if not found.resident:
            with load_turn():
                self._make_room(found.nbytes, on_device=True, keep=key)
                found.move(found.device)
                found.resident = True
        return found

    def clear(self) -> None:
        """Release all of them."""
        self._kept.clear()
        release_memory()

    def _make_room(self, nbytes: int, *, on_device: bool, keep: str | None = None) -> None:
        """Move the longest unused models off the device, and drop them where host memory is full too."""
        changed = False
        others = [loaded for key, loaded in self._kept.items() if key != keep]
        if on_device:
            budget = self._device_budget or int(
                torch.cuda.get_device_properties(0).total_memory * _DEVICE_SHARE
            )
            for loaded in others:
                if self._bytes_on_device() + nbytes <= budget:
                    break
                if loaded.resident and loaded.device.type == "cuda":
                    self._demote(loaded)
                    changed = True
        host_need = nbytes if not on_device else 0
        for key in [key for key in self._kept if key != keep]:
            if self._bytes_in_host() + host_need <= self._host_budget:
                break
            loaded = self._kept[key]
            if loaded.device.type == "cpu" or not loaded.resident:
                del self._kept[key]
                changed = True
        if changed:
            others.clear()
            release_memory()

    def _demote(self, loaded: Loaded) -> None:
        if loaded.movable:
            # where no host memory can be page-locked for it, it is loaded again when it is wanted
            with contextlib.suppress(TaskFailed):
                loaded.move("cpu")
                loaded.resident = False
                return
        # or it has hooks of its own that say where its weights are
        del self._kept[f"cuda:{loaded.key}"]

    def _bytes_on_device(self) -> int:
        return sum(
            item.nbytes for item in self._kept.values() if item.device.type == "cuda" and item.resident
        )

    def _bytes_in_host(self) -> int:
        return sum(
            item.nbytes for item in self._kept.values() if item.device.type == "cpu" or not item.resident
        )


def release_memory() -> None:
    """Give back what nobody holds any more, to the device and to the system."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    trim = getattr(importlib.import_module("ctypes").CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
