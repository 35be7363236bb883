"""Attempt logs: ranges, the whole, and the live tail."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from api import auth, content, sse, visible
from api.auth import Principal, Viewer
from api.middleware.security_headers import CONTENT_POLICY
from api.problems import invalid_parameter
from api.route import FarmRoute
from api.services import Services, Use
from farm.attempt_logs import MAX_RANGE, LogRange, log_path
from farm.attempt_logs import read_range as read_file_range
from farm.errors import FarmError, NotFound

router = APIRouter(prefix="/v1", route_class=FarmRoute)

TAIL_POLL_S = 0.4
TAIL_CHUNK = 64 * 1024
RECHECK_S = 30.0
NUL_MARK = "\u2400"

Text: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {
            "text/plain": {"schema": {"type": "string"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
        "headers": {
            "X-Log-Size": {"description": "Bytes that the log has now", "schema": {"type": "integer"}},
            "X-Log-Next": {"description": "Where to read on", "schema": {"type": "integer"}},
        },
    },
    206: {"description": "The range of raw bytes that was asked for"},
    416: {"description": "The range lies outside"},
}
Stream: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


def read_range(folder: Path, attempt_id: str, start: int = 0, length: int = MAX_RANGE) -> LogRange:
    """A range of a log; an attempt that wrote nothing has an empty one."""
    try:
        return read_file_range(folder, attempt_id, start, length)
    except NotFound:
        return LogRange(b"", 0, 0)


@router.get("/attempts/{attempt_id}/log", tags=["logs"], responses=Text, response_class=Response)
def read_log(
    request: Request,
    attempt_id: str,
    use: Use,
    who: Viewer,
    offset: Annotated[
        int | None, Query(ge=-(2**50), le=2**50, description="First byte; negative: from the end")
    ] = None,
    length: Annotated[
        int | None, Query(ge=1, le=MAX_RANGE, description=f"Bytes at most, up to {MAX_RANGE}")
    ] = None,
    accept: Annotated[str, Header(description="application/octet-stream gives the bytes as they are")] = "",
) -> Response:
    """An attempt's log: all of it, or `length` bytes from `offset`.

    As text, broken UTF-8 becomes U+FFFD and NUL a visible mark. With `Accept: application/octet-stream` the
    bytes come as they are, and a Range header is honoured.
    """
    with use.db.read() as conn:
        visible.attempt(conn, who, attempt_id)
    folder = use.settings.logs
    raw = "application/octet-stream" in accept
    wanted = request.headers.get("range") if raw else None
    if wanted is not None:
        if offset is not None or length is not None:
            raise invalid_parameter("query", "offset", "give offset and length, or a Range header, not both")
        size = read_range(folder, attempt_id, 0, 0).size
        chosen = content.byte_range(wanted, size)
        if chosen is not None:
            part = read_range(folder, attempt_id, chosen[0], chosen[1] - chosen[0])
            headers = {"Content-Range": f"bytes {part.start}-{part.end - 1}/{part.size}"}
            return _answer(part.data, raw=True, status=206, size=part.size, following=part.end, extra=headers)
    if offset is None and length is None:
        return _whole(use, attempt_id, raw=raw)
    part = read_range(folder, attempt_id, offset or 0, length or MAX_RANGE)
    if raw:
        return _answer(part.data, raw=True, size=part.size, following=part.end)
    # a character cut by the end of this range belongs to the next one
    text, kept = _decode(part.data, more=part.end < part.size)
    return _answer(text.encode(), raw=False, size=part.size, following=part.end - kept)


def _answer(
    data: bytes,
    *,
    raw: bool,
    size: int,
    following: int,
    status: int = 200,
    extra: dict[str, str] | None = None,
) -> Response:
    headers = {
        "X-Log-Size": str(size),
        "X-Log-Next": str(following),
        "Content-Security-Policy": CONTENT_POLICY,
        **(extra or {}),
    }
    media_type = "application/octet-stream" if raw else "text/plain; charset=utf-8"
    return Response(data, status_code=status, headers=headers, media_type=media_type)


def _decode(data: bytes, *, more: bool) -> tuple[str, int]:
    """Text of some bytes, and how many at the end are the beginning of a character still to come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=not more)
    kept = len(decoder.getstate()[0]) if more else 0
    return text.replace("\0", NUL_MARK), kept


