"""The live feed: one thread waits for the broker's wakes and tells every open stream to look at the table.

Streams hold no database connection between looks and no thread while they wait. Reads of streams run under
a limit of their own, so that many open pages cannot starve ordinary requests of threads.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
import structlog

from api.problems import HttpProblem

POLL_S = 1.0
READERS = 8

Result = TypeVar("Result")
log = structlog.get_logger(__name__)


class _Waits(Protocol):
    def wait(self, channels: str | list[str], timeout_s: float) -> bool: ...


class LiveFeed:
    """Wakes open streams; :meth:`start` in the application's lifespan, :meth:`close` before it ends."""

    def __init__(self, wakes: _Waits, *, poll_s: float = POLL_S) -> None:
        self._wakes = wakes
        self._poll_s = poll_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._closing: asyncio.Event | None = None
        self._waiters: set[asyncio.Event] = set()
        self._limiter: anyio.CapacityLimiter | None = None
        self._streams: Counter[str] = Counter()

    def admit(self, owner: str, most: int, messages: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Count a stream of this owner for as long as it lives; call it on the event loop.

        Raises :class:`api.problems.HttpProblem` (429) where ``most`` are open already.
        """
        if self._streams[owner] >= most:
            raise HttpProblem(
                429,
                "too-many-streams",
                f"this key has {most} streams open, the most at once (FARM_MAX_STREAMS): close some, or wait",
                headers={"Retry-After": "5"},
            )
        self._streams[owner] += 1
        # also for one that is dropped before its first message, whose own clean-up would never run
        weakref.finalize(messages, self._leave, owner)
        return messages

    def _leave(self, owner: str) -> None:
        self._streams[owner] -= 1
        if self._streams[owner] <= 0:
            del self._streams[owner]

    @property
    def closing(self) -> bool:
        """Whether the server is going down, so that streams must end."""
        return self._stop.is_set()

    def start(self) -> None:
        """Begin to listen; call it on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._limiter = anyio.CapacityLimiter(READERS)
        self._stop.clear()
        self._thread = threading.Thread(target=self._listen, name="live-feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell every stream to end and the listener to stop. Safe from any thread, and twice."""
        self._stop.set()
        self.notify()

    def notify(self) -> None:
        """Make every waiting stream look now. Safe from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(self._wake_all)
            except RuntimeError:  # the loop closed between the look and the call
                return

    async def wait(self, timeout_s: float) -> None:
        """Wait until something may have happened, at most ``timeout_s``; at once when closing."""
        if self.closing:
            return
        event = asyncio.Event()
        self._waiters.add(event)
        try:
            with anyio.move_on_after(timeout_s):
                await event.wait()
        finally:
            self._waiters.discard(event)

    async def pause(self, seconds: float) -> None:
        """Let a burst of commits gather; no longer when closing."""
        if not self.closing:
            await anyio.sleep(seconds)

    async def read(self, function: Callable[[], Result]) -> Result:
        """Run a blocking read in a thread, at most :data:`READERS` at once."""
        return await anyio.to_thread.run_sync(function, limiter=self._limiter)

    def _wake_all(self) -> None:
        for event in self._waiters:
            event.set()

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                woken = self._wakes.wait("events", self._poll_s)
            except Exception:
                log.exception("waiting for wakes failed; polling")
                woken = self._stop.wait(self._poll_s)
            if woken:
                self.notify()
