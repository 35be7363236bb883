"""Checkpoints on their way to the store: copied off the device in the loop, written beside it."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

from jobs.engine import Host
from jobs.video.checkpoint import Detached
from jobs.video.replay import Run

_LEAST_SPACING_S: Final = 1.0
_COST: Final = 0.02
"""Saving may take this share of a run's time."""


class Saver:
    """One run's checkpoints. ``every`` is in steps; saves closer than a second, or too dear, are left out.

    What is left out changes no result: caches are cleared at checkpoint steps whether they are saved or not.
    """

    def __init__(
        self, host: Host, every: int, environment: dict[str, Any], *, exact_steps_only: bool
    ) -> None:
        self._host = host
        self._every = every
        self._environment = environment
        self._exact_steps_only = exact_steps_only
        self._thread: threading.Thread | None = None
        self._written: Path | None = None
        self._error: BaseException | None = None
        self._last = time.monotonic()
        self._at = -1
        self._hold_s = 0.0
        self.saved = 0
        self.nbytes = 0
        self.longest_hold_s = 0.0

    def boundary(self, run: Run) -> None:
        """Between two passes: hand over what is written, begin the next one if it is due."""
        began = time.perf_counter()
        if self._written is not None:
            self._hand_over()
        elif self._due(run):
            self._begin(run)
        else:
            return
        hold = time.perf_counter() - began
        self._hold_s += hold
        self.longest_hold_s = max(self.longest_hold_s, hold)

    def park(self, run: Run) -> None:
        """Save the last step now, where a run can go on from it; else the last checkpoint stands."""
        self.finish()
        if run.step <= self._at or not self._exact(run.step):
            return
        detached = self._detached(run)
        if detached is not None:
            path = self._host.scratch / f"checkpoint-{run.step}"
            self.nbytes = detached.write(path)
            self._host.save(path)
            self._at = run.step
            self.saved += 1

    def finish(self) -> None:
        """Wait for what is being written, and hand it over."""
        if self._thread is not None:
            self._thread.join()
        if self._written is not None:
            self._hand_over()

    def abandon(self) -> None:
        """Wait for what is being written; nobody wants it any more."""
        if self._thread is not None:
            self._thread.join()

    def _exact(self, step: int) -> bool:
        return not self._exact_steps_only or step % self._every == 0

    def _due(self, run: Run) -> bool:
        step = run.step
        if not run.first_of_step or not step or step % self._every or step <= self._at or step >= run.total:
            return False
        if self._thread is not None and self._thread.is_alive():
            return False
        spacing = max(_LEAST_SPACING_S, self._hold_s / max(1, self.saved) / _COST)
        return time.monotonic() - self._last >= spacing

    def _detached(self, run: Run) -> Detached | None:
        snapshot = run.snapshot()
        if snapshot is None:
            return None
        snapshot.environment = self._environment
        return snapshot.detach()

    def _begin(self, run: Run) -> None:
        detached = self._detached(run)
        if detached is None:
            return
        self._at, self._last = run.step, time.monotonic()
        path = self._host.scratch / f"checkpoint-{run.step}"

        def write() -> None:
            try:
                self.nbytes = detached.write(path)
                self._written = path
            except OSError as error:
                self._error = error

        self._thread = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._thread.start()

    def _hand_over(self) -> None:
        path, self._written = self._written, None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if path is not None:
            self._host.save(path)
            self.saved += 1