def _whole(use: Services, attempt_id: str, *, raw: bool) -> Response:
    folder = use.settings.logs
    size = read_range(folder, attempt_id, 0, 0).size

    def pieces() -> Iterator[bytes]:
        start = 0
        while start < size:
            part = read_range(folder, attempt_id, start, min(MAX_RANGE // 4, size - start))
            if not part.data:
                return
            if raw:
                yield part.data
                start = part.end
                continue
            text, kept = _decode(part.data, more=part.end < size)
            yield text.encode()
            start = part.end - kept

    headers = {
        "X-Log-Size": str(size),
        "X-Log-Next": str(size),
        "Content-Security-Policy": CONTENT_POLICY,
    }
    media_type = "application/octet-stream" if raw else "text/plain; charset=utf-8"
    return StreamingResponse(pieces(), headers=headers, media_type=media_type)


@router.get("/attempts/{attempt_id}/log/live", tags=["logs"], responses=Stream, response_class=Response)
async def follow_log(
    request: Request,
    attempt_id: str,
    use: Use,
    who: Viewer,
    offset: Annotated[int, Query(ge=-(2**50), le=2**50, description="Where to begin")] = 0,
    last_event_id: Annotated[
        str | None, Header(description="The last message's id, to go on after it")
    ] = None,
) -> Response:
    """The log as server-sent events while it grows.

    Each message has `{"text", "offset", "next"}` and as its id the byte to go on from; the message `end`
    comes when the attempt has ended and all was sent.
    """
    start = int(last_event_id) if last_event_id and last_event_id.isdigit() else offset
    start = min(start, 2**50)

    def look() -> bool:
        with use.db.read() as conn:
            return visible.attempt(conn, who, attempt_id)["ended_at"] is not None

    ended = await run_in_threadpool(look)
    messages = _tail(request, use, who, attempt_id, start, ended)
    return sse.stream(use.feed.admit(who.key_id, use.settings.max_streams, messages))


async def _tail(
    request: Request, use: Services, who: Principal, attempt_id: str, start: int, ended: bool
) -> AsyncGenerator[bytes]:
    feed = use.feed
    since_beat = since_check = 0.0
    yield sse.RETRY
    while not feed.closing:
        chunk = await feed.read(partial(_piece, use, attempt_id, start, final=ended))
        if chunk is not None:
            text, begin, start, more = chunk
            if text:
                since_beat = 0.0
                yield sse.message({"text": text, "offset": begin, "next": start}, id=start)
            if more:
                continue
        if ended:
            yield sse.message({"next": max(start, 0)}, event="end", id=max(start, 0))
            return
        await feed.wait(TAIL_POLL_S)
        since_beat += TAIL_POLL_S
        since_check += TAIL_POLL_S
        if since_check >= RECHECK_S:
            since_check = 0.0
            if not await still_allowed(request, use):
                return
        ended = await feed.read(lambda: _ended(use, who, attempt_id))
        if since_beat >= sse.HEARTBEAT_S:
            since_beat = 0.0
            yield sse.HEARTBEAT


def _ended(use: Services, who: Principal, attempt_id: str) -> bool:
    try:
        with use.db.read() as conn:
            return visible.attempt(conn, who, attempt_id)["ended_at"] is not None
    except NotFound:
        return True  # the job was deleted


def _piece(use: Services, attempt_id: str, start: int, *, final: bool) -> tuple[str, int, int, bool] | None:
    """Text, where it began, where the next piece begins, and whether there is more already."""
    if not log_path(use.settings.logs, attempt_id).exists():
        return None
    part = read_range(use.settings.logs, attempt_id, start, TAIL_CHUNK)
    more = part.end < part.size
    text, kept = _decode(part.data, more=more or not final)
    return text, part.start, part.end - kept, more


async def still_allowed(request: Request, use: Services) -> bool:
    """Whether the caller of a long stream still has a key or session that counts."""
    try:
        await use.feed.read(lambda: auth.authenticate(request))
    except FarmError:
        return False
    return True
