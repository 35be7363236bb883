"""Fixtures of the chaos tests: settings of a farm on real servers, and one farm that tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.settings import Settings
from tests.chaos.farm_under_test import FarmUnderTest
from tests.conftest import short_settings
from tests.servers import PostgresServer, RedisServer


@pytest.fixture
def chaos(settings: Settings, sqlite_url: str, redis_url: str) -> Settings:
    """Settings of a farm on SQLite with a Redis that the whole test session shares."""
    return settings.model_copy(update={"database_url": sqlite_url, "broker_url": redis_url})


@pytest.fixture
def chaos_on_both(settings: Settings, db_url: str, redis_url: str) -> Settings:
    """The same, once on SQLite and once on PostgreSQL."""
    return settings.model_copy(update={"database_url": db_url, "broker_url": redis_url})


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[FarmUnderTest]:
    """A running farm with one slot, shared by the tests of a module that leave it as they found it."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copyfile(_sqlite_template, folder / "farm.sqlite3")
    redis = RedisServer()
    redis.start()
    try:
        settings = short_settings(folder / "farm").model_copy(
            update={"database_url": f"sqlite:///{folder / 'farm.sqlite3'}", "broker_url": redis.url}
        )
        with FarmUnderTest(settings) as running:
            yield running
    finally:
        redis.stop()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A broker that the test may kill."""
    server = RedisServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that the tests of a module may halt and start."""
    server = PostgresServer(durable=True)
    server.start()
    yield server
    server.stop()
