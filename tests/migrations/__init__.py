"""The migrations, and what comes after them."""

import re
import shutil
from pathlib import Path

from onceload import schema

FIRST = "0001"
THIS = schema.head()
NEXT = f"{int(THIS) + 1:04}"
#: Lines of roles.sql on what later migrations have added.
_LATER = re.compile(r"UPDATE \(layout\)|onceload\.loaded_file")
_MIGRATION = """
from alembic import op

revision = {next!r}
down_revision = {this!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute({statement!r})
"""


def with_migration(folder: Path, statement: str) -> Path:
    """A copy of the migrations, with one more that runs this statement."""
    shutil.copytree(schema.MIGRATIONS, folder)
    migration = _MIGRATION.format(next=NEXT, this=THIS, statement=statement)
    (folder / "versions" / f"{NEXT}_later.py").write_text(migration)
    return folder


def only_the_first(folder: Path) -> Path:
    """A copy of the migrations as the first release had them."""
    shutil.copytree(schema.MIGRATIONS, folder)
    for path in (folder / "versions").glob("*.py"):
        if not path.name.startswith(f"{FIRST}_"):
            path.unlink()
    roles = folder / "roles.sql"
    roles.write_text("".join(each for each in roles.read_text().splitlines(keepends=True) if not _LATER.search(each)))
    return folder
