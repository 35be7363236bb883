"""Idempotency keys: the same request sent again gets the answer that the first one got.

A request begins by claiming its key (one short transaction) and ends by keeping its answer, if it can in
the transaction that did the work. A request that failed gives its key back: it changed nothing, so it may be
mended and sent again.

While a request is answered its process renews the claim every :data:`RENEW_S`; one that was not renewed for
:data:`STALE_S` belongs to a process that died, and is taken over. Should that process only have been slow,
what it does counts no more: :func:`keep` raises in the transaction that would have done it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa
import uuid_utils
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from farm.db import tables as t
from farm.db.connect import db_now
from farm.errors import IdempotencyMismatch, InvalidInput, StillAnswering

MAX_KEY: Final = 255
RENEW_S: Final = 2.0
STALE_S: Final = 8.0
"""Long enough for a renewal that waits for the lock of a big submit on SQLite, and to miss two."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One request under an idempotency key of one API key."""

    key_id: str
    idempotency_key: str
    method: str
    path: str
    body_sha256: str
    token: str = field(default_factory=lambda: uuid_utils.uuid7().hex)
    """Names this request among all that come with the key."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer given before: status and what the API chose to keep of it."""

    status: int
    response: Any


def begin(conn: sa.Connection, claim: Claim, keep_s: float) -> KeptAnswer | None:
    """Claim the key; the kept answer when this request was answered before.

    Raises :class:`farm.errors.IdempotencyMismatch` when the key was used with another request,
    :class:`farm.errors.StillAnswering` while the first one is still being answered, and
    :class:`farm.errors.InvalidInput` for a key that is empty, too long or not printable ASCII.
    """
    key = claim.idempotency_key
    if not 1 <= len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        raise InvalidInput(f"Idempotency-Key: give 1 to {MAX_KEY} printable ASCII characters")
    table = t.idempotency.c
    now = float(conn.scalar(sa.select(db_now())) or 0.0)
    mine = sa.and_(table.key_id == claim.key_id, table.idempotency_key == key)
    over = sa.or_(
        table.created_at < now - keep_s,
        table.status.is_(None) & (sa.func.coalesce(table.seen_at, table.created_at) < now - STALE_S),
    )
    conn.execute(sa.delete(t.idempotency).where(mine, over))
    values = {
        "key_id": claim.key_id,
        "idempotency_key": key,
        "method": claim.method,
        "path": claim.path[:500],
        "body_sha256": claim.body_sha256,
        "created_at": now,
        "claim": claim.token,
        "seen_at": now,
    }
    if _insert(conn, values):
        return None
    row = conn.execute(sa.select(t.idempotency).where(mine)).mappings().first()
    if row is None:
        raise StillAnswering("this Idempotency-Key is being used by another request; try again in a moment")
    if (row["method"], row["path"], row["body_sha256"]) != (
        claim.method,
        claim.path[:500],
        claim.body_sha256,
    ):
        raise IdempotencyMismatch(
            f"Idempotency-Key {key[:60]!r} was used before with another request ({row['method']} "
            f"{row['path']}, another body); use a new key for a new request"
        )
    if row["status"] is None:
        raise StillAnswering(
            "the first request with this Idempotency-Key is still being answered (or its process died less "
            f"than {STALE_S:g} s ago); send it again in a moment"
        )
    return KeptAnswer(row["status"], row["response"])


def _insert(conn: sa.Connection, values: dict[str, Any]) -> bool:
    table = t.idempotency
    insert = pg_insert(table) if conn.dialect.name == "postgresql" else sqlite_insert(table)
    # by what it returns: the count of rows is not told for every driver
    made = conn.execute(insert.values(**values).on_conflict_do_nothing().returning(table.c.key_id))
    return made.first() is not None


def keep(conn: sa.Connection, claim: Claim, status: int, response: Any) -> None:
    """Keep the answer of a claimed request.

    Raises :class:`farm.errors.StillAnswering` when the claim was taken over: the caller's transaction, and
    with it what the request did, must go.
    """
    kept = _row(sa.update(t.idempotency), claim).values(status=status, response=response)
    # by what it returns: the count of rows is not told for every driver
    if conn.execute(kept.returning(t.idempotency.c.key_id)).first() is None:
        raise StillAnswering("this request was not heard of for too long, and another has taken its place")


def renew(conn: sa.Connection, claim: Claim) -> None:
    """Say that the claimed request is still being answered."""
    conn.execute(_row(sa.update(t.idempotency), claim).values(seen_at=db_now()))


def release(conn: sa.Connection, claim: Claim) -> None:
    """Give the key of a failed request back; an answer that was kept stays."""
    conn.execute(_row(sa.delete(t.idempotency), claim).where(t.idempotency.c.status.is_(None)))


def forget_before(conn: sa.Connection, at: float) -> int:
    """Delete what was kept before ``at`` (seconds since the epoch); returns how many rows."""
    return conn.execute(sa.delete(t.idempotency).where(t.idempotency.c.created_at < at)).rowcount


def _row(statement: Any, claim: Claim) -> Any:
    table = t.idempotency.c
    return statement.where(
        table.key_id == claim.key_id,
        table.idempotency_key == claim.idempotency_key,
        table.claim == claim.token,
    )
