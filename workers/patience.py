"""Waiting out a database that is away, busy, or that made us the victim of a deadlock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

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
