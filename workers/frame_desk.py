"""The desk between finished frames and the database: frames are buffered and published in few transactions.

A frame's row is written at most :data:`HOLD_S` after its bytes are safe, by a thread, in one transaction for
all frames that came meanwhile; frames of short tasks travel in the finish transaction instead. While the
database is away the frames wait here and in the spool, and the engine works on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from farm.db.connect import Database
from farm.lifecycle.publish import publish_frames
from farm.records import ClaimedTask, FrameRecord
from workers.patience import is_passing
from workers.spool import Spool

HOLD_S = 0.3
_AWAY_WAIT_S = 1.0
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Pending:
    task: ClaimedTask
    frames: list[tuple[int | None, FrameRecord]] = field(default_factory=list)


class FrameDesk:
    """One per slot. ``on_fenced`` is called, from the desk's thread, when the database refuses an attempt."""

    def __init__(
        self,
        db: Database,
        spool: Spool,
        on_fenced: Callable[[str], None],
        on_published: Callable[[], object] = lambda: None,
    ) -> None:
        self._db = db
        self._spool = spool
        self._on_fenced = on_fenced
        self._on_published = on_published
        self._change = threading.Condition()
        self._pending: _Pending | None = None
        self._flushing = False
        self._due = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="frames", daemon=True)
        self._thread.start()

    def add(self, task: ClaimedTask, frame: FrameRecord) -> None:
        """Take a verified frame whose bytes are in the store."""
        number: int | None = None
        with contextlib.suppress(OSError):
            # a spool on a full disk costs durability across a kill, not the frame
            number = self._spool.add_frame(task.task_id, task.epoch, task.attempt_id, frame)
        with self._change:
            if self._pending is None:
                self._pending = _Pending(task)
                self._due = time.monotonic() + HOLD_S
                self._change.notify_all()
            elif self._pending.task.attempt_id != task.attempt_id:
                raise RuntimeError("frames of one attempt were left at the desk when another began")
            self._pending.frames.append((number, frame))

    def drain(self) -> tuple[list[FrameRecord], list[int]]:
        """Frames not published yet, with their spool numbers; the caller publishes them with its report."""
        with self._change:
            while self._flushing:
                self._change.wait()
            pending, self._pending = self._pending, None
        frames = pending.frames if pending else []
        return [frame for _, frame in frames], [number for number, _ in frames if number is not None]

    def close(self) -> None:
        """End the thread; frames still pending stay in the spool."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._closed and (
                    self._pending is None or not self._pending.frames or time.monotonic() < self._due
                ):
                    waits = self._pending is not None
                    self._change.wait(max(0.001, self._due - time.monotonic()) if waits else None)
                if self._closed:
                    return
                assert self._pending is not None
                batch = _Pending(self._pending.task, list(self._pending.frames))
                self._flushing = True
            done = self._flush(batch)
            with self._change:
                self._flushing = False
                if done and self._pending is not None:
                    del self._pending.frames[: len(batch.frames)]
                    if not self._pending.frames:
                        self._pending = None
                self._due = time.monotonic() + (HOLD_S if done else _AWAY_WAIT_S)
                self._change.notify_all()

    def _flush(self, batch: _Pending) -> bool:
        task = batch.task
        try:
            with self._db.write() as conn:
                counted = publish_frames(
                    conn, task.task_id, task.epoch, task.attempt_id, [frame for _, frame in batch.frames]
                )
        except Exception as error:  # noqa: BLE001  the thread must live on; the report brings the frames again
            if not is_passing(error):
                log.error("frames could not be published", task=task.task_id, error=repr(error))
            return False
        self._spool.answered(number for number, _ in batch.frames if number is not None)
        if counted:
            self._on_published()
        else:
            self._on_fenced(task.attempt_id)
        return True
