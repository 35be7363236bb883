"""Opaque keyset cursors: a place in an ordering, so that a page costs the same however deep it lies."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Query

from api.problems import invalid_parameter

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000

Limit = Annotated[
    int, Query(ge=1, le=MAX_LIMIT, description=f"Items per page, 1 to {MAX_LIMIT}", examples=[DEFAULT_LIMIT])
]
Cursor = Annotated[
    str | None, Query(max_length=2000, description="`next` of the page before; left out: the first page")
]


def encode(kind: str, values: Sequence[object]) -> str:
    """A cursor of the list ``kind`` that stands after the row with these key values."""
    text = json.dumps([kind, *values], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(kind: str, cursor: str | None, types: Sequence[type]) -> list[Any] | None:
    """The key values of a cursor; ``None`` for the first page. A cursor of another list gets 422."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        values = json.loads(base64.b64decode(padded.encode(), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError):
        values = None
    if not isinstance(values, list) or len(values) != len(types) + 1 or values[0] != kind:
        raise _bad(cursor)
    for value, wanted in zip(values[1:], types, strict=True):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = isinstance(value, str) and "\0" not in value if wanted is str else number
        if not fits or (number and not abs(value) < 2**62) or (wanted is int and not isinstance(value, int)):
            raise _bad(cursor)
        if isinstance(value, str) and not value.isprintable():
            raise _bad(cursor)
    return values[1:]


def page(
    kind: str, rows: list[dict[str, Any]], limit: int, key: Callable[[dict[str, Any]], Sequence[object]]
) -> tuple[list[dict[str, Any]], str | None]:
    """Cut ``limit + 1`` fetched rows to a page and the cursor of the next one."""
    if len(rows) <= limit:
        return rows, None
    rows = rows[:limit]
    return rows, encode(kind, key(rows[-1]))


def _bad(cursor: str) -> Exception:
    return invalid_parameter(
        "query", "cursor", f"{cursor[:40]!r} is not a cursor of this list; give `next` of a page of it"
    )
