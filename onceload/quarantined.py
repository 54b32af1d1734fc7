"""A quarantined record as people and programs see it: a row, all its fields, its bytes, and what to do with it."""

import codecs
from collections.abc import Mapping

from onceload_core.ports import QuarantineState
from onceload_core.postgres.quarantine import KeptRecord, QuarantineId


def row_of(record: KeptRecord, lines: Mapping[QuarantineId, int]) -> dict[str, object]:
    return {
        "id": record.quarantine_id,
        "file": record.file,
        "sequence_id": record.sequence_id,
        "line": lines.get(record.quarantine_id),
        "column": record.column,
        "reason": record.reason,
        "when": record.quarantined_at,
    }


def summary_of(record: KeptRecord, lines: Mapping[QuarantineId, int]) -> dict[str, object]:
    return {
        "id": record.quarantine_id,
        "pipeline": record.pipeline,
        "file": record.file,
        "generation": record.generation,
        "sequence_id": record.sequence_id,
        "line": lines.get(record.quarantine_id),
        "column": record.column,
        "reason": record.reason,
        "quarantined_at": record.quarantined_at,
        "position": record.position,
        "state": record.state,
        "settled_position": record.settled_position,
        "raw_bytes": record.raw_bytes,
    }


def what_to_do(record: KeptRecord) -> list[str]:
    if record.state is not QuarantineState.HELD:
        return [f"it was {record.state} at position {record.settled_position}; there is nothing to do"]
    named = f"--id {record.quarantine_id}"
    return [
        f"retry it:   onceload quarantine retry PIPELINE.yaml {named}",
        f"fix it:     onceload quarantine export FILE --pipeline {record.pipeline} {named}",
        f"discard it: onceload quarantine discard --pipeline {record.pipeline} {named} --yes",
    ]


def readable(raw: bytes, *, is_cut: bool = False) -> list[str]:
    """Lines that are safe for a terminal: printable text as it is, the rest escaped."""
    text = whole_characters(raw, is_cut=is_cut).decode("utf-8", "backslashreplace")
    # Other characters that end lines are escaped: they could hide what follows them.
    return [harmless(line) for line in text.split("\n")]


def whole_characters(raw: bytes, *, is_cut: bool) -> bytes:
    """Drop half a character at the cut, so that text stays text."""
    if not is_cut:
        return raw
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    return decoder.decode(raw).encode("utf-8", "surrogateescape")


def harmless(value: object) -> str:
    text = "-" if value is None else str(value)
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
