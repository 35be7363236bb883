"""Browser sessions: a key exchanged once for a cookie. The cookie's token is kept as a hash alone."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import db_now
from farm.ids import new_id

LIFETIME_S = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session just opened; ``token`` goes into the cookie and is kept nowhere."""

    id: str
    token: str
    csrf: str
    expires_at: float


def open_session(conn: sa.Connection, key_id: str, lifetime_s: float = LIFETIME_S) -> NewSession:
    """Open a session for a key, and drop those that are over."""
    token, csrf, session_id = secrets.token_urlsafe(32), secrets.token_urlsafe(32), new_id("sess")
    now: float = conn.scalar(sa.select(db_now())) or 0.0
    conn.execute(sa.delete(t.web_sessions).where(t.web_sessions.c.expires_at < now))
    conn.execute(
        sa.insert(t.web_sessions).values(
            id=session_id,
            hmac=_fingerprint(token),
            csrf=csrf,
            key_id=key_id,
            created_at=now,
            expires_at=now + lifetime_s,
        )
    )
    return NewSession(session_id, token, csrf, now + lifetime_s)


def find_session(conn: sa.Connection, token: str) -> dict[str, Any] | None:
    """The living session of a token with its key's columns; ``None`` when it or its key is over."""
    sessions, keys = t.web_sessions.c, t.keys.c
    query = (
        sa.select(
            sessions.id,
            sessions.csrf,
            sessions.expires_at,
            keys.id.label("key_id"),
            keys.scopes,
            keys.user_id,
            keys.project_id,
        )
        .join(t.keys, keys.id == sessions.key_id)
        .where(
            sessions.hmac == _fingerprint(token), sessions.expires_at > db_now(), keys.revoked_at.is_(None)
        )
    )
    found = conn.execute(query).mappings().first()
    return dict(found) if found is not None else None


def close_session(conn: sa.Connection, session_id: str) -> None:
    """End a session; one that is over already stays so."""
    conn.execute(sa.delete(t.web_sessions).where(t.web_sessions.c.id == session_id))


def _fingerprint(token: str) -> str:
    # 256 random bits need neither salt nor stretching
    return hashlib.sha256(token.encode()).hexdigest()
