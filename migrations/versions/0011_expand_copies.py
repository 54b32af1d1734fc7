"""A name that holds the content of another producer says so, and consumes nothing of its own."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

COPIES = """
ALTER TABLE onceload.producer
    ADD COLUMN copy_of bigint,
    ADD CONSTRAINT producer_that_is_a_copy_consumes_nothing CHECK (copy_of IS NULL OR isempty(consumed));
"""


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(COPIES)
