"""Pipelines can be paused.

It only adds: processes of the previous release run on it, but they do not know pauses, and commit through them.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

CHANGE = """
ALTER TABLE onceload.pipeline
    ADD COLUMN paused_at    timestamptz,
    ADD COLUMN paused_by    text,
    ADD COLUMN pause_reason text,
    ADD CONSTRAINT pipeline_pause_has_time_user_and_reason CHECK (
        num_nulls(paused_at, paused_by, pause_reason) IN (0, 3));
"""


def upgrade() -> None:
    op.execute(CHANGE)
