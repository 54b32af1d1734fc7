"""`make mutants` takes hours: that each bug can still be planted is asked with every change."""

import subprocess
import sys
from pathlib import Path

from tests.mutants.bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]


def content_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def test_the_text_that_a_planted_bug_changes_is_there_once():
    assert [bug.name for bug in BUGS if content_of(bug.file).count(bug.correct) != 1] == []


def test_the_tests_of_a_planted_bug_exist():
    assert [bug.name for bug in BUGS if not all(map(exists, bug.tests))] == []


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).exists() and (not name or f"def {name.partition('[')[0]}(" in content_of(file))


def test_no_planted_bug_names_something_that_does_not_exist(tmp_path):
    """Such a bug would be caught by any test that runs it."""
    for number, bug in enumerate(BUGS):
        if bug.file.endswith(".py"):
            source = content_of(bug.file).replace(bug.correct, bug.wrong)
            (tmp_path / f"{number}.py").write_text(source, encoding="utf-8")

    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    found = subprocess.run(ruff, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stdout


def test_no_two_planted_bugs_have_one_name():
    names = [bug.name for bug in BUGS]

    assert sorted(set(names)) == sorted(names)
