"""A quarantined record as people and programs see it: a row, all its fields, its bytes, and what to do with it."""

import codecs
from collections.abc import Mapping, Sequence
from shlex import quote

from onceload_core.advice import Ways
from onceload_core.commands import PIPELINE_FILE, reload_command
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


def what_to_do(record: KeptRecord, ways: Ways) -> list[str]:
    """What a person can do with a record, each with the command."""
    if record.state is not QuarantineState.HELD:
        return [f"it was {record.state} at position {record.settled_position}; there is nothing to do"]
    named = f"--id {record.quarantine_id}"
    pipeline = f"--pipeline {quote(record.pipeline)}"
    discard = f"discard it: `onceload quarantine discard {pipeline} {named} --yes`"
    if record.is_replaced:
        return ["its whole file was loaded again after that, so it cannot be retried", discard]
    again = f"or load its file again: {reload_command(record.file)}. Then discard this record"
    if ways.against_retry is not None:
        refusal = f"it cannot be retried, because the pipeline declares {ways.against_retry}"
        lines = [f"{refusal}. Instead, {ways.instead_of_retry()}. Then discard this record"]
    else:
        lines = [
            f"retry it:   `onceload quarantine retry {PIPELINE_FILE} {named}`",
            f"fix it:     `onceload quarantine export bad.jsonl {pipeline} {named}`",
        ]
    return [*lines, *([again] if ways.may_reload else []), discard]


def what_to_do_with(exported: str, ids: Sequence[QuarantineId], pipeline: str, ways: Ways) -> str:
    """What a person can do with exported records."""
    if ways.against_retry is None:
        return f"fix `raw` in each line, then run `onceload quarantine retry {PIPELINE_FILE} --from {quote(exported)}`"
    named = " ".join(f"--id {each}" for each in ids[:_IDS_SHOWN])
    discard = f"`onceload quarantine discard --pipeline {quote(pipeline)} {named} --yes`"
    and_others = f", and the other {len(ids) - _IDS_SHOWN:,} in the same way" if len(ids) > _IDS_SHOWN else ""
    return (
        f"they cannot be retried, because the pipeline declares {ways.against_retry}. Instead, "
        f"{ways.instead_of_retry()}. Then discard these records with {discard}{and_others}"
    )


_IDS_SHOWN = 20


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
