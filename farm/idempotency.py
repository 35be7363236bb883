"""Idempotency keys: the same request sent again gets the answer that the first one got.

A request begins by claiming its key (one short transaction) and ends by keeping its answer, if it can in
the transaction that did the work. A request that failed gives its key back: it changed nothing, so it may be
mended and sent again. A claim whose process died is taken over after :data:`STALE_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from farm.db import tables as t
from farm.db.connect import db_now
from farm.errors import Conflict, IdempotencyMismatch, InvalidInput

MAX_KEY: Final = 255
STALE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Claim:
    """One request under an idempotency key of one API key."""

    key_id: str
    idempotency_key: str
    method: str
    path: str
    body_sha256: str


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """An answer given before: status and what the API chose to keep of it."""

    status: int
    response: Any


def begin(conn: sa.Connection, claim: Claim, keep_s: float) -> KeptAnswer | None:
    """Claim the key; the kept answer when this request was answered before.

    Raises :class:`farm.errors.IdempotencyMismatch` when the key was used with another request,
    :class:`farm.errors.Conflict` while the first one is still being answered, and
    :class:`farm.errors.InvalidInput` for a key that is empty, too long or not printable ASCII.
    """
    key = claim.idempotency_key
    if not 1 <= len(key) <= MAX_KEY or not key.isascii() or not key.isprintable():
        raise InvalidInput(f"Idempotency-Key: give 1 to {MAX_KEY} printable ASCII characters")
    table = t.idempotency.c
    now = float(conn.scalar(sa.select(db_now())) or 0.0)
    mine = sa.and_(table.key_id == claim.key_id, table.idempotency_key == key)
    over = sa.or_(
        table.created_at < now - keep_s, table.status.is_(None) & (table.created_at < now - STALE_S)
    )
    conn.execute(sa.delete(t.idempotency).where(mine, over))
    values = {
        "key_id": claim.key_id,
        "idempotency_key": key,
        "method": claim.method,
        "path": claim.path[:500],
        "body_sha256": claim.body_sha256,
        "created_at": now,
    }
    if _insert(conn, values):
        return None
    row = conn.execute(sa.select(t.idempotency).where(mine)).mappings().first()
    if row is None:
        raise Conflict("this Idempotency-Key is being used by another request; try again in a moment")
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
        raise Conflict("the first request with this Idempotency-Key is still being answered; try again")
    return KeptAnswer(row["status"], row["response"])


def _insert(conn: sa.Connection, values: dict[str, Any]) -> bool:
    table = t.idempotency
    insert = pg_insert(table) if conn.dialect.name == "postgresql" else sqlite_insert(table)
    # by what it returns: the count of rows is not told for every driver
    made = conn.execute(insert.values(**values).on_conflict_do_nothing().returning(table.c.key_id))
    return made.first() is not None


def keep(conn: sa.Connection, claim: Claim, status: int, response: Any) -> None:
    """Keep the answer of a claimed request."""
    conn.execute(_row(sa.update(t.idempotency), claim).values(status=status, response=response))


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
        table.body_sha256 == claim.body_sha256,
    )
