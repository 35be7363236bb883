"""Ctrl-C at any moment: either held until it is safe, or raised as KeyboardInterrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt, except inside :meth:`held`."""

    def __init__(self) -> None:
        self._held = 0
        self._pending = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._come)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _come(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._pending = True
            return
        raise KeyboardInterrupt

    @contextmanager
    def held(self, *, drop: bool = False) -> Iterator[None]:
        """Nothing interrupts the block; what came meanwhile is raised after it, or dropped."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._pending and not self._held:
            self._pending = False
            if not drop:
                raise KeyboardInterrupt
