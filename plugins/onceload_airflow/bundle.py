"""Two DAG bundles: one DAG per pipeline file of a folder, and the DAGs that people start.

Airflow parses Python files, and an error in one breaks all DAGs in it. So each pipeline file gets its own small Python
file here, which is written when the bundle is refreshed, and deleted with the pipeline file.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle

from onceload.pipeline_file import find_pipelines
from onceload.shipped import shipped

_DAG = '''"""The DAG of {path}."""

from pathlib import Path

from onceload_airflow.ingest import dag_of

dag = dag_of(Path({path!r}))
'''


class PipelinesBundle(BaseDagBundle):
    """The DAGs of the pipelines folder."""

    supports_versioning = False

    def __init__(self, *, pipelines: str, **others: Any) -> None:  # noqa: ANN401 - of the class above.
        super().__init__(**others)
        self.pipelines = Path(pipelines).absolute()

    @property
    def path(self) -> Path:
        return self.base_dir

    def initialize(self) -> None:
        self.refresh()
        super().initialize()

    def refresh(self) -> None:
        """Write changed files; each is replaced atomically."""
        self.base_dir.mkdir(parents=True, exist_ok=True)
        wanted = {self._name_of(path): _DAG.format(path=str(path)) for path in find_pipelines(self.pipelines)}
        for name, content in wanted.items():
            file = self.base_dir / name
            if not file.exists() or file.read_text(encoding="utf-8") != content:
                with NamedTemporaryFile("w", dir=self.base_dir, suffix=".new", delete=False, encoding="utf-8") as new:
                    new.write(content)
                Path(new.name).replace(file)
        for file in self.base_dir.glob("ingest__*.py"):
            if file.name not in wanted:
                with suppress(FileNotFoundError):
                    file.unlink()

    @staticmethod
    def _name_of(path: Path) -> str:
        # File names that differ only in characters that modules cannot have stay distinct by their hash.
        return f"ingest__{path.name.replace('.', '_')}_{hashlib.sha256(path.name.encode()).hexdigest()[:8]}.py"

    def get_current_version(self) -> None:
        return None


class RecoveryBundle(BaseDagBundle):
    """The DAGs `backfill`, `recover`, `snapshot`, `verify` and `maintain`, which come with Onceload."""

    supports_versioning = False

    @property
    def path(self) -> Path:
        return shipped("dags")

    def refresh(self) -> None:
        """Nothing: they change with the installed version only."""

    def get_current_version(self) -> None:
        return None
