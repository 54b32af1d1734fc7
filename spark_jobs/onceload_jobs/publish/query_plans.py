"""What the plan of a query shows about the records that it reads."""

from collections.abc import Iterator, Mapping, Set
from typing import Any

from onceload_core.errors import SettingRefused

#: The parts of a plan that make the rows of each record separately.
_OF_SINGLE_RECORDS = frozenset(
    {"Seq Scan", "Result", "ProjectSet", "Subquery Scan", "Nested Loop", "Function Scan", "Materialize"}
)
#: Joins whose rows for one record of the first side depend on no other record.
_OUTER = frozenset({"Left", "Semi", "Anti"})


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


def is_of_single_records(plan: Mapping[str, Any], records: str) -> bool:
    """Whether a query reads each record once and nothing else, and compares it with no other."""
    nodes = list(_nodes(plan))
    scanned = [node["Relation Name"] for node in nodes if "Relation Name" in node]
    if scanned != [records] or not all(node["Node Type"] in _OF_SINGLE_RECORDS for node in nodes):
        return False
    joins = (node for node in nodes if node.get("Join Type", "Inner") != "Inner")
    # If the records are the other side, rows without a record would be made of each part of the records.
    return all(node["Join Type"] in _OUTER and _reads(node["Plans"][0], {records}) for node in joins)


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
