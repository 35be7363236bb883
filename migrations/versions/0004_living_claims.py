"""Claims of idempotency keys that say which request holds them and when it was last alive."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("idempotency", sa.Column("claim", sa.String(48)))
    op.add_column("idempotency", sa.Column("seen_at", sa.Double()))


def downgrade() -> None:
    op.drop_column("idempotency", "seen_at")
    op.drop_column("idempotency", "claim")
