"""Fix, retry and discard quarantined records."""

import unicodedata
from dataclasses import replace

from onceload import settling
from onceload.console.access import Link
from onceload.console.actions.asking import Action, Answer, Asked, Field, Question, no_pipeline_file
from onceload.console.quarantine import check_size, ids_of_kind, newest_id
from onceload.console.rendering import query
from onceload.pipeline_file import read_pipeline
from onceload.placeholders import GIVEN
from onceload.terminal import counted
from onceload_core.errors import SettingRefused
from onceload_core.ports import QuarantineState
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.quarantine import (
    Chosen,
    Fix,
    KeptRecord,
    QuarantineId,
    Refusal,
    Selection,
    choose,
    get_record,
)
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.recover.retry import RetryReport

#: As many are retried or discarded in one commit that a page waits for.
_RECORDS_MAX = 10_000
#: Longer records are fixed in a file.
_FIXED_BYTES_MAX = 64 * 2**10
_REASONS_SHOWN = 5


def _ask_fix(asked: Asked) -> Question:
    return _question_of_fix(*_editable(asked))


def _question_of_fix(record: KeptRecord, text: str, *refused: str) -> Question:
    return Question(
        title=f"Fix record {record.quarantine_id}",
        sentences=(
            *refused,
            f"It is not loaded because: {_in_words(record)}.",
            f"It is from {record.file}, at {record.sequence_id:,}. The file itself is not changed.",
        ),
        button="Load the fixed record",
        field=Field(name="raw", label="The record", value=text, is_long=True),
        seen=record.digest,
    )


def _in_words(refused: KeptRecord | Refusal) -> str:
    return f"{refused.column}: {refused.reason}" if refused.column else refused.reason


def _fix(asked: Asked) -> Answer | Question:
    record, _ = _editable(asked)
    text = asked.values.get("raw", "").replace("\r\n", "\n")
    fixed = {record.quarantine_id: Fix(raw=text.encode(), digest=asked.values.get("seen", ""))}
    report = settling.retry(asked.engine, _declared(asked), [record], fixed=fixed, by=asked.user)
    refusal = report.still_bad.get(record.quarantine_id)
    if refusal is not None:
        why = f"Your record was not loaded because: {_in_words(refusal)}. Nothing was changed."
        return _question_of_fix(record, text, why)
    return _answer(asked, report)


def _editable(asked: Asked) -> tuple[KeptRecord, str]:
    """A held record of this pipeline, as text."""
    record = get_record(asked.engine, QuarantineId(asked.number("id")), raw_bytes_max=_FIXED_BYTES_MAX + 1)
    if record.pipeline != asked.pipeline:
        raise SettingRefused("id", str(record.quarantine_id), f"a record of pipeline {asked.pipeline}")
    if record.state is not QuarantineState.HELD:
        found = f"it was {record.state} at position {record.settled_position}"
        raise SettingRefused(f"record {record.quarantine_id}", found, "a record in quarantine")
    try:
        text = record.raw.decode()
    except UnicodeDecodeError:
        text = ""
    # A browser sends other ends of lines, and no other control characters.
    has_others = any(unicodedata.category(each) == "Cc" for each in {*text} - {"\n", "\t"})
    if not text or len(record.raw) > _FIXED_BYTES_MAX or has_others:
        found = f"{record.raw_bytes:,} bytes that this page cannot show"
        expected = "at most 64 KiB of printable text (download this record, fix it in the file, and retry with --from)"
        raise SettingRefused(f"record {record.quarantine_id}", found, expected)
    return record, text


def _ask_retry(asked: Asked) -> Question:
    chosen, seen = _chosen(asked)
    return _question(
        chosen,
        seen,
        f"{counted(len(chosen.held), 'record')} in quarantine {_which(asked)}would be read again with the current "
        "pipeline file.",
        "Those that are valid now are loaded in one commit. The others stay in quarantine.",
        title="Retry records",
        button="Retry",
    )


