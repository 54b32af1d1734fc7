"""The migrations, and what comes after them."""

import re
import shutil
from pathlib import Path

from onceload import schema

FIRST = "0001"
THIS = schema.head()
NEXT = f"{int(THIS) + 1:04}"
#: What a line of roles.sql says of a column that a later migration has added.
_LATER = "UPDATE (layout)"
_TABLE = re.compile(r"onceload\.\w+")
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
    # It granted no rights on later tables and columns.
    roles = folder / "roles.sql"
    first = (folder / "versions" / "0001_first_version.py").read_text()
    lines = roles.read_text().splitlines()
    kept = [each for each in lines if _LATER not in each and all(table in first for table in _TABLE.findall(each))]
    roles.write_text("\n".join(kept))
    return folder
