"""Each version of a pipeline file keeps where the fields of its records are, so that they can be read again.

It only adds: processes of the previous release leave the column empty, and the next load of this release fills it.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE onceload.declaration ADD COLUMN layout jsonb")
