"""A GPU slot's own look at its GPU, just before it claims: is somebody else on it by now?"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workers import keeper

if TYPE_CHECKING:
    # a CPU slot has no use for it, and every import delays a slot
    from gpu_pinning import Nvml

BUSY_PREFIX = "its GPU is in use: "
"""How the reason of a hold begins that stands only while a stranger uses the slot's GPU."""


class GpuLook:
    """Asks NVML, which is opened at the first look and stays open; CUDA is not touched."""

    def __init__(self, device: Mapping[str, Any], nvml_module: Any = None) -> None:
        exclusive = device.get("kind") == "cuda" and not device.get("share")
        self._gpus: list[str] = list(device.get("gpus", ())) if exclusive else []
        if device.get("in_use_by_wish"):
            self._gpus = []
        self._bytes = int(device.get("vram", 0))
        self._module = nvml_module
        self._stack = contextlib.ExitStack()
        self._nvml: Nvml | str | None = None

    def why_busy(self) -> str | None:
        """Why the GPU is not this slot's to use at this moment; None: it is, or the slot has none."""
        if not self._gpus:
            return None
        from gpu_pinning import nvml_session

        if self._nvml is None:
            self._nvml = self._stack.enter_context(nvml_session(self._module))
        if isinstance(self._nvml, str):
            return f"its GPU cannot be looked at: {self._nvml}"
        mine = {os.getpid(), *keeper.descendants(os.getppid())}
        return next((why for uuid in self._gpus if (why := self._why(self._nvml, uuid, mine))), None)

    def close(self) -> None:
        """Close NVML."""
        self._stack.close()

    def _why(self, nvml: Nvml, uuid: str, mine: set[int]) -> str | None:
        from gpu_pinning.board import busy_text

        listed = nvml.processes(uuid)
        others = None if listed is None else tuple(p for p in listed if p.pid not in mine)
        ours = listed is not None and others is not None and len(others) < len(listed)
        return busy_text(others, 0 if ours else nvml.memory_used(uuid), self._bytes)
