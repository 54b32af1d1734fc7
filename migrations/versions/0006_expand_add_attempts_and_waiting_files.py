"""The outcome of the last load of each pipeline, and the files that it left, are remembered.

It only adds: loads of the previous release run on it, and record no outcome.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

CHANGE = """
CREATE TABLE onceload.attempt (
    pipeline   text NOT NULL,
    batch      text NOT NULL,
    begun_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz,
    exit_code  smallint,
    reason     text,
    listed_at  timestamptz,
    looked_at  timestamptz,
    CONSTRAINT attempts_have_no_twins PRIMARY KEY (pipeline, batch),
    CONSTRAINT attempts_end_with_an_outcome CHECK (num_nulls(ended_at, exit_code, reason) IN (0, 3))
);

CREATE TABLE onceload.waiting_file (
    pipeline  text NOT NULL,
    name      text NOT NULL,
    since     timestamptz NOT NULL,
    CONSTRAINT waiting_files_have_no_twins PRIMARY KEY (pipeline, name)
);
"""


def upgrade() -> None:
    op.execute(CHANGE)