def _retry(asked: Asked) -> Answer:
    chosen, _ = _chosen(asked)
    report = settling.retry(asked.engine, _declared(asked), chosen.held, fixed={}, by=asked.user)
    return _answer(asked, report)


def _ask_discard(asked: Asked) -> Question:
    chosen, seen = _chosen(asked)
    return _question(
        chosen,
        seen,
        f"{counted(len(chosen.held), 'record')} in quarantine {_which(asked)}would be marked as discarded.",
        "They will not be loaded. Their bytes are kept, and the ledger records your name. Only a rewind to a position "
        "before this undoes it.",
        title="Discard records",
        button="Discard",
    )


def _discard(asked: Asked) -> Answer:
    chosen, _ = _chosen(asked)
    if not chosen.held:
        return Answer(sentences=("No such record is in quarantine. Nothing was changed.",), link=_back(asked))
    position = settling.discard(asked.engine, asked.pipeline, chosen.held, by=asked.user)
    words = f"{counted(len(chosen.held), 'record')} discarded by {asked.user} at position {position:,}."
    return Answer(sentences=(words,), link=_back(asked))


def _chosen(asked: Asked) -> tuple[Chosen, int]:
    """The records that the address selects, by id, kind of reason or file, and the newest one that was looked at."""
    kind, file, seen = asked.values.get("kind") or None, asked.values.get("file") or None, _seen(asked)
    ids: tuple[QuarantineId, ...] | None = None
    if asked.values.get("id"):
        ids = (QuarantineId(asked.number("id")),)
    elif kind is not None:
        # Other reasons may contain this one as a part.
        column = asked.values.get("column") or None
        ids = ids_of_kind(asked.engine, asked.pipeline, kind, column=column, file=file, seen=seen, at_most=_RECORDS_MAX)
    selection = Selection(pipeline=asked.pipeline, ids=ids, file=file)
    if not selection.is_narrow:
        raise SettingRefused("this action", "no choice of records", "a record, a reason or a file")
    chosen = choose(asked.engine, selection, at_most=_RECORDS_MAX)
    held = tuple(record for record in chosen.held if record.quarantine_id <= seen)
    check_size(held)
    return replace(chosen, held=held), seen


def _seen(asked: Asked) -> int:
    """The newest record that the question counted; records that came later were not confirmed."""
    return asked.number("seen") if asked.values.get("seen") else newest_id(asked.engine, asked.pipeline)


def _question(chosen: Chosen, seen: int, *sentences: str, title: str, button: str) -> Question:
    if not chosen.held:
        nothing = "No such record is in quarantine. It may have been retried or discarded already."
        return Question(title=title, sentences=(nothing,), button=None)
    rest = len(chosen.held) == _RECORDS_MAX
    more = ("These are the oldest 10,000. Repeat the action for the rest.",) if rest else ()
    return Question(title=title, sentences=(*sentences, *more), button=button, seen=seen)


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
    if declared.name != asked.pipeline:
        # It was renamed since it was listed.
        raise no_pipeline_file(asked.pipeline)
    PostgresLedger(asked.engine).find_version(pipeline_with_declaration(declared))
    return declared


def _answer(asked: Asked, report: RetryReport) -> Answer:
    still_bad = list(report.still_bad.values())
    sentences = [f"{counted(report.retried, 'record')} loaded; the pipeline is at position {report.position:,}."]
    if report.settled_elsewhere:
        sentences.append(
            f"{counted(report.settled_elsewhere, 'record')} retried or discarded by another user meanwhile."
        )
    if still_bad:
        sentences.append(f"{counted(len(still_bad), 'record')} still in quarantine, because:")
        sentences += dict.fromkeys(refusal.reason for refusal in still_bad[:_REASONS_SHOWN])
    return Answer(sentences=tuple(sentences), link=_back(asked))


def _back(asked: Asked) -> Link:
    return Link(address=f"quarantine?{query(pipeline=asked.pipeline)}", words="The quarantine")


FIX = Action(ask=_ask_fix, do=_fix)
RETRY = Action(ask=_ask_retry, do=_retry)
DISCARD = Action(ask=_ask_discard, do=_discard)
