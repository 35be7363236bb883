"""Many rows in one statement, the same way on both databases: a JSON parameter read back as a table.

The only dialect-specific SQL besides :mod:`farm.db.connect` and the bulk loading of a submission. One
parameter, so no limit of parameters is met and the compiled statement is reused for any number of rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

_POSTGRES_TYPES = {
    "text": "text", "int": "bigint", "float": "double precision", "bool": "boolean", "json": "jsonb",
}  # fmt: skip
_SQLITE_READS = {
    "text": "value ->> '$.{}'",
    "int": "CAST(value ->> '$.{}' AS INTEGER)",
    "float": "CAST(value ->> '$.{}' AS REAL)",
    "bool": "value ->> '$.{}'",
    "json": "NULLIF(value -> '$.{}', 'null')",
}
_SQL_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "text": sa.Text(), "int": sa.BigInteger(), "float": sa.Double(), "bool": sa.Boolean(), "json": sa.JSON(),
}  # fmt: skip


def json_rows(
    conn: sa.Connection, name: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> sa.Subquery:
    """A subquery called ``name`` that has these rows.

    ``columns`` maps names to ``text``, ``int``, ``float``, ``bool`` or ``json``; a missing key is NULL.
    """
    table = _table(conn.dialect.name, name, tuple(columns.items()))
    return table.bindparams(sa.bindparam(f"{name}_rows", dumps(list(rows)), sa.Text())).subquery(name)


def json_table(dialect: str, name: str, columns: Mapping[str, str]) -> sa.Subquery:
    """Like :func:`json_rows`, for a statement that is built once: the rows come when it is executed.

    They are given as the parameter ``{name}_rows``, through :func:`dumps`. Building a statement of twenty
    columns costs more than running it.
    """
    return _table(dialect, name, tuple(columns.items())).subquery(name)


@lru_cache(maxsize=256)
def _table(dialect: str, name: str, columns: tuple[tuple[str, str], ...]) -> sa.TextualSelect:
    parameter = f"{name}_rows"
    if dialect == "postgresql":
        shape = ", ".join(f"{column} {_POSTGRES_TYPES[kind]}" for column, kind in columns)
        text = f"SELECT * FROM jsonb_to_recordset(CAST(:{parameter} AS jsonb)) AS r({shape})"
    else:
        reads = ", ".join(f"{_SQLITE_READS[kind].format(column)} AS {column}" for column, kind in columns)
        text = f"SELECT {reads} FROM json_each(:{parameter})"
    return (
        sa.text(text)
        .bindparams(sa.bindparam(parameter, type_=sa.Text()))
        .columns(*(sa.column(column, _SQL_TYPES[kind]) for column, kind in columns))
    )


def id_rows(conn: sa.Connection, ids: Iterable[str]) -> sa.Select[tuple[str]]:
    """A subquery of ids for ``column.in_(...)``, however many there are."""
    rows = json_rows(conn, "ids", {"id": "text"}, [{"id": item} for item in ids])
    return sa.select(rows.c.id)


def lock(
    conn: sa.Connection,
    statement: sa.Select[Any],
    *,
    of: sa.Table | None = None,
    skip_locked: bool = False,
) -> sa.Select[Any]:
    """The same SELECT, which on PostgreSQL locks the rows for an update (SQLite has one writer anyway).

    ``of`` names the one table of a join whose rows are locked.
    """
    if conn.dialect.name == "postgresql":
        return statement.with_for_update(key_share=True, skip_locked=skip_locked, of=of)
    return statement


def insert_missing(conn: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that leaves rows whose key is there already as they are (``ON CONFLICT DO NOTHING``)."""
    return insert_missing_for(conn.dialect.name, table)


def insert_missing_for(dialect: str, table: sa.Table) -> Any:
    """:func:`insert_missing` for a statement that is built once."""
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing()


def clean_text(text: str) -> str:
    """Text that both databases can hold: NUL and lone surrogates (broken bytes of a log) are replaced."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def clean_json(value: Any) -> Any:
    """A JSON value that both databases can hold: text as in :func:`clean_text`, NaN and infinities None."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Compact JSON; raises :class:`ValueError` for NaN, which no database takes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
