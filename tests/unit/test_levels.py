"""The picture of the levels in docs/architecture.md, and the import contracts that enforce them."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PICTURE = re.compile(r"## The levels\n.*?```mermaid\nflowchart LR\n(.*?)```", re.DOTALL)
_GROUP = re.compile(r"    subgraph (\w+)\[.*?\]\n        direction TB\n(.*?)    end\n", re.DOTALL)
_NODE = re.compile(r'(\w+)(?:\["(.*)"\])?')


def test_the_picture_of_the_levels_is_that_of_the_import_contracts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    (picture,) = _PICTURE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))

    drawn = {name: list(chain(lines).values()) for name, lines in _GROUP.findall(picture)}
    packages = list(chain(_GROUP.sub("", picture)))

    assert drawn == {name: each["layers"] for each in contracts for name in each.get("containers", ())}
    assert [packages] == [each["layers"] for each in contracts if "containers" not in each]


def chain(lines: str) -> dict[str, str]:
    """The labels of the nodes by their names, from the first to the last arrow."""
    labels: dict[str, str] = {}
    arrows: list[tuple[str, str]] = []
    for line in lines.splitlines():
        nodes = [_NODE.fullmatch(node) for node in line.strip().split(" --> ")]
        assert all(nodes), line
        for name, label in (each.groups() for each in nodes if each):
            # A line that goes on where another ended does not repeat the label.
            labels.setdefault(name, label or name)
        arrows += pairwise(each[1] for each in nodes if each)
    assert arrows == list(pairwise(labels))
    return labels
