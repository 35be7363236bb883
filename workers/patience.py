"""Waiting out a database that is away, busy, or that made us the victim of a deadlock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
import structlog
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from farm.db.connect import Database
from farm.settings import Settings

T = TypeVar("T")
log = structlog.get_logger(__name__)


def is_passing(error: BaseException) -> bool:
    """Whether the same statement may well succeed later: connection lost, lock not had, server starting."""
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout):
        return True
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated or isinstance(error, InternalError)
    )


def patiently(
    action: Callable[[], T],
    *,
    give_up: Callable[[], bool] = lambda: False,
    what: str = "database",
    first_wait_s: float = 0.05,
    most_wait_s: float = 1.0,
) -> T:
    """``action()``, again and again while the database is away, at growing intervals.

    ``give_up`` is asked before each new try (it may also raise); once it is true the last error is raised.
    """
    wait_s = first_wait_s
    while True:
        try:
            return action()
        except Exception as error:
            if not is_passing(error) or give_up():
                raise
            log.warning("the database is away; trying again", what=what, error=str(error)[:200])
            until = time.monotonic() + wait_s
            while (left := until - time.monotonic()) > 0:
                if give_up():
                    raise
                time.sleep(min(0.05, left))
            wait_s = min(most_wait_s, wait_s * 2)


def open_impatient(settings: Settings) -> Database:
    """A database whose statements wait for a lock only so long, and which notices a dead network."""
    url = sa.engine.make_url(settings.resolved_database_url)
    wait_ms = int(settings.lease_lock_wait_s * 1000)
    if url.get_backend_name() == "postgresql":
        url = url.update_query_dict(
            {
                "options": f"-c lock_timeout={wait_ms} -c statement_timeout={wait_ms * 2}",
                "tcp_user_timeout": str(wait_ms * 2),
                "keepalives_idle": "5",
                "keepalives_interval": "2",
                "keepalives_count": "3",
            }
        )
    db = Database(url.render_as_string(hide_password=False), pool_size=2)
    if db.is_sqlite:

        def impatient(dbapi_connection: Any, record: Any) -> None:
            with suppress(Exception):
                dbapi_connection.execute(f"PRAGMA busy_timeout = {wait_ms}")

        sa.event.listen(db.engine, "connect", impatient)
    return db
