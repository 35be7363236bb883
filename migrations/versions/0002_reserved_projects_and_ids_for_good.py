"""Projects that reserve slots; on SQLite, serials of attempts and ids of events are never given twice."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_FOR_GOOD = ("attempts", "events")


def upgrade() -> None:
    # databases that were made between the two revisions have the column
    if "reserved" not in {column["name"] for column in sa.inspect(op.get_bind()).get_columns("projects")}:
        op.add_column(
            "projects", sa.Column("reserved", sa.Boolean(), server_default=sa.false(), nullable=False)
        )
    _rebuild(autoincrement=True)


def downgrade() -> None:
    _rebuild(autoincrement=False)
    # in place on SQLite as well: jobs refer to projects, so that table cannot be rebuilt
    op.drop_column("projects", "reserved")


def _rebuild(*, autoincrement: bool) -> None:
    """SQLite takes AUTOINCREMENT only when a table is made. PostgreSQL's sequences never go back."""
    if op.get_bind().dialect.name != "sqlite":
        return
    for table in _FOR_GOOD:
        with op.batch_alter_table(
            table, recreate="always", table_kwargs={"sqlite_autoincrement": autoincrement}
        ):
            pass
