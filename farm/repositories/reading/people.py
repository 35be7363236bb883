"""Projects, users and keys as they are shown, and the few changes that people make to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from farm.db import tables as t
from farm.db.connect import db_now
from farm.errors import Conflict, NotFound, PreconditionFailed
from farm.ids import new_id
from farm.repositories.reading.keyset import Row, page, row


def list_projects(
    conn: sa.Connection,
    *,
    project_id: str | None = None,
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Projects by name (one, when ``project_id`` is given); keyset ``(name,)``."""
    query = sa.select(t.projects)
    if project_id is not None:
        query = query.where(t.projects.c.id == project_id)
    return page(conn, query, (t.projects.c.name,), position, limit)


def find_project(conn: sa.Connection, name_or_id: str) -> Row | None:
    """A project by id or by name."""
    projects = t.projects.c
    return row(
        conn, sa.select(t.projects).where(sa.or_(projects.id == name_or_id, projects.name == name_or_id))
    )


def make_project(conn: sa.Connection, values: Mapping[str, Any]) -> Row:
    """Make a project. Raises :class:`farm.errors.Conflict` when the name is taken."""
    _name_is_free(conn, t.projects, str(values["name"]), "project")
    project_id = new_id("proj")
    conn.execute(sa.insert(t.projects).values(id=project_id, created_at=db_now(), **values))
    return _must(row(conn, sa.select(t.projects).where(t.projects.c.id == project_id)))


def change_project(
    conn: sa.Connection, project_id: str, values: Mapping[str, Any], version: int | None
) -> Row:
    """Change a project at ``version`` (``None``: at any).

    Raises :class:`farm.errors.NotFound`, :class:`~farm.errors.PreconditionFailed` and, for a name that is
    taken, :class:`~farm.errors.Conflict`.
    """
    projects = t.projects.c
    query = sa.select(t.projects).where(projects.id == project_id).with_for_update()
    current = row(conn, query)
    if current is None:
        raise NotFound(f"there is no project {project_id!r}")
    if version is not None and current["version"] != version:
        raise PreconditionFailed(f"project {current['name']} is at version {current['version']} by now")
    if "name" in values and values["name"] != current["name"]:
        _name_is_free(conn, t.projects, str(values["name"]), "project")
    change = sa.update(t.projects).where(projects.id == project_id)
    conn.execute(change.values(version=projects.version + 1, **values))
    return _must(row(conn, sa.select(t.projects).where(projects.id == project_id)))


def list_users(
    conn: sa.Connection,
    *,
    user_id: str | None = None,
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Users by name (one, when ``user_id`` is given); keyset ``(name,)``."""
    query = sa.select(t.users)
    if user_id is not None:
        query = query.where(t.users.c.id == user_id)
    return page(conn, query, (t.users.c.name,), position, limit)


def find_user(conn: sa.Connection, name_or_id: str) -> Row | None:
    """A user by id or by name."""
    return row(
        conn, sa.select(t.users).where(sa.or_(t.users.c.id == name_or_id, t.users.c.name == name_or_id))
    )


def make_user(conn: sa.Connection, name: str) -> Row:
    """Make a user. Raises :class:`farm.errors.Conflict` when the name is taken."""
    _name_is_free(conn, t.users, name, "user")
    user_id = new_id("user")
    conn.execute(sa.insert(t.users).values(id=user_id, name=name, created_at=db_now()))
    return _must(row(conn, sa.select(t.users).where(t.users.c.id == user_id)))


def list_keys(
    conn: sa.Connection,
    *,
    project_id: str | None = None,
    revoked: bool | None = None,
    position: Sequence[Any] | None = None,
    limit: int = 100,
) -> list[Row]:
    """Keys, newest first, never with their secret; keyset ``(created_at, id)``."""
    keys = t.keys.c
    query = sa.select(t.keys)
    if project_id is not None:
        query = query.where(keys.project_id == project_id)
    if revoked is not None:
        query = query.where(keys.revoked_at.is_not(None) if revoked else keys.revoked_at.is_(None))
    return page(conn, query, (keys.created_at, keys.id), position, limit, descending=True)


def get_key(conn: sa.Connection, key_id: str) -> Row | None:
    """One key."""
    return row(conn, sa.select(t.keys).where(t.keys.c.id == key_id))


def change_pool(conn: sa.Connection, name: str, values: Mapping[str, Any], version: int | None) -> None:
    """Set a pool's cap or pause it, making its row when it has none yet.

    Raises :class:`farm.errors.PreconditionFailed` when it is not at ``version`` (``None``: any).
    """
    pools = t.pools.c
    current = row(conn, sa.select(t.pools).where(pools.name == name).with_for_update())
    if version is not None and version != (current["version"] if current else 1):
        raise PreconditionFailed(f"pool {name} has changed since you read it; read it again")
    if current is None:
        conn.execute(sa.insert(t.pools).values(name=name, version=2, **values))
    elif values:
        conn.execute(sa.update(t.pools).where(pools.name == name).values(version=pools.version + 1, **values))


def _name_is_free(conn: sa.Connection, table: sa.Table, name: str, what: str) -> None:
    if conn.scalar(sa.select(table.c.id).where(table.c.name == name)) is not None:
        raise Conflict(f"there is already a {what} named {name!r}; choose another name")


def _must(found: Row | None) -> Row:
    assert found is not None
    return found
