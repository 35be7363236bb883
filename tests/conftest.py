"""Fixtures that every suite shares: real SQLite and PostgreSQL databases, a real Redis, short settings.

``FARM_TEST_DATABASES=sqlite`` (or ``postgres``) restricts the databases; by default tests that take ``db``
run on both, and fail where PostgreSQL's programs are missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from farm.db import migrate
from farm.db.connect import Database
from farm.db.tables import metadata
from farm.settings import Settings
from farm.settings import settings as read_settings
from tests.servers import PostgresServer, RedisServer

DATABASES = [
    name.strip()
    for name in os.environ.get("FARM_TEST_DATABASES", "sqlite,postgres").split(",")
    if name.strip()
]


@pytest.fixture(scope="session", autouse=True)
def _no_home_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Whoever runs the tests may have a farm, keys and a Blender of their own: no test reads them."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.delenv("FARM_DATA", raising=False)
        # many farms of one machine, each with slots on all of its cores
        patch.setenv("FARM_MACHINE_CLAIMS", "false")
        read_settings.cache_clear()
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this test session (one per xdist worker), without durability."""
    server = PostgresServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A redis-server of this test session (one per xdist worker)."""
    server = RedisServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """URL of an empty Redis."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.sqlite3"
    url = f"sqlite:///{path}"
    migrate.upgrade(url)
    database = Database(url)
    with database.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.exec_driver_sql("BEGIN")
    database.dispose()
    return path


@pytest.fixture(scope="session")
def _postgres_migrated(postgres_server: PostgresServer) -> str:
    url = postgres_server.create_database("stillframe")
    migrate.upgrade(url)
    return url


@pytest.fixture
def postgres_url(_postgres_migrated: str, postgres_server: PostgresServer) -> str:
    """URL of a migrated, empty PostgreSQL database; connections left by earlier tests are ended."""
    postgres_server.end_connections("stillframe")
    engine = sa.create_engine(_postgres_migrated)
    names = ", ".join(f'"{table.name}"' for table in metadata.tables.values())
    with engine.begin() as connection:
        connection.exec_driver_sql(f"TRUNCATE {names} RESTART IDENTITY")
    engine.dispose()
    return _postgres_migrated


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """URL of a migrated, empty SQLite database in a file."""
    path = tmp_path / "farm.sqlite3"
    shutil.copyfile(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.postgres] if name == "postgres" else []) for name in DATABASES
    ]
)
def db_url(request: pytest.FixtureRequest) -> str:
    """URL of a migrated, empty database, once on SQLite and once on PostgreSQL."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def db(db_url: str) -> Iterator[Database]:
    """A migrated, empty database, once on SQLite and once on PostgreSQL."""
    database = Database(db_url)
    yield database
    database.dispose()


@pytest.fixture
def sqlite_db(sqlite_url: str) -> Iterator[Database]:
    """A migrated, empty SQLite database."""
    database = Database(sqlite_url)
    yield database
    database.dispose()


@pytest.fixture
def postgres_db(postgres_url: str) -> Iterator[Database]:
    """A migrated, empty PostgreSQL database."""
    database = Database(postgres_url)
    yield database
    database.dispose()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings in a folder of the test's own, with times short enough to wait for.

    ``settings.model_copy(update={"database_url": ..., "broker_url": ...})`` points them at real servers.
    """
    return short_settings(tmp_path / "farm")


def short_settings(data: Path) -> Settings:
    """Short times in a given folder, for fixtures of a wider scope."""
    return Settings(
        data=data,
        lease_s=3.0,
        lease_extend_s=0.5,
        lease_lock_wait_s=1.0,
        beat_s=0.2,
        beat_stale_s=2.0,
        claim_timeout_s=2.0,
        database_away_park_s=4.0,
        database_away_kill_s=1.0,
        park_grace_s=3.0,
        cancel_grace_s=2.0,
        agent_poll_s=0.2,
        scheduler_tick_s=0.2,
        leader_lease_s=2.0,
        retry_backoff_s=0.05,
        retry_backoff_max_s=0.2,
        node_lost_s=3.0,
        free_space_floor=1,
        machine_claims=False,
    )
