"""What a pipeline file says that cannot all be meant."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dedup_core.delivery import Mode
from dedup_core.errors import SettingRefused
from dedup_core.verdicts import Order
from spark_jobs.pipeline.columns import INTEGERS, Kind
from spark_jobs.pipeline.declared import (
    ON_ARRIVAL,
    CsvOptions,
    Declared,
    Identity,
    OnRewrite,
    Publish,
    Target,
    UnknownFields,
    Write,
)


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Two things that are each right, and cannot both be."""

    at: str
    sentence: str
    #: What it rests on besides.
    about: tuple[str, ...] = ()


def contradictions(declared: Declared) -> Iterator[Contradiction]:
    """What a pipeline says that cannot all be meant."""
    if declared.publish is Publish.DIRECT:
        yield from _against_direct(declared)
    yield from _in_the_target(declared)
    yield from _in_the_options(declared.source.csv)
    yield from _in_the_columns(declared)
    if declared.pipeline.forget_idle_after_s is not None and declared.producer is None:
        sentence = "a file is never forgotten, as it would be loaded again; remove it, or add producer"
        yield Contradiction(at="limits.forget_idle_after", about=("producer",), sentence=sentence)
    if declared.transform and declared.unknown_fields is UnknownFields.ADD:
        sentence = "a transform names all columns that there are; set ignore or fail, or remove transform"
        yield Contradiction(at="unknown_fields", about=("transform",), sentence=sentence)
    if declared.schedule == ON_ARRIVAL and declared.source.root is not None:
        sentence = (
            "a run on arrival is of no day, and source.path has placeholders; put wildcards in their place, or give a "
            "cron text"
        )
        yield Contradiction(at="schedule", about=("source.path",), sentence=sentence)


def _against_direct(declared: Declared) -> Iterator[Contradiction]:
    """Direct means that every chunk commits by itself: nothing sees the batch as a whole."""
    target, why_not = declared.target, "and publish: direct commits each chunk by itself; set publish: staged, or"
    staged_only = (
        ("target.write", target.write is Write.MERGE, "merge takes the last row of a key", "set write: append"),
        ("producer", declared.producer, "records are compared with the whole batch", "remove producer"),
        ("transform", declared.transform, "a transform sees the whole batch", "remove transform"),
        ("message_id", declared.message_id, "business ids are compared with the whole batch", "remove message_id"),
        ("quality.suite", declared.suite, "all rows of a batch are audited before any is seen", "remove suite"),
        (
            "on_rewrite",
            declared.on_rewrite is OnRewrite.REPLACE,
            "old rows go when all new ones come",
            "set on_rewrite: stop",
        ),
    )
    for place, is_there, why, otherwise in staged_only:
        if is_there:
            yield Contradiction(at=place, about=("publish",), sentence=f"{why}, {why_not} {otherwise}")


def _in_the_target(declared: Declared) -> Iterator[Contradiction]:
    target = declared.target
    merges = target.write is Write.MERGE
    if merges and not target.key:
        sentence = (
            "merge finds a row by its key, and there is none; add key: [<columns>] to target, or set write: append"
        )
        yield Contradiction(at="target.write", about=("target.key",), sentence=sentence)
    if target.key and not merges:
        sentence = "a key is for merge, and write is append; set write: merge, or remove key"
        yield Contradiction(at="target.key", about=("target.write",), sentence=sentence)
    if target.deleted and not merges:
        sentence = "only merge deletes rows, and write is append; set write: merge, or remove deleted"
        yield Contradiction(at="target.deleted", about=("target.write",), sentence=sentence)
    if merges and declared.producer and declared.producer.order is Order.ANY:
        yield from _against_late_records(target)
    if declared.on_rewrite is OnRewrite.REPLACE:
        yield from _against_replace(declared)


def _against_late_records(target: Target) -> Iterator[Contradiction]:
    """In any order, a late record must not undo a later one of its producer: the row has to tell which was the last.

    It tells that of its own producer only. Where several write one key, what is applied last wins.
    """
    lacking = (
        (
            "target.lineage",
            not target.lineage,
            "a row without lineage does not tell how old it is",
            "set lineage: true",
        ),
        ("target.deleted", target.deleted, "a row that was deleted does not tell when", "remove deleted"),
    )
    for place, is_there, why, otherwise in lacking:
        if is_there:
            sentence = f"{why}, and with order: any an older record may come late; set order: ordered, or {otherwise}"
            yield Contradiction(at=place, about=("producer.order",), sentence=sentence)


def _against_replace(declared: Declared) -> Iterator[Contradiction]:
    for place, why in _not_replaceable(declared):
        yield Contradiction(at="on_rewrite", about=(place,), sentence=f"{why}; set stop or new_generation")


