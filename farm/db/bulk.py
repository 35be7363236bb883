"""Very many rows into a table, in batches: COPY on PostgreSQL, ``executemany`` on SQLite.

Rows are tuples of text, numbers, booleans and None, in the order of the columns; JSON is given as text. Text
is never empty (COPY reads that as NULL). A batch is as much as is held in memory.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa

BATCH = 10_000
Value = str | int | float | bool | None


class BulkRows:
    """Collects rows of one table and writes them :data:`BATCH` at a time; :meth:`flush` writes the rest.

    Tables that refer to each other are flushed by their owner in the order of their references.
    """

    def __init__(self, conn: sa.Connection, table: sa.Table, columns: Sequence[str]) -> None:
        self._conn = conn
        self._table = table.name
        self._columns = columns
        self._copies = conn.dialect.name == "postgresql"
        self._rows: list[tuple[Value, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: tuple[Value, ...]) -> None:
        """Keep a row for the next flush."""
        self._rows.append(row)

    def flush(self) -> None:
        """Write what was collected."""
        if not self._rows:
            return
        names = ", ".join(f'"{name}"' for name in self._columns)
        if self._copies:
            self._copy(f'COPY "{self._table}" ({names}) FROM STDIN (FORMAT csv)')
        else:
            marks = ", ".join("?" * len(self._columns))
            self._conn.exec_driver_sql(f'INSERT INTO "{self._table}" ({names}) VALUES ({marks})', self._rows)
        self._rows = []

    def _copy(self, statement: str) -> None:
        # CSV, because Python's writer of it is in C; an unquoted empty field is NULL
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self._rows)
        raw = cast(Any, self._conn.connection)
        with raw.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(text.getvalue())
