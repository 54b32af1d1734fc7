"""Fix, retry and discard quarantined records."""

from onceload import settling
from onceload.console.access import Link
from onceload.console.actions.asking import Action, Answer, Asked, Field, Question
from onceload.console.rendering import query
from onceload.pipeline_file import read_pipeline
from onceload.placeholders import GIVEN
from onceload.terminal import counted
from onceload_core.errors import SettingRefused
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.quarantine import (
    Chosen,
    KeptRecord,
    QuarantineId,
    Refusal,
    Selection,
    choose,
    get_record,
)
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration

#: As many are retried or discarded in one commit that a page waits for.
_RECORDS_MAX = 10_000
#: Longer records are fixed in a file.
_FIXED_BYTES_MAX = 64 * 2**10
_REASONS_SHOWN = 5


def _ask_fix(asked: Asked) -> Question:
    record, text = _editable(asked)
    return Question(
        title=f"Fix record {record.quarantine_id}",
        sentences=(
            f"It is not loaded because: {record.reason}.",
            f"It is from {record.file}, at {record.sequence_id:,}. The file itself is not changed.",
        ),
        button="Load the fixed record",
        field=Field(name="raw", label="The record", value=text, is_long=True),
    )


def _fix(asked: Asked) -> Answer:
    record, _ = _editable(asked)
    raw = asked.values.get("raw", "").replace("\r\n", "\n").encode()
    declared = _declared(asked)
    fixed = {record.quarantine_id: raw}
    report = settling.retry(asked.engine, declared, [record], fixed=fixed, by=asked.user)
    return _answer(asked, retried=report.retried, still_bad=list(report.still_bad.values()), position=report.position)


def _editable(asked: Asked) -> tuple[KeptRecord, str]:
    """A held record of this pipeline, as text."""
    record = get_record(asked.engine, QuarantineId(asked.number("id")), raw_bytes_max=_FIXED_BYTES_MAX + 1)
    if record.pipeline != asked.pipeline:
        raise SettingRefused("id", str(record.quarantine_id), f"a record of pipeline {asked.pipeline}")
    try:
        text = record.raw.decode()
    except UnicodeDecodeError:
        text = ""
    # A browser sends other ends of lines, and no other control characters.
    if not text or len(record.raw) > _FIXED_BYTES_MAX or not text.replace("\n", "").replace("\t", "").isprintable():
        expected = "a short record of printable text (fix this one in a file: `onceload quarantine export`)"
        raise SettingRefused(f"record {record.quarantine_id}", f"one of {record.raw_bytes:,} bytes", expected)
    return record, text


def _ask_retry(asked: Asked) -> Question:
    chosen = _chosen(asked)
    return Question(
        title="Retry records",
        sentences=(
            f"{counted(len(chosen.held), 'record')} in quarantine {_which(asked)}would be read again with the pipeline "
            "file of today.",
            "Those that are valid now are loaded in one commit. The others stay in quarantine.",
        ),
        button="Retry" if chosen.held else None,
    )


def _retry(asked: Asked) -> Answer:
    chosen = _chosen(asked)
    report = settling.retry(asked.engine, _declared(asked), chosen.held, fixed={}, by=asked.user)
    return _answer(asked, retried=report.retried, still_bad=list(report.still_bad.values()), position=report.position)


def _ask_discard(asked: Asked) -> Question:
    chosen = _chosen(asked)
    return Question(
        title="Discard records",
        sentences=(
            f"{counted(len(chosen.held), 'record')} in quarantine {_which(asked)}would be marked as discarded.",
            "They are never loaded. Their bytes and an entry in the ledger with your name stay.",
        ),
        button="Discard" if chosen.held else None,
    )


def _discard(asked: Asked) -> Answer:
    chosen = _chosen(asked)
    if not chosen.held:
        return Answer(sentences=("No such record is in quarantine. Nothing was changed.",), link=_back(asked))
    position = settling.discard(asked.engine, asked.pipeline, chosen.held, by=asked.user)
    words = f"{counted(len(chosen.held), 'record')} discarded by {asked.user} at position {position:,}."
    return Answer(sentences=(words,), link=_back(asked))


def _chosen(asked: Asked) -> Chosen:
    """The records that the address selects: one by its id, or those of a reason or of a file."""
    ids = (QuarantineId(asked.number("id")),) if asked.values.get("id") else None
    reason, file = asked.values.get("kind") or None, asked.values.get("file") or None
    selection = Selection(pipeline=asked.pipeline, ids=ids, reason=reason, file=file)
    if not selection.is_narrow:
        raise SettingRefused("this action", "no choice of records", "a record, a reason or a file")
    return choose(asked.engine, selection, at_most=_RECORDS_MAX)


def _which(asked: Asked) -> str:
    parts = []
    if asked.values.get("kind"):
        parts.append(f"with the reason “{asked.values['kind']}” ")
    if asked.values.get("file"):
        parts.append(f"of the file {asked.values['file']} ")
    return "".join(parts)


def _declared(asked: Asked) -> Declared:
    """The pipeline file; refused if it would change the meaning of loaded data."""
    declared = read_pipeline(asked.file.path, offered=dict.fromkeys(GIVEN, "0"), needs_source=False)
    PostgresLedger(asked.engine).find_version(pipeline_with_declaration(declared))
    return declared


def _answer(asked: Asked, *, retried: int, still_bad: list[Refusal], position: int) -> Answer:
    sentences = [f"{counted(retried, 'record')} loaded; the pipeline is at position {position:,}."]
    if still_bad:
        sentences.append(f"{counted(len(still_bad), 'record')} still in quarantine, because:")
        sentences += dict.fromkeys(refusal.reason for refusal in still_bad[:_REASONS_SHOWN])
    return Answer(sentences=tuple(sentences), link=_back(asked))


def _back(asked: Asked) -> Link:
    return Link(address=f"quarantine?{query(pipeline=asked.pipeline)}", words="The quarantine")


FIX = Action(ask=_ask_fix, do=_fix)
RETRY = Action(ask=_ask_retry, do=_retry)
DISCARD = Action(ask=_ask_discard, do=_discard)
