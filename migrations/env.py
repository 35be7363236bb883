"""Alembic's entry: runs migrations on the connection that :mod:`farm.db.migrate` hands over.

``alembic -c`` on a shell works too: without a connection it opens the farm's own database.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from farm.db.connect import Database
from farm.db.tables import metadata
from farm.settings import settings


def _run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        # SQLite cannot alter most things in place: Alembic rebuilds the table
        render_as_batch=connection.dialect.name == "sqlite",
        # farm.db.connect begins transactions itself, so that SQLite rolls DDL back as well
        transactional_ddl=True,
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Migrate the given connection, or else the database of the settings."""
    if context.is_offline_mode():
        raise SystemExit("the farm's migrations look at the database; they cannot be written out as SQL")
    given = context.config.attributes.get("connection")
    if given is not None:
        _run(given)
        return
    database = Database(settings().resolved_database_url)
    try:
        with database.write() as connection:
            _run(connection)
    finally:
        database.dispose()


main()
