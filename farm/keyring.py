"""Keys: made here, shown once, kept as an HMAC under the farm's own secret.

The secret of the HMAC (the pepper) lies in the data folder, which every API process of a farm shares, apart
from the database: a stolen database alone neither gives keys nor lets guesses be tried.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import db_now
from farm.errors import Forbidden, InvalidInput, NotFound
from farm.ids import new_id
from farm.settings import Settings

SCOPES: Final = ("read", "submit", "operate", "admin", "worker")
PREFIX: Final = "sfk_"
USED_EVERY_S: Final = 300.0
"""How exact ``used_at`` is: a key in steady use is written to this often, not with each request."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A living key. ``stale`` says that its ``used_at`` should be written anew."""

    id: str
    name: str
    scopes: frozenset[str]
    user_id: str
    project_id: str | None
    stale: bool


class Keyring:
    """Makes and checks keys with one pepper."""

    def __init__(self, pepper: bytes) -> None:
        if len(pepper) < 32:
            raise ValueError("the pepper is shorter than 32 bytes")
        self._pepper = pepper

    @classmethod
    def open(cls, settings: Settings) -> Keyring:
        """The keyring of a farm, from its file (by default in the data folder), which is made if need be.

        Raises :class:`farm.errors.Forbidden` when others may read that file.
        """
        return cls(_read_or_make(settings.keyring or settings.data / "keyring.secret"))

    def fingerprint(self, secret: str) -> str:
        """What is kept of a secret."""
        return hmac.new(self._pepper, secret.encode(), hashlib.sha256).hexdigest()

    def make_key(
        self,
        conn: sa.Connection,
        *,
        name: str,
        scopes: Sequence[str],
        user_id: str,
        project_id: str | None = None,
    ) -> tuple[str, str]:
        """Make a key; gives its secret, which is kept nowhere, and its id.

        Raises :class:`farm.errors.InvalidInput` for a scope that there is not.
        """
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            raise InvalidInput(f"scopes {unknown or 'none'}: choose among {', '.join(SCOPES)}")
        secret = PREFIX + secrets.token_urlsafe(32)
        key_id = new_id("key")
        conn.execute(
            sa.insert(t.keys).values(
                id=key_id,
                name=name,
                hmac=self.fingerprint(secret),
                hint=secret[-4:],
                scopes=sorted(set(scopes)),
                user_id=user_id,
                project_id=project_id,
                created_at=db_now(),
            )
        )
        return secret, key_id

    def find(self, conn: sa.Connection, secret: str) -> KeyRow | None:
        """The living key of a secret; ``None`` for one that is unknown or revoked."""
        keys = t.keys.c
        query = sa.select(t.keys, db_now().label("now")).where(
            keys.hmac == self.fingerprint(secret), keys.revoked_at.is_(None)
        )
        row = conn.execute(query).mappings().first()
        if row is None:
            return None
        stale = row["used_at"] is None or row["now"] - row["used_at"] > USED_EVERY_S
        return KeyRow(
            row["id"], row["name"], frozenset(row["scopes"]), row["user_id"], row["project_id"], stale
        )


def note_use(conn: sa.Connection, key_id: str) -> None:
    """Write when a key was used last."""
    conn.execute(sa.update(t.keys).where(t.keys.c.id == key_id).values(used_at=db_now()))


def revoke_key(conn: sa.Connection, key_id: str) -> None:
    """End a key and the sessions that it opened; one that has ended stays so.

    Raises :class:`farm.errors.NotFound`.
    """
    found = conn.scalar(sa.select(t.keys.c.id).where(t.keys.c.id == key_id))
    if found is None:
        raise NotFound(f"there is no key {key_id!r}")
    conn.execute(sa.delete(t.web_sessions).where(t.web_sessions.c.key_id == key_id))
    conn.execute(
        sa.update(t.keys)
        .where(t.keys.c.id == key_id, t.keys.c.revoked_at.is_(None))
        .values(revoked_at=db_now())
    )


def first_key(conn: sa.Connection, keyring: Keyring, *, user: str, project: str = "default") -> str | None:
    """On a farm without a living key: make user, project and an admin key, and give its secret.

    ``None`` when the farm has a key already. Call it inside a write transaction.
    """
    if conn.scalar(sa.select(t.keys.c.id).where(t.keys.c.revoked_at.is_(None)).limit(1)) is not None:
        return None
    ids: dict[str, Any] = {}
    for table, prefix, name in ((t.users, "user", user), (t.projects, "proj", project)):
        found = conn.scalar(sa.select(table.c.id).where(table.c.name == name))
        if found is None:
            found = new_id(prefix)
            conn.execute(sa.insert(table).values(id=found, name=name, created_at=db_now()))
        ids[prefix] = found
    secret, _ = keyring.make_key(conn, name="first key", scopes=["admin"], user_id=ids["user"])
    return secret


def _read_or_make(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, secrets.token_hex(32).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    # link, not rename: of two processes that start at once, the first one's secret stands
    with contextlib.suppress(FileExistsError):
        os.link(partial, path)
    partial.unlink()
    return _read(path)


def _read(path: Path) -> bytes:
    mode = path.stat().st_mode
    if mode & 0o077:
        raise Forbidden(f"{path} can be read by others, and with it keys can be guessed: chmod 600 {path}")
    return path.read_bytes().strip()
