"""Files, classes and functions stay small enough to be read at once."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("dags", "dedup_core", "onceload", "plugins", "spark_jobs")
_LINES_MAX = {ast.Module: 400, ast.ClassDef: 200, ast.FunctionDef: 40, ast.AsyncFunctionDef: 40}


def test_no_file_class_or_function_of_the_product_is_too_long():
    too_long = [
        (path.relative_to(ROOT).as_posix(), getattr(node, "name", ""), lines)
        for path in (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
        for text in [path.read_text(encoding="utf-8")]
        for node in ast.walk(ast.parse(text))
        if type(node) in _LINES_MAX and (lines := _lines_of(node, text)) > _LINES_MAX[type(node)]
    ]

    assert too_long == []


def _lines_of(node, text):
    return len(text.splitlines()) if isinstance(node, ast.Module) else node.end_lineno - node.lineno + 1
