"""The child's loop: one JSON request a line in, JSON events a line out.

Requests: ``load``, ``set``, ``frame``, ``develop``, ``end``. Answers: ``loaded``, ``ready``, ``progress``,
``frame``, ``developed``, ``error``. Blender and its libraries print to file descriptor 1 whatever they like,
so the protocol moves to a descriptor of its own first; what was printed goes to stderr, the attempt's log,
after each request.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import time
import traceback
from typing import Any

_MOST_PRINTED = 1 << 20


class Protocol:
    """Line-wise JSON on private copies of the first two descriptors."""

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0), "r", encoding="utf-8")
        self._out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Blender prints dozens of lines a frame; one by one through a pipe they cost more than they tell
        self._libc = ctypes.CDLL(None)
        self._printed = os.memfd_create("printed")
        os.dup2(self._printed, 1)

    def read(self) -> dict[str, Any] | None:
        """The next request, or ``None`` when the parent has gone."""
        line = self._in.readline()
        return json.loads(line) if line else None

    def say_printed(self) -> None:
        """Pass on what was printed to stdout, without the running account of a render."""
        sys.stdout.flush()
        self._libc.fflush(None)
        size = os.lseek(self._printed, 0, os.SEEK_CUR)
        text = os.pread(self._printed, min(size, _MOST_PRINTED), max(0, size - _MOST_PRINTED))
        os.ftruncate(self._printed, 0)
        os.lseek(self._printed, 0, os.SEEK_SET)
        lines = text.splitlines(keepends=True)
        kept = [line for line in lines if line.strip() and not line.startswith(b"Fra:")]
        sys.stderr.buffer.write(b"".join(kept))
        sys.stderr.flush()

    def send(self, event: str, **fields: Any) -> None:
        """One event."""
        view = memoryview((json.dumps({"event": event, **fields}, allow_nan=False) + "\n").encode())
        while view:
            view = view[os.write(self._out, view) :]


def main() -> None:
    """Serve requests until ``end`` or the end of stdin; then leave without running any exit handler."""
    code = 0
    try:
        _serve(Protocol())
    except BaseException:  # noqa: BLE001 - whatever ends this process must not meet Blender's exit handlers
        traceback.print_exc()
        code = 1
    # some of Blender's libraries hang or crash in their exit handlers
    sys.stderr.flush()
    os._exit(code)


def _serve(protocol: Protocol) -> None:
    began = time.monotonic()
    import bpy

    from .session import Session

    session = Session(bpy, protocol.send)
    up = time.monotonic() - began
    while (request := protocol.read()) is not None:
        op = request.pop("op")
        if op == "end":
            return
        number = request.get("number")
        try:
            try:
                answer = session.handle(op, request)
            finally:
                protocol.say_printed()
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            protocol.send(ANSWERS[op], peak_rss=peak, up_s=up, **answer)
        except Exception as error:  # noqa: BLE001 - every fault of a request goes back to the parent
            kind = getattr(error, "kind", "")
            if isinstance(error, MemoryError) or "bad_alloc" in str(error):
                kind = "memory"
            if not kind:
                traceback.print_exc()
            words = str(error) if kind else f"{type(error).__name__}: {error}"
            protocol.send("error", kind=kind or "failed", message=words, frame=number)


ANSWERS = {"load": "loaded", "set": "ready", "frame": "frame", "develop": "developed"}
