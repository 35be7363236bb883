"""The child's loop: one JSON request a line in, JSON events and one answer a line out.

Requests are ``{"id": 1, "do": "open", ...}``; answers ``{"id": 1, "ok": {...}}`` or
``{"id": 1, "error": {"type": "...", "message": "..."}}``; in between come ``{"event": "..."}`` lines.
Blender and its libraries print to file descriptor 1 whatever they like, so the protocol moves to a
descriptor of its own first and everything else goes to stderr, which is the attempt's log.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from typing import Any


class Protocol:
    """Line-wise JSON on private copies of the first two descriptors."""

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0), "r", encoding="utf-8")
        self._out = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)

    def read(self) -> dict[str, Any] | None:
        """The next request, or ``None`` when the parent has gone."""
        line = self._in.readline()
        return json.loads(line) if line else None

    def write(self, message: dict[str, Any]) -> None:
        """Send one message."""
        os.write(self._out, (json.dumps(message, allow_nan=False) + "\n").encode())


def main() -> None:
    """Serve requests until the parent closes the pipe; then leave without running any exit handler."""
    protocol = Protocol()
    began = time.monotonic()
    import bpy

    from .render import Session

    session = Session(bpy, protocol.write)
    protocol.write(
        {
            "event": "up",
            "blender": bpy.app.version_string,
            "seconds": time.monotonic() - began,
            "pid": os.getpid(),
        }
    )
    while (request := protocol.read()) is not None:
        number = request.pop("id", 0)
        action = request.pop("do", "")
        try:
            answer = session.handle(action, request)
            answer["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            protocol.write({"id": number, "ok": answer})
        except Exception as error:  # noqa: BLE001 - every fault of a request goes back to the parent
            traceback.print_exc()
            kind = getattr(error, "kind", type(error).__name__)
            protocol.write({"id": number, "error": {"type": kind, "message": str(error)}})
        if action == "quit":
            break
    # some of Blender's libraries hang or crash in their exit handlers
    sys.stderr.flush()
    os._exit(0)
