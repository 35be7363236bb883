"""The database fixtures and :class:`farm.db.connect.Database` itself, on both databases."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from farm.db.connect import Database, db_now
from farm.db.tables import users


def _add(conn: sa.Connection, name: str) -> None:
    conn.execute(users.insert().values(id=f"user_{name}", name=name, created_at=db_now()))


def test_a_failed_write_leaves_nothing(db: Database) -> None:
    with pytest.raises(RuntimeError, match="half-way"), db.write() as conn:
        _add(conn, "ada")
        raise RuntimeError("half-way")
    with db.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(users)) == 0


def test_the_clock_is_the_databases_and_counts_seconds_since_the_epoch(db: Database) -> None:
    import time

    with db.read() as conn:
        first = conn.scalar(sa.select(db_now()))
    assert first is not None
    assert abs(first - time.time()) < 60


def test_concurrent_writers_queue_instead_of_failing(db: Database) -> None:
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for index in range(10):
                with db.write() as conn:
                    # reads first, so that without BEGIN IMMEDIATE SQLite could not upgrade its lock
                    conn.scalar(sa.select(sa.func.count()).select_from(users))
                    _add(conn, f"{number}-{index}")
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    with db.read() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(users)) == 40


def test_redis_answers_and_is_empty(redis_url: str) -> None:
    import redis

    client = redis.Redis.from_url(redis_url)
    assert client.dbsize() == 0
