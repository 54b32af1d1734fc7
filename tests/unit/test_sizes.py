"""Files, classes and functions stay small enough to be read at once."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("dags", "dedup_core", "onceload", "plugins", "spark_jobs")
_LINES_MAX = {ast.Module: 400, ast.ClassDef: 200, ast.FunctionDef: 40, ast.AsyncFunctionDef: 40}


@pytest.mark.parametrize("kind", _LINES_MAX, ids=lambda kind: kind.__name__)
def test_no_file_class_or_function_of_the_product_is_too_long(kind):
    too_long = [
        (path.relative_to(ROOT).as_posix(), getattr(node, "name", ""), lines)
        for path in (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
        for text in [path.read_text(encoding="utf-8")]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kind) and (lines := _lines_of(node, text)) > _LINES_MAX[kind]
    ]

    assert too_long == []


def _lines_of(node, text):
    return len(text.splitlines()) if isinstance(node, ast.Module) else node.end_lineno - node.lineno + 1
