"""A schema for staged rows, whose tables come and go with each batch; and producers whose rows were replaced."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # An administrator may have made it for a user who may make no schemas.
    op.execute("CREATE SCHEMA IF NOT EXISTS onceload_stage")
    op.execute(
        "ALTER TABLE onceload.producer DROP CONSTRAINT producer_condition_is_known, ADD CONSTRAINT"
        " producer_condition_is_known CHECK (condition IN ('open', 'sealed', 'conflicted', 'replaced'))"
    )