def refuse_choice(declared: Declared, *, files: Sequence[str], replaces: bool) -> None:
    """Refuse what a load is told to be about, where a pipeline loads all of it or nothing."""
    if files and not may_choose(declared):
        found = f"{', '.join(files)}, where what comes first must take effect first"
        raise SettingRefused(f"files of pipeline {declared.name}", found, "none: it loads all that is new in its order")
    if replaces and (reasons := list(_against_replacing(declared))):
        expected = "a staged pipeline that appends rows of files, each with its lineage; load what is missing instead"
        raise SettingRefused(f"replacing rows of pipeline {declared.name}", "; ".join(reasons), expected)


def may_choose(declared: Declared) -> bool:
    return not (declared.is_in_turn or declared.delivery.mode is Mode.ORDERED)


def may_replace(declared: Declared) -> bool:
    return not list(_against_replacing(declared))


def _against_replacing(declared: Declared) -> Iterator[str]:
    yield from (why for _, why in _not_replaceable(declared))
    if declared.is_direct:
        yield "old rows go when all new ones come, and publish: direct commits each chunk by itself"


def _not_replaceable(declared: Declared) -> Iterator[tuple[str, str]]:
    """Rows are replaced by their _producer_id: each has to be of one file alone, and may come again."""
    target = declared.target
    reasons = (
        ("target.lineage", not target.lineage, "replace finds rows by their _producer_id, and lineage is false"),
        ("target.write", target.write is Write.MERGE, "a merged row may come from several files"),
        (
            "source.identity",
            declared.source.identity is Identity.CONTENT,
            "with identity: content a row may be that of several files",
        ),
        ("producer", declared.producer, "rows are those of the producers that records name, and not of files"),
        ("message_id", declared.message_id, "a row that is replaced does not come back: its business id was seen"),
    )
    yield from ((place, why) for place, is_there, why in reasons if is_there)


def _in_the_options(csv: CsvOptions) -> Iterator[Contradiction]:
    where = "source.options"
    if csv.multiline and not csv.quote:
        sentence = (
            "newlines belong to a value only inside quotes, and quote is empty; give a quote, or set multiline: false"
        )
        yield Contradiction(at=f"{where}.multiline", about=(f"{where}.quote",), sentence=sentence)
    signs = {"delimiter": csv.delimiter, "quote": csv.quote, "escape": csv.escape}
    for one, other in (("delimiter", "quote"), ("delimiter", "escape"), ("quote", "escape")):
        if signs[one] and signs[one] == signs[other]:
            sentence = f"{one} and {other} are both {signs[one]!r}; give each a sign of its own"
            if (one, other) == ("quote", "escape"):
                sentence = f"{sentence}, or remove escape: a quote inside quotes is doubled then"
            yield Contradiction(at=f"{where}.{other}", about=(f"{where}.{one}",), sentence=sentence)


def _in_the_columns(declared: Declared) -> Iterator[Contradiction]:
    known = {column.name: column.type for column in declared.columns}
    for place, name in _named_columns(declared):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            fix = f"did you mean {close[0]}?" if close else "declare it under columns"
            yield Contradiction(at=place, about=("columns",), sentence=f"no column is called {name!r}; {fix}")
    for place, name, kinds, why in _typed_columns(declared):
        found = known.get(name)
        if found and (found.kind not in kinds or found.is_array):
            sentence = f"{why}, and {name} is {found}; declare it as {kinds[-1]}, or name another column"
            yield Contradiction(at=place, about=(f"columns.{name}",), sentence=sentence)


#: What staged rows have besides.
_OF_STAGED_ROWS = ("_producer_id", "_sequence")


def _named_columns(declared: Declared) -> Iterator[tuple[str, str]]:
    """Where the file names a column, and which."""
    if declared.producer:
        yield "producer.name", declared.producer.name
        yield "producer.sequence", declared.producer.sequence
    if declared.message_id:
        yield from (("message_id.columns", name) for name in declared.message_id.columns)
    # A transform may name its columns as it likes; what it makes is known once Spark has planned it.
    if declared.transform is None:
        yield from (("target.key", name) for name in declared.target.key)
        if declared.target.deleted:
            yield "target.deleted", declared.target.deleted
        if declared.suite and declared.unknown_fields is not UnknownFields.ADD:
            of_suite = (name for expectation in declared.suite.expectations for name in expectation.columns)
            yield from (("quality.suite", name) for name in of_suite if name not in _OF_STAGED_ROWS)


def _typed_columns(declared: Declared) -> Iterator[tuple[str, str, tuple[Kind, ...], str]]:
    """Where the file names a column of certain types only, which types, and why."""
    if declared.producer:
        yield "producer.sequence", declared.producer.sequence, INTEGERS, "sequence ids are whole numbers"
    if declared.target.deleted and declared.transform is None:
        yield "target.deleted", declared.target.deleted, (Kind.BOOLEAN,), "deleted is true or false"
