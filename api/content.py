"""Stored bytes as responses: ranges (so that a film plays in a page), ETags, safe headers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from api.middleware.security_headers import CONTENT_POLICY
from api.problems import HttpProblem
from farm.stores import Store

INLINE = frozenset(
    {
        "image/png", "image/jpeg", "image/webp", "video/mp4", "video/webm", "text/plain",
        "application/json", "audio/mp4",
    }
)  # fmt: skip
"""Media types that a browser may show in place; everything else is saved. None of them runs scripts."""

MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "exr": "image/x-exr"}
_RANGE = re.compile(r"^bytes=(\d{0,18})-(\d{0,18})$")


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Start and end (exclusive) that a Range header asks for; ``None``: the whole.

    Several ranges, other units and nonsense are ignored, as RFC 9110 allows. Raises a 416 for a range that
    begins past the end.
    """
    match = _RANGE.match(header.replace(" ", "")) if header else None
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
        unsatisfiable = int(last) == 0 or size == 0
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
        unsatisfiable = start >= size
    if unsatisfiable:
        raise HttpProblem(
            416,
            "range-not-satisfiable",
            f"the range {header} lies outside the {size} bytes there are",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, end


def disposition(name: str, *, inline: bool) -> str:
    """A Content-Disposition that no file name can break out of (RFC 6266)."""
    kind = "inline" if inline else "attachment"
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)[:150] or "file"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name[:200], safe='')}"


def serve(
    request: Request,
    store: Store,
    sha256: str,
    *,
    name: str,
    media_type: str = "application/octet-stream",
    download: bool = False,
) -> Response:
    """The stored bytes, or the range of them that was asked for. Blocking until the first byte.

    Raises :class:`farm.errors.NotFound` when the store lacks them.
    """
    size = store.size(sha256)
    etag = f'"{sha256}"'
    inline = media_type in INLINE and not download
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=86400, immutable",
        "Content-Security-Policy": CONTENT_POLICY,
        "Content-Disposition": disposition(name, inline=inline),
    }
    if matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    wanted = request.headers.get("range")
    if_range = request.headers.get("if-range")
    chosen = byte_range(wanted, size) if if_range is None or if_range == etag else None
    start, end = chosen or (0, size)
    if chosen is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    headers["Content-Length"] = str(end - start)
    status = 206 if chosen is not None else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=media_type)
    pieces: Iterator[bytes] = store.stream(sha256, start, end)
    return StreamingResponse(pieces, status_code=status, headers=headers, media_type=media_type)


def matches(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match names this ETag (weak comparison)."""
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags
