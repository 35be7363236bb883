"""Whether this process can serve: database, broker and store, each really used."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

import sqlalchemy as sa

from api.models.upkeep import Check, Readiness
from api.services import Services
from farm.db import tables as t
from farm.errors import FarmError

KEPT_S = 1.0
"""An answer is used again for this long: the question costs no key, so it must be cheap."""


class ReadinessProbe:
    """Asks the three, at most once in :data:`KEPT_S`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[float, Readiness] | None = None

    def look(self, services: Services) -> Readiness:
        """The state of the three now (or a moment ago)."""
        with self._lock:
            now = time.monotonic()
            if self._last is not None and now - self._last[0] < KEPT_S:
                return self._last[1]
            checks = {
                "database": _try(lambda: _database(services)),
                "broker": _try(lambda: _broker(services)),
                "store": _try(lambda: _store(services)),
            }
            ready = all(check.ok for check in checks.values())
            result = Readiness(status="ready" if ready else "not ready", checks=checks)
            self._last = (time.monotonic(), result)
            return result


def _try(check: Callable[[], str]) -> Check:
    began = time.perf_counter()
    try:
        detail, ok = check(), True
    except FarmError as error:
        detail, ok = error.message, False
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not ready
        # the kind alone: the question costs no key, and messages tell addresses
        detail, ok = f"failed ({type(error).__name__})", False
    return Check(ok=ok, detail=detail, seconds=round(time.perf_counter() - began, 6))


def _database(services: Services) -> str:
    with services.db.read() as conn:
        # a table of ours, so that a database that was never migrated is not ready
        conn.execute(sa.select(t.leaders.c.role).limit(1)).all()
    return "answers"


def _broker(services: Services) -> str:
    if not services.wakes.wake("readiness"):
        raise RuntimeError("the broker did not answer")
    return "answers"


def _store(services: Services) -> str:
    probe = b"stillframe readiness probe " + secrets.token_bytes(8).hex().encode()
    sha256, size = services.store.put_stream([probe])
    with services.store.open(sha256) as file:
        if file.read() != probe or size != len(probe):
            raise RuntimeError("the store gave back other bytes")
    services.store.delete(sha256)
    return "stores and gives back"
