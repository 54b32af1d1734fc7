"""A file that goes on in another way than what it was a copy of says whose records it shares."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE onceload.ledger_span ADD COLUMN shares_with bigint")
