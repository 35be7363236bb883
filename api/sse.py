"""Server-sent events: the wire format and the response."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

HEARTBEAT_S = 15.0
HEARTBEAT = b": still here\n\n"
RETRY = b"retry: 1000\n\n"


def message(data: Any, *, event: str | None = None, id: int | None = None) -> bytes:
    """One message; ``data`` goes as one line of JSON."""
    lines = []
    if id is not None:
        lines.append(f"id: {id}")
    if event is not None:
        lines.append(f"event: {event}")
    lines.append("data: " + json.dumps(data, separators=(",", ":"), allow_nan=False))
    return ("\n".join(lines) + "\n\n").encode()


def stream(messages: AsyncIterator[bytes]) -> StreamingResponse:
    """A response that sends messages as they come and is never buffered on the way."""
    return StreamingResponse(
        messages,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
