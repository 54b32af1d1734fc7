"""Each commit names the engine that ran its workers, and why.

It only adds: commits of the previous release leave the column empty.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE onceload.ledger ADD COLUMN engine text, ADD COLUMN spark_ui text")
