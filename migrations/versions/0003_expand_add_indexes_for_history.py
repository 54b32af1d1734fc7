"""The commits of a batch, and the receipts of a file, are found without reading the whole ledger.

It only adds. Loads wait while the indexes are built. Those that have waited for 30 s fail, and can be called again.
"""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

CHANGE = """
CREATE INDEX commits_of_a_batch ON onceload.ledger (pipeline_id, batch, position);
CREATE INDEX receipts_of_a_file ON onceload.ledger_span (producer_id, position) WHERE records > 0;
"""


def upgrade() -> None:
    op.execute(CHANGE)
