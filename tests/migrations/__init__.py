"""The migrations, and what comes after them."""

import shutil
from pathlib import Path

from onceload import schema

_MIGRATION = """
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute({statement!r})
"""


def with_migration(folder: Path, statement: str) -> Path:
    """A copy of the migrations, with one more that runs this statement."""
    shutil.copytree(schema.MIGRATIONS, folder)
    (folder / "versions" / "0002_later.py").write_text(_MIGRATION.format(statement=statement))
    return folder
