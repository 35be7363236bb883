"""Models: immutable versions, the names that point at them, and what was measured on them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "model_versions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("document", _JSON, nullable=False),
        sa.Column("user_id", sa.String(48)),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_model_versions_user_id_users"),
        sa.PrimaryKeyConstraint("digest", name="pk_model_versions"),
    )
    op.create_table(
        "model_names",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("current", sa.Boolean(), nullable=False),
        sa.Column("named_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"], ["model_versions.digest"], name="fk_model_names_digest_model_versions"
        ),
        sa.PrimaryKeyConstraint("name", "digest", name="pk_model_names"),
    )
    op.create_index(
        "uq_model_names_current",
        "model_names",
        ["name"],
        unique=True,
        postgresql_where=sa.text("current"),
        sqlite_where=sa.text("current"),
    )
    op.create_table(
        "model_measurements",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("choice", sa.String(2000), nullable=False),
        sa.Column("data", _JSON, nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["digest"],
            ["model_versions.digest"],
            name="fk_model_measurements_digest_model_versions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("digest", "choice", name="pk_model_measurements"),
    )


def downgrade() -> None:
    op.drop_table("model_measurements")
    op.drop_index("uq_model_names_current", "model_names")
    op.drop_table("model_names")
    op.drop_table("model_versions")
