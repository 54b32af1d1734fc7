"""A pipeline remembers that its folder got another address, although its file was not edited.

It only adds: processes of the previous release leave the column as it is, and trust the names in such a folder.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE onceload.pipeline ADD COLUMN has_moved boolean NOT NULL DEFAULT false")
