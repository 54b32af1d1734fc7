"""The examples of docs/how-to/python.md, run from top to bottom as one program."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

PAGE = Path("docs/how-to/python.md")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.long
def test_the_examples_of_the_how_to_print_what_they_say(
    tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    shutil.copytree("pipelines", tmp_path / "pipelines")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONCELOAD_DSN", dsn)
    names: dict[str, Any] = {"__name__": "examples"}

    printed = []
    for block in blocks:
        exec(compile(block, PAGE, "exec"), names)
        printed.append(capsys.readouterr().out)

    assert printed[:6] == [
        "998 loaded, 2 quarantined, position 1\n",
        "998 rows compared, 0 differences\n",
        "2026-11-20.csv 9682\n2026-11-21.csv 1150\n",
        "2 loaded, 0 duplicates\n0 loaded, 2 duplicates\n",
        "200\n",
        "",
    ]
    assert printed[6].startswith("missing.yaml:1: the file cannot be read")
    assert printed[7:] == [""]
