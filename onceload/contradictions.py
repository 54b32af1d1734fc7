"""Contradictions: settings of a pipeline file that exclude each other."""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onceload.sources import has_source
from onceload_core.delivery import Mode
from onceload_core.errors import SettingRefused
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.columns import INTEGERS, Column, Kind, written_path
from onceload_jobs.pipeline.declared import (
    ON_ARRIVAL,
    CsvOptions,
    Declared,
    Format,
    Identity,
    NewerFile,
    OnRewrite,
    Publish,
    Target,
    UnknownFields,
    Write,
)


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """Two settings that are valid alone, but not together."""

    at: str
    sentence: str
    #: The other settings that take part in it.
    about: tuple[str, ...] = ()


def contradictions(declared: Declared) -> Iterator[Contradiction]:
    """The contradictions of a pipeline."""
    if declared.publish is Publish.DIRECT:
        yield from _against_direct(declared)
    if not has_source(declared):
        yield from _without_source(declared)
    yield from _in_the_target(declared)
    yield from _in_the_options(declared.source.csv)
    yield from _in_the_paths(declared)
    if declared.source.format is Format.FIXED:
        yield from _in_the_positions(declared)
    yield from _in_the_columns(declared)
    if declared.pipeline.forget_idle_after_s is not None and declared.producer is None:
        sentence = "files are never forgotten, because they would be loaded again; remove it, or add producer"
        yield Contradiction(at="limits.forget_idle_after", about=("producer",), sentence=sentence)
    if declared.transform and declared.unknown_fields is UnknownFields.ADD:
        sentence = "a transform defines all columns, so none can be added; set ignore or fail, or remove transform"
        yield Contradiction(at="unknown_fields", about=("transform",), sentence=sentence)
    if declared.schedule == ON_ARRIVAL and declared.source.root is not None:
        sentence = (
            "a run on arrival belongs to no day, but source.path has placeholders; replace them with wildcards, or set "
            "a cron schedule"
        )
        yield Contradiction(at="schedule", about=("source.path",), sentence=sentence)


def _against_direct(declared: Declared) -> Iterator[Contradiction]:
    """With direct, every chunk commits by itself, so no step sees the whole batch."""
    target, why_not = declared.target, "but publish: direct commits each chunk by itself; set publish: staged, or"
    staged_only = (
        ("target.write", target.write is Write.MERGE, "merge needs the last row of each key", "set write: append"),
        ("producer", declared.producer, "records are compared with the whole batch", "remove producer"),
        ("transform", declared.transform, "a transform sees the whole batch", "remove transform"),
        ("message_id", declared.message_id, "business ids are compared with the whole batch", "remove message_id"),
        ("quality.suite", declared.suite, "a suite audits the whole batch before it is published", "remove suite"),
        (
            "on_rewrite",
            declared.on_rewrite is OnRewrite.REPLACE,
            "replace deletes old rows and writes all new ones together",
            "set on_rewrite: stop",
        ),
    )
    for place, is_there, why, otherwise in staged_only:
        if is_there:
            yield Contradiction(at=place, about=("publish",), sentence=f"{why}, {why_not} {otherwise}")


def _without_source(declared: Declared) -> Iterator[Contradiction]:
    """A call with rows is one commit of one producer, and is not planned, staged or made again from files."""
    only_of_files = (
        ("target.write", declared.target.write is Write.MERGE, "set write: append"),
        ("producer", declared.producer, "remove it: load_rows names the producer and the ids"),
        ("transform", declared.transform, "remove it: give the rows as they are to be loaded"),
        ("message_id", declared.message_id, "remove it"),
        ("quality.suite", declared.suite, "remove it"),
        ("on_rewrite", declared.on_rewrite is not OnRewrite.STOP, "remove it"),
        ("schedule", declared.schedule, "remove it"),
    )
    for place, is_there, otherwise in only_of_files:
        if is_there:
            sentence = f"it applies to files, and rows that a program gives have none; {otherwise}, or add source"
            yield Contradiction(at=place, about=("source",), sentence=sentence)


def _in_the_target(declared: Declared) -> Iterator[Contradiction]:
    target = declared.target
    merges = target.write is Write.MERGE
    if merges and not target.key:
        sentence = (
            "merge finds rows by a key, but there is no key; add key: [<columns>] to target, or set write: append"
        )
        yield Contradiction(at="target.write", about=("target.key",), sentence=sentence)
    if target.key and not merges:
        sentence = "a key is only for merge, but write is append; set write: merge, or remove key"
        yield Contradiction(at="target.key", about=("target.write",), sentence=sentence)
    if target.deleted and not merges:
        sentence = "only merge deletes rows, but write is append; set write: merge, or remove deleted"
        yield Contradiction(at="target.deleted", about=("target.write",), sentence=sentence)
    yield from _in_the_newer_file(declared)
    if merges and declared.producer and declared.producer.order is Order.ANY:
        yield from _against_late_records(target)
    if declared.on_rewrite is OnRewrite.REPLACE:
        yield from _against_replace(declared)


