"""`make mutants` takes hours: that each bug can still be planted is asked with every change."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.bugs import BUGS, Bug

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name) for bug in BUGS])
def test_the_text_that_a_planted_bug_changes_is_there_once(bug: Bug):
    assert (ROOT / bug.file).read_text(encoding="utf-8").count(bug.correct) == 1


@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name) for bug in BUGS])
def test_the_tests_of_a_planted_bug_exist(bug: Bug):
    for test in bug.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists()
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


def test_no_planted_bug_names_something_that_does_not_exist(tmp_path):
    """Such a bug would be caught by any test that runs it."""
    for number, bug in enumerate(BUGS):
        if bug.file.endswith(".py"):
            source = (ROOT / bug.file).read_text(encoding="utf-8").replace(bug.correct, bug.wrong)
            (tmp_path / f"{number}.py").write_text(source, encoding="utf-8")

    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821", str(tmp_path)]
    found = subprocess.run(ruff, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stdout


def test_no_two_planted_bugs_have_one_name():
    names = [bug.name for bug in BUGS]

    assert sorted(set(names)) == sorted(names)
