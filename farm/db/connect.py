"""Connections: SQLite (WAL, ``BEGIN IMMEDIATE``) or PostgreSQL, and the database's own clock."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

BUSY_TIMEOUT_MS = 30_000
_TRY_MS = 20
_BETWEEN_TRIES_S = 0.001


class db_now(GenericFunction[float]):
    """Seconds since the epoch on the database's clock, moving within a transaction."""

    type = sa.Double()
    inherit_cache = True


@compiles(db_now, "sqlite")
def _sqlite_now(element: Any, compiler: Any, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(db_now, "postgresql")
def _postgresql_now(element: Any, compiler: Any, **kw: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class Gate(Protocol):
    """What a process passes before each transaction that writes, and leaves after it; from any thread."""

    def enter(self) -> None:
        """Begin to write, perhaps after a wait."""

    def leave(self) -> None:
        """The transaction is over, or did not begin."""


class Database:
    """An engine and the two ways of using it: :meth:`write` and :meth:`read`."""

    def __init__(self, url: str, *, pool_size: int = 5, gate: Gate | None = None) -> None:
        self._gate = gate
        self.url = sa.engine.make_url(url)
        if self.url.get_backend_name() == "postgresql" and self.url.drivername == "postgresql":
            self.url = self.url.set(drivername="postgresql+psycopg")
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {}
        if self.is_sqlite:
            if self.url.database:
                Path(self.url.database).parent.mkdir(parents=True, exist_ok=True)
            options["connect_args"] = {"timeout": BUSY_TIMEOUT_MS / 1000, "check_same_thread": False}
        else:
            options |= {"pool_size": pool_size, "max_overflow": 10, "pool_pre_ping": True}
            options["connect_args"] = {"connect_timeout": 5}
        self.engine = sa.create_engine(self.url, **options)
        if self.is_sqlite:
            sa.event.listen(self.engine, "connect", _prepare_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction that writes; committed at the end, rolled back on any exception.

        On SQLite it begins IMMEDIATE, so that two writers queue instead of failing half-way.
        """
        with self.engine.connect() as connection:
            connection = connection.execution_options(farm_write=True)
            if self._gate is None:
                with connection.begin():
                    yield connection
                return
            transaction = self._begin_behind(self._gate, connection)
            try:
                with transaction:
                    yield connection
            finally:
                self._gate.leave()

    def _begin_behind(self, gate: Gate, connection: sa.Connection) -> sa.RootTransaction:
        """Begin with the gate passed. Whoever waits for SQLite's lock stands before the gate meanwhile."""
        until = time.monotonic() + BUSY_TIMEOUT_MS / 1000
        while True:
            gate.enter()
            try:
                with self._short_wait(connection):
                    return connection.begin()
            except BaseException as error:
                gate.leave()
                if not _is_locked(error) or time.monotonic() > until:
                    raise
            time.sleep(_BETWEEN_TRIES_S)

    @contextmanager
    def _short_wait(self, connection: sa.Connection) -> Iterator[None]:
        driver: Any = connection.connection.dbapi_connection
        if not self.is_sqlite:
            yield
            return
        driver.execute(f"PRAGMA busy_timeout = {_TRY_MS}")
        try:
            yield
        finally:
            driver.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A snapshot that only reads."""
        with self.engine.connect() as connection, connection.begin():
            yield connection

    def dispose(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def _prepare_sqlite(dbapi_connection: Any, record: Any) -> None:
    # the driver must not begin transactions by itself: _begin_sqlite does
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA temp_store = MEMORY")
    cursor.close()


def _is_locked(error: BaseException) -> bool:
    """Whether another process has SQLite's lock."""
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get("farm_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
