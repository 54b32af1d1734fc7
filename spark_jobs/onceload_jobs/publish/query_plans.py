"""What the plan of a query shows about the records that it reads."""

from collections.abc import Iterator, Mapping, Set
from typing import Any

from onceload_core.errors import SettingRefused


def check_reads_all(plan: Mapping[str, Any], records: str) -> None:
    """Refuse a query that leaves records out by chance or reads none: the ledger would count them as loaded."""
    nodes = list(_nodes(plan))
    reading = {records}
    while more := {_cte_of(node) for node in nodes if _reads(node, reading)} - reading - {""}:
        reading |= more
    if not _reads(plan, reading) or any(node["Node Type"] == "Limit" and _reads(node, reading) for node in nodes):
        found = "SQL that leaves records unread"
        expected = (
            "a query that reads all records (no LIMIT, no DISTINCT of one value, no condition that is always false)"
        )
        raise SettingRefused("transform", found, expected)


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _reads(plan: Mapping[str, Any], reading: Set[str]) -> bool:
    """Whether a part of a plan reads some tables or named queries."""
    return any({node.get("Relation Name"), node.get("CTE Name")} & reading for node in _nodes(plan))


def _cte_of(node: Mapping[str, Any]) -> str:
    """The named query that a part of a plan computes, or nothing."""
    name = str(node.get("Subplan Name", ""))
    return name.removeprefix("CTE ") if name.startswith("CTE ") else ""
