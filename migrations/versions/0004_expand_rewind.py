"""The ledger gets entries that set a pipeline back, and a view of those that none of them took back."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

REWIND = """
ALTER TABLE onceload.ledger
    ADD COLUMN rewound_to bigint,
    DROP CONSTRAINT ledger_kind_is_known,
    ADD CONSTRAINT ledger_kind_is_known CHECK (kind IN ('load', 'forget', 'retry', 'discard', 'rewind')),
    ADD CONSTRAINT ledger_rewinds_name_an_earlier_position CHECK (
        (kind = 'rewind') = (rewound_to IS NOT NULL) AND rewound_to >= 0 AND rewound_to < position);

CREATE INDEX ledger_rewinds ON onceload.ledger (pipeline_id, position) WHERE kind = 'rewind';

CREATE VIEW onceload.ledger_in_force AS
SELECT pipeline_id, position, kind, batch, loaded, duplicate, quarantined, filtered, bytes, committed_at
  FROM onceload.ledger
 WHERE NOT EXISTS (
       SELECT FROM onceload.ledger AS rewind
        WHERE rewind.pipeline_id = ledger.pipeline_id AND rewind.kind = 'rewind'
          AND rewind.position > ledger.position AND rewind.rewound_to < ledger.position);
"""


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(REWIND)
