"""The child that holds Mitsuba: ``python -m jobs.render.mitsuba.child``. JSON lines in, JSON lines out.

Requests (one object a line on stdin): ``load``, ``poses``, ``frame``, ``end``. Answers (on the descriptor
that was stdout; whatever libraries print goes to stderr): ``ready``, ``loaded``, ``poses``, ``progress``,
``frame``, ``error``. It never imports torch, and ends with ``os._exit``, because renderers may hang or crash
in their destructors.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, Any


class Answers:
    """Writes answers; progress may come from a renderer's thread."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        """One line."""
        line = json.dumps({"event": event, **fields})
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


def main() -> None:
    """Serve requests until ``end`` or the end of stdin."""
    requests, answers = _private_pipes()
    code = 0
    try:
        _serve(requests, answers)
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:  # noqa: BLE001  the last word of a process that is about to end
        traceback.print_exc()
        answers.send("error", kind="failed", message=f"{type(error).__name__}: {error}", frame=None)
        code = 1
    sys.stderr.flush()
    os._exit(code)


def _private_pipes() -> tuple[IO[str], Answers]:
    """Take stdin and stdout for the protocol; what prints to stdout from now on lands on stderr."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return requests, answers


def _serve(requests: IO[str], answers: Answers) -> None:
    held: Any = None
    for line in requests:
        request = json.loads(line)
        op = request["op"]
        if op == "end":
            return
        number = request.get("number")
        try:
            if op == "load":
                began = time.monotonic()
                from jobs.render.mitsuba.scene import load

                held = load(request, answers)
                answers.send("loaded", seconds=time.monotonic() - began, **held.facts())
            elif op == "poses":
                answers.send("poses", cameras=[held.camera(n) for n in request["numbers"]])
            elif op == "frame":
                started = time.time()
                began = time.monotonic()
                made = held.render(int(number), Path(request["folder"]))
                usage = resource.getrusage(resource.RUSAGE_SELF)
                answers.send(
                    "frame",
                    number=number,
                    started_at=started,
                    seconds=time.monotonic() - began,
                    peak_rss=usage.ru_maxrss * 1024,
                    **made,
                )
        except Exception as error:  # noqa: BLE001  every fault of a scene is told to the parent in its words
            kind, message = _classify(error, op)
            if kind == "failed":
                traceback.print_exc()
            answers.send("error", kind=kind, message=message, frame=number)


def _classify(error: Exception, op: str) -> tuple[str, str]:
    """Which error of the farm this is, and the words for it."""
    from farm.errors import DeviceUnavailable, EscapedPath, NotInstalled, PermanentFailure, TaskFailed

    message = str(error).strip() or type(error).__name__
    if isinstance(error, MemoryError) or "bad_alloc" in message or "Cannot allocate memory" in message:
        return "memory", message
    for kind, cls in (
        ("escaped", EscapedPath),
        ("permanent", PermanentFailure),
        ("device", DeviceUnavailable),
        ("not_installed", NotInstalled),
        ("failed", TaskFailed),
    ):
        if isinstance(error, cls):
            return kind, message
    if isinstance(error, ModuleNotFoundError):
        return "not_installed", f"{message} on this node: pip install 'stillframe[render]'"
    # what the renderer says against a scene while loading it will be said again at every retry
    return ("permanent" if op == "load" else "failed"), message


if __name__ == "__main__":
    main()
