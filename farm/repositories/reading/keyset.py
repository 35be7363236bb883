"""The ``WHERE`` of a keyset page: rows that stand after a given row in an ordering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

Row = dict[str, Any]
Column = sa.ColumnElement[Any]


def after(columns: Sequence[Column], values: Sequence[Any], *, descending: bool = False) -> Column:
    """Rows whose ``columns`` come after ``values``; spelled out, so that SQLite uses its indexes as well."""
    ways: list[Column] = []
    for index, column in enumerate(columns):
        equal = [c == v for c, v in zip(columns[:index], values[:index], strict=True)]
        beyond = column < values[index] if descending else column > values[index]
        ways.append(sa.and_(*equal, beyond))
    return sa.or_(*ways)


def rows(conn: sa.Connection, query: sa.Select[Any]) -> list[Row]:
    """All rows as dictionaries."""
    return [dict(row) for row in conn.execute(query).mappings()]


def row(conn: sa.Connection, query: sa.Select[Any]) -> Row | None:
    """The first row as a dictionary."""
    found = conn.execute(query).mappings().first()
    return dict(found) if found is not None else None


def page(
    conn: sa.Connection,
    query: sa.Select[Any],
    key: Sequence[Column],
    position: Sequence[Any] | None,
    limit: int,
    *,
    descending: bool = False,
) -> list[Row]:
    """The rows of one page of ``query``, ordered by ``key``."""
    if position is not None:
        query = query.where(after(key, position, descending=descending))
    order = [column.desc() if descending else column.asc() for column in key]
    return rows(conn, query.order_by(*order).limit(limit))
