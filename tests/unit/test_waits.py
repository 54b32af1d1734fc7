"""Tests wait for what happens, for as long as it takes on any machine."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.share import TURN_S, sort_for_turn
from tests.waiting import PATIENCE_S

TESTS = Path(__file__).resolve().parents[1]


def test_no_wait_in_a_test_is_shorter_than_a_slow_machine_needs():
    """Waits for what must not happen are inside of `pytest.raises`; less than a second is a pause between looks."""
    short = [each for path in sorted(TESTS.rglob("*.py")) for each in _short_waits(path)]

    assert short == []


def test_a_share_of_the_tests_lists_those_that_did_not_run():
    file = "tests/unit/test_spans.py"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--minutes-max", "0", "--turn", "0", file]

    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True, timeout=PATIENCE_S)

    assert "tests did not run within 0 minutes" in done.stdout
    assert f"{file}::" in done.stdout
    assert "passed" not in done.stdout


@pytest.mark.parametrize("every", [1, 6])
def test_a_fifth_of_the_tests_in_each_turn_or_each_day_runs_all_of_them_within_eight(every):
    items: list[Any] = [SimpleNamespace(location=(f"tests/test_{number}.py", 0, "")) for number in range(200)]
    for first in range(0, 400_000, 40_000):
        ran = set[str]()
        for turn in range(first, first + 8 * every, every):
            sort_for_turn(items, 1_800_000_000 + turn * TURN_S)
            ran |= {item.location[0] for item in items[:40]}
        assert len(ran) == len(items)


def _short_waits(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    refused = {id(inner) for node in ast.walk(tree) if _is_refusal(node) for inner in ast.walk(node)}
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in refused)
    for call in calls:
        for seconds in _seconds_in(call):
            if 1 <= seconds < PATIENCE_S:
                yield f"{path.relative_to(TESTS)}:{call.lineno} waits {seconds:g} s"


def _seconds_in(call: ast.Call) -> Iterator[float]:
    waits = [each.value for each in call.keywords if each.arg in {"timeout", "timeout_s", "patience_s"}]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "wait":
        waits += call.args
    for wait in waits:
        if isinstance(wait, ast.Constant) and isinstance(wait.value, int | float):
            yield wait.value


def _is_refusal(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any("raises" in ast.unparse(each.context_expr) for each in node.items)
