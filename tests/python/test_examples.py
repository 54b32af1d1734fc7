"""The examples of docs/how-to/python.md, run from top to bottom as one program."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

PAGE = Path("docs/how-to/python.md")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NEXT = "\f"


@pytest.mark.long
def test_the_examples_of_the_how_to_print_what_they_say(tmp_path: Path, dsn: str) -> None:
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    shutil.copytree("pipelines", tmp_path / "pipelines")
    # A program of its own, because it starts Spark.
    done = subprocess.run(
        [sys.executable, "-c", f"print({_NEXT!r}, end='')\n".join(blocks)],
        cwd=tmp_path,
        env={**os.environ, "ONCELOAD_DSN": dsn, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )

    printed = done.stdout.split(_NEXT)
    assert printed[:9] == [
        "998 loaded, 2 quarantined, position 1\n",
        "998 rows compared, 0 differences\n",
        "2026-11-20.csv 9682\n2026-11-21.csv 1150\n",
        "2 loaded, 0 duplicates\n0 loaded, 2 duplicates\n",
        "200\n",
        "",
        "",
        "998 ['248.66', '249.34']\n",
        "0 new records\n",
    ]
    assert printed[9].startswith("missing.yaml:1: the file cannot be read")
    assert printed[10:] == [""]
