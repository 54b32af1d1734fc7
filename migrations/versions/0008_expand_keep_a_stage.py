"""A batch may be staged now and published later, by another process; what audits found is kept."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

KEPT = """
ALTER TABLE onceload.delivery
    ADD COLUMN stage text,
    ADD CONSTRAINT delivery_names_a_stage_only_as_a_claim CHECK (stage IS NULL OR work IS NULL);
CREATE INDEX deliveries_that_keep_a_stage ON onceload.delivery (stage) WHERE stage IS NOT NULL;

CREATE TABLE onceload.audit (
    audit_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline_id  bigint NOT NULL REFERENCES onceload.pipeline,
    batch        text NOT NULL,
    stage        text NOT NULL,
    suite        text NOT NULL,
    asked        text NOT NULL,
    rows         bigint NOT NULL,
    passed       boolean NOT NULL,
    audited_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    kept_until   timestamptz,
    CONSTRAINT audits_keep_only_what_failed CHECK (kept_until IS NULL OR NOT passed)
);
CREATE INDEX audits_of_a_pipeline ON onceload.audit (pipeline_id, audit_id);
CREATE INDEX audits_of_a_stage ON onceload.audit (stage);

CREATE TABLE onceload.quality_result (
    audit_id     bigint NOT NULL REFERENCES onceload.audit ON DELETE CASCADE,
    number       integer NOT NULL,
    expectation  text NOT NULL,
    about        text,
    severity     text NOT NULL,
    success      boolean NOT NULL,
    unexpected   bigint,
    checked      bigint,
    observed     text,
    sample       text,
    CONSTRAINT quality_results_have_no_twins PRIMARY KEY (audit_id, number),
    CONSTRAINT quality_severity_is_known CHECK (severity IN ('critical', 'warning', 'info'))
);
"""


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(KEPT)