def _in_the_newer_file(declared: Declared) -> Iterator[Contradiction]:
    place, target = "target.newer_file", declared.target
    if target.newer_file and target.write is not Write.MERGE:
        sentence = "only merge compares files, but write is append; set write: merge, or remove newer_file"
        yield Contradiction(at=place, about=("target.write",), sentence=sentence)
    elif target.newer_file and declared.producer:
        sentence = "it compares files, but with producer the records say where they come from; remove newer_file"
        yield Contradiction(at=place, about=("producer",), sentence=sentence)
    elif target.newer_file is NewerFile.BY_TIME and declared.delivery.mode is Mode.ORDERED:
        sentence = "mode: ordered takes files in the order of their names; set by_name, or another mode"
        yield Contradiction(at=place, about=("delivery.mode",), sentence=sentence)
    if declared.is_merge_of_files and declared.source.identity is Identity.CONTENT and target.newer_file is None:
        sentence = (
            "merge must know which of two new files is newer, and with identity: content a file may have any name; add "
            "newer_file: by_time (the one modified last) to target, or newer_file: by_name (the one whose name sorts "
            "last)"
        )
        yield Contradiction(at="target.write", about=("source.identity", place), sentence=sentence)


def _against_late_records(target: Target) -> Iterator[Contradiction]:
    """In any order, a late record must not overwrite a newer one of its producer: the row must show which is newer.

    It shows this for its own producer only. If several producers write one key, the last applied record wins.
    """
    lacking = (
        (
            "target.lineage",
            not target.lineage,
            "a row without lineage does not show how old it is",
            "set lineage: true",
        ),
        ("target.deleted", target.deleted, "a deleted row does not show when it was deleted", "remove deleted"),
    )
    for place, is_there, why, otherwise in lacking:
        if is_there:
            sentence = f"{why}, but with order: any a record may arrive late; set order: ordered, or {otherwise}"
            yield Contradiction(at=place, about=("producer.order",), sentence=sentence)


def _against_replace(declared: Declared) -> Iterator[Contradiction]:
    for place, why in _not_replaceable(declared):
        yield Contradiction(at="on_rewrite", about=(place,), sentence=f"{why}; set stop or new_generation")


def refuse_choice(declared: Declared, *, files: Sequence[str], replaces: bool) -> None:
    """Refuse a choice of files, or a reload, that the pipeline does not allow."""
    if files and not may_choose(declared):
        found = f"{', '.join(files)}, but this pipeline must load records in their order"
        raise SettingRefused(f"files of pipeline {declared.name}", found, "no choice of files")
    if replaces and (reasons := list(against_replacing(declared))):
        expected = "publish: staged, write: append, lineage: true and files as producers (or load without --replace)"
        found = f"settings that do not allow it: {'; '.join(reasons)}"
        raise SettingRefused(f"replacing rows of pipeline {declared.name}", found, expected)


def may_choose(declared: Declared) -> bool:
    return not (declared.is_ordered_across_files or declared.delivery.mode is Mode.ORDERED)


def may_replace(declared: Declared) -> bool:
    return not list(against_replacing(declared))


def against_replacing(declared: Declared) -> Iterator[str]:
    """Why the rows of a file of this pipeline cannot be replaced."""
    yield from (why for _, why in _not_replaceable(declared))
    if declared.is_direct:
        yield (
            "replace deletes old rows and writes all new ones together, but publish: direct commits each chunk by "
            "itself"
        )


def _not_replaceable(declared: Declared) -> Iterator[tuple[str, str]]:
    """Rows are replaced by their _producer_id: each must belong to one file only, and must be loadable again."""
    target = declared.target
    reasons = (
        ("target.lineage", not target.lineage, "replace finds rows by their _producer_id, but lineage is false"),
        ("target.write", target.write is Write.MERGE, "a merged row may come from several files"),
        (
            "source.identity",
            declared.source.identity is Identity.CONTENT,
            "with identity: content a row may belong to several files",
        ),
        ("producer", declared.producer, "rows belong to the producers that records name, not to files"),
        (
            "message_id",
            declared.message_id,
            "a deleted row is not loaded again, because its business id was seen before",
        ),
    )
    yield from ((place, why) for place, is_there, why in reasons if is_there)


