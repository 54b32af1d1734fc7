"""Quarantined records get a state, and the ledger the entries that settle them: retry and discard."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SETTLED = """
ALTER TABLE onceload.ledger
    DROP CONSTRAINT ledger_kind_is_known,
    ADD CONSTRAINT ledger_kind_is_known CHECK (kind IN ('load', 'forget', 'retry', 'discard'));

ALTER TABLE onceload.quarantine
    ADD COLUMN quarantined_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN state text NOT NULL DEFAULT 'held',
    ADD COLUMN settled_position bigint,
    ADD CONSTRAINT quarantine_state_is_known CHECK (state IN ('held', 'retried', 'discarded')),
    ADD CONSTRAINT quarantined_records_are_settled_by_a_later_commit CHECK (
        (state = 'held') = (settled_position IS NULL) AND settled_position > position);

-- A record was quarantined when the entry that consumed it was committed.
UPDATE onceload.quarantine SET quarantined_at = ledger.committed_at
  FROM onceload.ledger
 WHERE ledger.pipeline_id = quarantine.pipeline_id AND ledger.position = quarantine.position;

CREATE INDEX quarantined_records_held ON onceload.quarantine (pipeline_id, quarantine_id) WHERE state = 'held';
"""


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(SETTLED)
