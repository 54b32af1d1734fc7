"""Deliveries hold the work that is handed to sessions, and what went wrong with it; sessions have a lease.

What was acked before is in the ledger, and goes from here.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

DELIVERY = """
ALTER TABLE onceload.pipeline ADD COLUMN offered bigint NOT NULL DEFAULT 0;
ALTER TABLE onceload.session ADD COLUMN lease_until timestamptz NOT NULL DEFAULT clock_timestamp();

DELETE FROM onceload.delivery WHERE state NOT IN ('waiting', 'held');
ALTER TABLE onceload.delivery
    ADD COLUMN parent_id bigint REFERENCES onceload.delivery ON DELETE CASCADE,
    ADD COLUMN work text,
    ADD COLUMN is_staged boolean NOT NULL DEFAULT false,
    ADD COLUMN contract text,
    ADD COLUMN offered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    DROP CONSTRAINT delivery_state_is_known,
    ADD CONSTRAINT delivery_state_is_known CHECK (
        state IN ('waiting', 'held', 'staged', 'acked', 'dead', 'abandoned')),
    ADD CONSTRAINT delivery_without_work_is_a_claim CHECK (work IS NOT NULL OR state IN ('held', 'acked'));
DROP INDEX onceload.deliveries_in_hand;
CREATE INDEX deliveries_in_order ON onceload.delivery (pipeline_id, delivery_id);
CREATE INDEX deliveries_to_be_taken ON onceload.delivery (pipeline_id, delivery_id) WHERE state = 'waiting';
CREATE INDEX deliveries_in_hand ON onceload.delivery (session_id) WHERE state = 'held';
CREATE INDEX deliveries_of_a_batch ON onceload.delivery (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX deliveries_of_a_producer ON onceload.delivery_span (producer_id);

CREATE TABLE onceload.delivery_failure (
    delivery_id  bigint NOT NULL REFERENCES onceload.delivery ON DELETE CASCADE,
    try          integer NOT NULL,
    session      text NOT NULL,
    epoch        bigint NOT NULL,
    reason       text NOT NULL,
    failed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX failures_of_a_delivery ON onceload.delivery_failure (delivery_id);

CREATE VIEW onceload.claim AS
SELECT delivery.delivery_id, delivery.pipeline_id, delivery.session_id, delivery.work IS NULL AS is_held
  FROM onceload.delivery
 WHERE delivery.parent_id IS NULL AND (
       (delivery.work IS NOT NULL AND delivery.state IN ('waiting', 'held', 'dead'))
       OR (delivery.work IS NULL AND delivery.state = 'held' AND delivery.deadline_at > clock_timestamp()
           AND delivery.epoch = (SELECT epoch FROM onceload.session WHERE session.session_id = delivery.session_id)));
"""


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(DELIVERY)