def _in_the_options(csv: CsvOptions) -> Iterator[Contradiction]:
    where = "source.options"
    if csv.multiline and not csv.quote:
        sentence = (
            "values can contain newlines only inside quotes, but quote is empty; set quote, or set multiline: false"
        )
        yield Contradiction(at=f"{where}.multiline", about=(f"{where}.quote",), sentence=sentence)
    signs = {"delimiter": csv.delimiter, "quote": csv.quote, "escape": csv.escape}
    for one, other in (("delimiter", "quote"), ("delimiter", "escape"), ("quote", "escape")):
        if signs[one] and signs[one] == signs[other]:
            sentence = f"{one} and {other} are both {signs[one]!r}; set different characters"
            if (one, other) == ("quote", "escape"):
                sentence = f"{sentence}, or remove escape: then a quote inside quotes is written twice"
            yield Contradiction(at=f"{where}.{other}", about=(f"{where}.{one}",), sentence=sentence)


def _in_the_paths(declared: Declared) -> Iterator[Contradiction]:
    by_steps: dict[tuple[str, ...], Column] = {}
    for column in declared.columns:
        if column.path and declared.source.format not in {Format.JSONL, Format.JSON}:
            sentence = f"path is for jsonl and json only, but the format is {declared.source.format}; remove path"
            yield Contradiction(at=f"columns.{column.name}.path", about=("source.format",), sentence=sentence)
        if (other := by_steps.setdefault(column.steps, column)) is not column:
            sentence = f"{other.name} is already read from {written_path(column.steps)}; remove one of the two columns"
            yield Contradiction(at=f"columns.{column.name}", about=(f"columns.{other.name}",), sentence=sentence)
    for column in declared.columns:
        for end in range(1, len(column.steps)):
            above = by_steps.get(column.steps[:end])
            if above is not None and (above.type.kind is not Kind.JSONB or above.type.is_array):
                sentence = (
                    f"its path leads through {written_path(column.steps[:end])}, but {above.name} is {above.type}, "
                    f"which cannot hold an object; declare {above.name} as jsonb, or remove one of the two columns"
                )
                yield Contradiction(at=f"columns.{column.name}", about=(f"columns.{above.name}",), sentence=sentence)


def _in_the_positions(declared: Declared) -> Iterator[Contradiction]:
    """Each column has a place of its own in the line."""
    where, places = "source.options.positions", declared.source.fixed.places
    there, named = set(declared.column_names), {place.column for place in places}
    if lacking := [name for name in declared.column_names if name not in named]:
        sentence = (
            f"the column {lacking[0]} has no position; add its first and last character, such as {lacking[0]}: 1-8"
        )
        yield Contradiction(at=where, about=(f"columns.{lacking[0]}",), sentence=sentence)
    for place in places:
        if place.column not in there:
            sentence = f"no column is called {place.column!r}; declare it under columns, or remove its position"
            yield Contradiction(at=f"{where}.{place.column}", about=("columns",), sentence=sentence)
    for one, other in pairwise(sorted(places, key=lambda place: (place.first, place.end))):
        if other.first < one.end:
            sentence = f"{one.column} ({one}) and {other.column} ({other}) overlap; fix one of them"
            yield Contradiction(at=f"{where}.{other.column}", about=(f"{where}.{one.column}",), sentence=sentence)
    if declared.unknown_fields is UnknownFields.ADD:
        sentence = "characters outside the positions have no field name, so no column can be added; set ignore or fail"
        yield Contradiction(at="unknown_fields", about=("source.format",), sentence=sentence)


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
            sentence = f"{why}, but {name} is {found}; declare it as {kinds[-1]}, or name another column"
            yield Contradiction(at=place, about=(f"columns.{name}",), sentence=sentence)


#: Extra columns of staged rows.
_OF_STAGED_ROWS = ("_producer_id", "_sequence")


def _named_columns(declared: Declared) -> Iterator[tuple[str, str]]:
    """Each place where the file names a column, and the name."""
    if declared.producer:
        yield "producer.name", declared.producer.name
        yield "producer.sequence", declared.producer.sequence
    if declared.message_id:
        yield from (("message_id.columns", name) for name in declared.message_id.columns)
    # The columns of a transform are known only after it has been planned.
    if declared.transform is None:
        yield from (("target.key", name) for name in declared.target.key)
        if declared.target.deleted:
            yield "target.deleted", declared.target.deleted
        if declared.suite and declared.unknown_fields is not UnknownFields.ADD:
            of_suite = (name for expectation in declared.suite.expectations for name in expectation.columns)
            yield from (("quality.suite", name) for name in of_suite if name not in _OF_STAGED_ROWS)


def _typed_columns(declared: Declared) -> Iterator[tuple[str, str, tuple[Kind, ...], str]]:
    """Each place where the file names a column of certain types only, the name, the types, and why."""
    if declared.producer:
        yield "producer.sequence", declared.producer.sequence, INTEGERS, "sequence ids are integers"
    if declared.target.deleted and declared.transform is None:
        yield "target.deleted", declared.target.deleted, (Kind.BOOLEAN,), "deleted is true or false"
