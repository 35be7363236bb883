"""The log that an attempt writes: bytes as they come, capped, and never in the way of the work.

Children write into a pipe (:meth:`AttemptLog.fileno`) that a thread empties into the file, so that a child
that floods its log fills no disk. The first :data:`HEAD` bytes are kept as they come; of what follows, the
last :data:`TAIL` bytes, put after a line that says how much was left out: a failure's reason stands at the
end. A grandchild that holds the pipe open does not hold up the end of the attempt.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from pathlib import Path

from farm.attempt_logs import log_path

HEAD = 16 * 2**20
TAIL = 256 * 2**10
_PIPE = 1 << 20
_F_SETPIPE_SZ = 1031


class AttemptLog:
    """One attempt's log; see :class:`jobs.engine.Log`."""

    def __init__(self, folder: Path, attempt_id: str, *, head: int = HEAD, tail: int = TAIL) -> None:
        self.path = log_path(folder, attempt_id)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._head = head
        self._tail_max = tail
        self._written = 0
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._skipped = 0
        self._lock = threading.Lock()
        self._pipe_write = -1
        self._wake_write = -1
        self._pump: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Append text, ended by a newline."""
        raw = text.encode("utf-8", "surrogateescape")
        self.write_bytes(raw if raw.endswith(b"\n") else raw + b"\n")

    def write_bytes(self, data: bytes) -> None:
        """Append bytes as they are. A full disk loses log lines, not the attempt."""
        with self._lock:
            room = self._head - self._written
            if room > 0:
                with contextlib.suppress(OSError):
                    self._written += os.write(self._fd, data[:room])
                data = data[room:]
            if data:
                self._keep_tail(data)

    def fileno(self) -> int:
        """Where a child's stdout and stderr may go. Any bytes."""
        if self._pipe_write < 0:
            pipe_read, self._pipe_write = os.pipe2(os.O_CLOEXEC)
            wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(pipe_read, False)
            with contextlib.suppress(OSError):
                import fcntl

                fcntl.fcntl(self._pipe_write, _F_SETPIPE_SZ, _PIPE)
            self._pump = threading.Thread(
                target=self._run_pump, args=(pipe_read, wake_read), name="log", daemon=True
            )
            self._pump.start()
        return self._pipe_write

    def close(self, drain_s: float = 2.0) -> None:
        """Take what is still in the pipe, write the tail, close; waits for no grandchild. Again is fine."""
        if self._fd < 0:
            return
        if self._pump is not None:
            os.close(self._pipe_write)
            os.close(self._wake_write)
            self._pump.join(drain_s)
            self._pump = None
        with self._lock:
            if self._skipped or self._tail:
                kept = b"".join(self._tail)[-self._tail_max :]
                left_out = self._skipped + self._tail_size - len(kept)
                note = f"\n[... {left_out} bytes left out: a log keeps {self._head} and the last "
                note += f"{self._tail_max} ...]\n"
                with contextlib.suppress(OSError):
                    os.write(self._fd, (note.encode() if left_out else b"") + kept)
            os.close(self._fd)
            self._fd = -1

    def _keep_tail(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_max:
            dropped = len(self._tail.popleft())
            self._tail_size -= dropped
            self._skipped += dropped

    def _run_pump(self, pipe_read: int, wake_read: int) -> None:
        poll = select.poll()
        poll.register(pipe_read, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        closing_until: float | None = None
        try:
            while True:
                timeout = None if closing_until is None else 0
                ready = dict(poll.poll(timeout))
                if wake_read in ready and closing_until is None:
                    poll.unregister(wake_read)
                    closing_until = time.monotonic() + 1.0
                data = None
                with contextlib.suppress(BlockingIOError):
                    data = os.read(pipe_read, 1 << 16)
                if data:
                    self.write_bytes(data)
                elif data == b"" or closing_until is not None:
                    return
                if closing_until is not None and time.monotonic() > closing_until:
                    # somebody still writes as fast as we read; it is no child of this attempt any more
                    return
        finally:
            os.close(pipe_read)
            os.close(wake_read)
