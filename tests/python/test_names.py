"""The public names of `import onceload`, and how light that is."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import onceload


def test_importing_onceload_imports_nothing_heavy():
    check = "import sys, onceload; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.split()

    assert "onceload" in loaded
    assert {each.partition(".")[0] for each in loaded}.isdisjoint({"sqlalchemy", "pyarrow", "yaml", "onceload_jobs"})


def test_every_public_name_is_there_once_and_in_order():
    assert sorted(set(onceload.__all__)) == list(onceload.__all__)
    assert all(getattr(onceload, name) is not None for name in onceload.__all__)
    assert set(onceload.__all__) <= set(dir(onceload))


def test_type_checkers_see_the_names_that_are_there():
    tree = ast.parse(Path(inspect.getfile(onceload)).read_text(encoding="utf-8"))
    guarded = next(each for each in tree.body if isinstance(each, ast.If))
    seen = {
        (each.module, alias.name) for each in guarded.body if isinstance(each, ast.ImportFrom) for alias in each.names
    }

    assert seen == {(module, name) for name, module in onceload._MODULE_OF.items()}
    assert {name for _, name in seen} == set(onceload.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'onceload' has no attribute 'Pipelines'"):
        _ = onceload.Pipelines
