"""Bring a database to a schema version: :func:`upgrade`, :func:`downgrade`, :func:`current`.

Each runs in one transaction, on SQLite as well, and two callers at once queue (``BEGIN IMMEDIATE``, or an
advisory lock on PostgreSQL): API, scheduler and node may all ask at their start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from farm.db.connect import Database
from farm.errors import Conflict

_FOLDER = Path(__file__).resolve().parents[2] / "migrations"
_LOCK = 0x57111F4A3E


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate the database at ``url`` up to ``revision``; does nothing when it is there already."""
    _locked(url, lambda config: command.upgrade(config, revision))


def downgrade(url: str, revision: str = "base") -> None:
    """Migrate the database at ``url`` down to ``revision``; ``base`` drops every table."""
    _locked(url, lambda config: command.downgrade(config, revision))


def current(url: str) -> str | None:
    """The revision that the database is at; ``None`` for one that was never migrated."""
    database = Database(url)
    try:
        with database.read() as conn:
            return MigrationContext.configure(conn).get_current_revision()
    finally:
        database.dispose()


def head() -> str:
    """The newest revision that this version of the farm knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def require_current(url: str) -> None:
    """Raise :class:`farm.errors.Conflict` when the database is not at :func:`head`."""
    found = current(url)
    if found != head():
        raise Conflict(
            f"the database is at schema {found or 'none'}, this version of the farm needs {head()}; "
            "migrate it by starting `farm api` or `farm up` of this version"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config


def _locked(url: str, action: Callable[[Config], None]) -> None:
    database = Database(url)
    try:
        with database.write() as conn:
            if not database.is_sqlite:
                conn.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            config = _config()
            config.attributes["connection"] = conn
            action(config)
    finally:
        database.dispose()
