"""Migrations on empty databases, on both: they make the tables that the code declares, and undo it."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from farm.db import migrate
from farm.db.connect import Database
from farm.db.tables import metadata
from farm.errors import Conflict
from tests.conftest import DATABASES
from tests.integration.farm.world import World, step


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.sqlite3'}"
        return
    server = request.getfixturevalue("postgres_server")
    name = f"migration_{uuid.uuid4().hex[:12]}"
    yield server.create_database(name)
    server.drop_database(name)


def _tables(url: str) -> set[str]:
    database = Database(url)
    with database.read() as conn:
        names = set(sa.inspect(conn).get_table_names())
    database.dispose()
    return names - {"alembic_version"}


def test_upgrade_makes_exactly_the_declared_tables(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    with database.read() as conn:
        context = MigrationContext.configure(
            conn, opts={"compare_type": True, "compare_server_default": True, "target_metadata": metadata}
        )
        assert compare_metadata(context, metadata) == []
    database.dispose()


def test_upgrade_keeps_foreign_keys_checks_and_partial_indexes(empty_url: str) -> None:
    """What autogenerate does not compare, compared with tables made straight from the declaration."""
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    with database.write() as conn:
        migrated = _shape(conn)
        metadata.drop_all(conn)
        metadata.create_all(conn)
        assert _shape(conn) == migrated
    database.dispose()


def _shape(conn: sa.Connection) -> dict[str, object]:
    inspector = sa.inspect(conn)
    shape: dict[str, object] = {}
    for table in metadata.tables:
        shape[table] = (
            inspector.get_pk_constraint(table)["constrained_columns"],
            sorted(
                (key["name"] or "", key["constrained_columns"], key["options"].get("ondelete"))
                for key in inspector.get_foreign_keys(table)
            ),
            sorted(
                (
                    index["name"] or "",
                    index["column_names"],
                    str(index.get("dialect_options", {}).get(f"{conn.dialect.name}_where")),
                )
                for index in inspector.get_indexes(table)
            ),
            # by name: what a later revision adds stands last
            sorted(
                (c["name"], str(c["type"]), c["nullable"], str(c["default"]))
                for c in inspector.get_columns(table)
            ),
            sorted((u["name"] or "", u["column_names"]) for u in inspector.get_unique_constraints(table)),
        )
    return shape


def test_downgrade_leaves_no_table_and_upgrade_works_again(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    assert _tables(empty_url) == set(metadata.tables)
    assert migrate.current(empty_url) == migrate.head()
    migrate.downgrade(empty_url)
    assert _tables(empty_url) == set()
    migrate.upgrade(empty_url)
    assert _tables(empty_url) == set(metadata.tables)


def test_upgrade_twice_changes_nothing(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    migrate.upgrade(empty_url)
    assert migrate.current(empty_url) == migrate.head()


def test_a_database_that_was_not_migrated_is_refused_with_the_way_out(empty_url: str) -> None:
    with pytest.raises(Conflict, match=r"schema none.*farm up"):
        migrate.require_current(empty_url)
    migrate.upgrade(empty_url)
    migrate.require_current(empty_url)


def test_migrating_with_data_keeps_it_up_and_removes_it_down(empty_url: str) -> None:
    """Every table with foreign keys in both directions is full when it is migrated."""
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    world = World(database).build()
    job_id = world.job(step(frames="1-2"), step("encode", None, after=[("render", "whole")]))
    world.job(step(frames="1"), after=[job_id])
    for task_id in world.tasks(job_id):
        world.run(task_id)
    migrate.upgrade(empty_url)
    assert world.state(job_id) == "done"
    world.check()
    database.dispose()
    migrate.downgrade(empty_url)
    assert _tables(empty_url) == set()
    migrate.upgrade(empty_url)
    database = Database(empty_url)
    with database.read() as conn:
        assert all(
            conn.scalar(sa.select(sa.func.count()).select_from(table)) == 0
            for table in metadata.tables.values()
        )
    database.dispose()


_ATTEMPT = """INSERT INTO attempts (id, task_id, job_id, epoch, number, slot_id, node_id, state, started_at)
    VALUES ('att_1', 'task_1', 'job_1', 1, 1, 'slot_1', 'node_1', 'done', 5.0)"""
_EVENT = "INSERT INTO events (at, type, data) VALUES (6.0, 'job.state', '{}')"
_FIRST_ROWS = (
    "INSERT INTO projects (id, name, created_at) VALUES ('proj_1', 'show', 1.0)",
    "INSERT INTO users (id, name, created_at) VALUES ('user_1', 'ada', 1.0)",
    """INSERT INTO jobs (id, name, kind, project_id, user_id, labels, spec, state, created_at)
       VALUES ('job_1', 'shot', 'render', 'proj_1', 'user_1', '{}', '{}', 'done', 2.0)""",
    """INSERT INTO steps (id, job_id, position, name, engine, pool, state, payload, outputs, requires,
       max_retries, no_progress_s) VALUES
       ('step_1', 'job_1', 0, 'render', 'mitsuba', 'render', 'done', '{}', '[]', '{}', 2, 60.0)""",
    "INSERT INTO tasks (id, step_id, position, state) VALUES ('task_1', 'step_1', 0, 'done')",
    _ATTEMPT,
    _EVENT,
)
"""A little of everything that the second revision touches, as the first one had it."""


def test_the_first_tables_with_data_are_brought_up_and_down_again(empty_url: str) -> None:
    migrate.upgrade(empty_url, "0001")
    database = Database(empty_url)
    with database.write() as conn:
        for statement in _FIRST_ROWS:
            conn.execute(sa.text(statement))
    migrate.upgrade(empty_url)
    with database.write() as conn:
        assert tuple(conn.execute(sa.text("SELECT name, reserved FROM projects")).one()) == ("show", False)
        # an id that was given once is not given again
        for table, again in (("attempts", _ATTEMPT), ("events", _EVENT)):
            conn.execute(sa.text(f"DELETE FROM {table}"))
            conn.execute(sa.text(again))
        assert conn.scalar(sa.text("SELECT serial FROM attempts")) == 2
        assert conn.scalar(sa.text("SELECT id FROM events")) == 2
    migrate.downgrade(empty_url, "0001")
    with database.read() as conn:
        assert conn.scalar(sa.text("SELECT name FROM projects")) == "show"
        assert tuple(conn.execute(sa.text("SELECT id, task_id FROM attempts")).one()) == ("att_1", "task_1")
        assert "reserved" not in {c["name"] for c in sa.inspect(conn).get_columns("projects")}
    migrate.upgrade(empty_url)
    database.dispose()


def test_a_failed_migration_leaves_the_schema_as_it_was(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **more: object) -> None:
        raise RuntimeError("half-way")

    monkeypatch.setattr("alembic.op.create_index", stop)
    with pytest.raises(RuntimeError, match="half-way"):
        migrate.upgrade(empty_url)
    monkeypatch.undo()
    assert _tables(empty_url) == set()
    migrate.upgrade(empty_url)
    assert _tables(empty_url) == set(metadata.tables)


def test_two_that_migrate_at_once_both_find_it_done(empty_url: str) -> None:
    # Alembic keeps its environment in module state, so two threads cannot run it: two processes can
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", f"from farm.db import migrate; migrate.upgrade({empty_url!r})"]
        )
        for _ in range(2)
    ]
    assert [program.wait(timeout=150) for program in programs] == [0, 0]
    assert migrate.current(empty_url) == migrate.head()
