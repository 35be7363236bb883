"""Time limits of an attempt: pure bookkeeping of what the agent sees of a slot at each look.

Both limits stand still while the farm holds the task: while the agent has it paused or frozen, and for the
time that the slot says it was held (throttled, waiting for a buffer).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workers.control import Reading

Expired = Literal["timeout", "no_progress"]


@dataclass(slots=True)
class Limits:
    """Clocks of the attempt that a slot is on. Times in seconds."""

    serial: int = 0
    ran_s: float = 0.0
    idle_s: float = 0.0
    _seen_at: float = 0.0
    _held_s: float = 0.0
    _progressed_at: float = 0.0

    def look(self, reading: Reading, now: float, standing: bool) -> None:
        """Take in a reading made at monotonic time ``now``; ``standing``: the agent holds the slot."""
        if reading.serial != self.serial:
            self.serial = reading.serial
            self.ran_s = max(0.0, now - reading.began_at - reading.held_s)
            self.idle_s = max(0.0, now - reading.progressed_at)
        else:
            passed = 0.0 if standing else max(0.0, now - self._seen_at - (reading.held_s - self._held_s))
            self.ran_s += passed
            fresh = reading.progressed_at != self._progressed_at
            self.idle_s = (
                max(0.0, min(passed, now - reading.progressed_at)) if fresh else self.idle_s + passed
            )
        self._seen_at = now
        self._held_s = reading.held_s
        self._progressed_at = reading.progressed_at

    def expired(self, timeout_s: float | None, no_progress_s: float) -> Expired | None:
        """Which limit the attempt has passed, if any."""
        if not self.serial:
            return None
        if timeout_s is not None and self.ran_s >= timeout_s:
            return "timeout"
        return "no_progress" if self.idle_s >= no_progress_s else None
