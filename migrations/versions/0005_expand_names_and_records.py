"""Pipelines keep what their producers' names are relative to, and receipts how many records were read.

Receipts from before get what is known of theirs: the rows, and what was quarantined.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

NAMES_AND_RECORDS = """
ALTER TABLE onceload.pipeline ADD COLUMN names_below text;
ALTER TABLE onceload.ledger_span
    ADD COLUMN records bigint NOT NULL DEFAULT 0,
    DROP CONSTRAINT ledger_span_rows_are_not_negative,
    ADD CONSTRAINT ledger_span_rows_are_not_negative CHECK (rows >= 0 AND records >= 0);

ALTER TABLE onceload.ledger_span DISABLE TRIGGER ledger_span_is_append_only;
UPDATE onceload.ledger_span
   SET records = rows + (SELECT count(*) FROM onceload.quarantine
                          WHERE quarantine.producer_id = ledger_span.producer_id
                            AND quarantine.position = ledger_span.position)
  FROM onceload.ledger
 WHERE ledger.pipeline_id = ledger_span.pipeline_id AND ledger.position = ledger_span.position
   AND ledger.kind = 'load';
ALTER TABLE onceload.ledger_span ENABLE TRIGGER ledger_span_is_append_only;
"""


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(NAMES_AND_RECORDS)
