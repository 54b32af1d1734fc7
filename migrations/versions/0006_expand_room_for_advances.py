"""Pages of producers keep room for a new version of every row, so that an advance of all of them touches no index.

Pages written before keep what they have; a table that was filled long ago gets the room by VACUUM FULL.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ROOM = "ALTER TABLE onceload.producer SET (fillfactor = 45)"


def upgrade() -> None:
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(ROOM)
