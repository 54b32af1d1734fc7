"""The settings of a pipeline file that decide which records exist and what they mean, as comparable texts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onceload_core.advice import OF_POSTGRES
from onceload_core.declaration import (
    BOUNDARIES,
    FORMAT,
    IDENTITY,
    MESSAGE_ID,
    ORDER,
    PATH,
    PRODUCER,
    ROOT,
    TARGET,
    Declaration,
)
from onceload_core.pipeline import Pipeline
from onceload_jobs.files.addresses import address_of, shown
from onceload_jobs.files.listing import root_of
from onceload_jobs.pipeline.columns import INTEGERS, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import CsvOptions, Declared, Format, Identity, Source
from onceload_jobs.pipeline.layout import Layout, types_in
from onceload_jobs.write.sql import table_name


def pipeline_with_declaration(declared: Declared) -> Pipeline:
    """The pipeline, with everything that a load compares with the version in force."""
    declaration = Declaration(terms=_terms(declared), rest=_rest(declared), layout=Layout.of(declared).kept())
    return replace(
        declared.pipeline,
        declaration=declaration,
        moved_from=declared.source.moved_from,
        folder=address_of(root_of(declared.source.path, root=declared.source.root)),
        message_keep_days=declared.message_id.keep_days if declared.message_id else 0,
    )


def find_layout(version: Declaration, declared: Declared) -> Layout | None:
    """The layout of a version; None if it is not known."""
    if version.layout is not None:
        return Layout.parse(version.layout)
    # An earlier release has kept only texts. If those of the options are the same, the options are.
    now, types = Layout.of(declared), types_in(version.rest.get("columns", ""))
    is_as_now = (version.terms.get(FORMAT), version.rest.get("source.options")) == (
        str(now.format),
        _options(declared.source),
    )
    needs_types = now.format.is_typed or now.csv.get("header") is False
    return replace(now, types=types or {}) if is_as_now and (types or not needs_types) else None


#: Settings that decide which rows are made of which bytes; the rest decides which bytes are read, and when.
_OF_ROWS = (
    *(FORMAT, BOUNDARIES, PRODUCER, MESSAGE_ID),
    *("source.options", "source.record_bytes_max", "columns", "unknown_fields", "transform", "target"),
)


def of_rows(terms: Mapping[str, str], rest: Mapping[str, str]) -> tuple[str, ...]:
    """All settings of a version that decide which rows are made of which bytes."""
    return tuple({**terms, **rest}.get(key, "") for key in _OF_ROWS)


def _terms(declared: Declared) -> dict[str, str]:
    source, producer, message_id = declared.source, declared.producer, declared.message_id
    terms = {
        FORMAT: str(source.format),
        BOUNDARIES: _boundaries(source),
        IDENTITY: str(source.identity),
        PRODUCER: _typed(declared, (producer.name, producer.sequence) if producer else ()),
        ORDER: str(producer.order) if producer else "",
        MESSAGE_ID: _typed(declared, message_id.columns if message_id else ()),
        TARGET: table_name(declared.target),
    }
    if source.identity is Identity.PATH:
        # If content is the identity, a file is found under any name.
        terms[ROOT] = shown(root_of(source.path, root=source.root))
    return terms


def _boundaries(source: Source) -> str:
    csv = source.csv
    if source.format is not Format.CSV or not csv.multiline:
        return "one record a line" if not source.format.is_whole else "rows"
    return f"multiline, delimiter {csv.delimiter!r}, quote {csv.quote!r}, escape {csv.escape!r}"


def _typed(declared: Declared, names: Sequence[str]) -> str:
    """Columns with their types; a transform may make undeclared ones."""
    # Without a header, a column of CSV is identified by its position.
    has_places = declared.source.format is Format.CSV and not declared.source.csv.header
    texts: dict[str, str] = {}
    for number, column in enumerate(declared.columns, start=1):
        place = f" in place {number}" if has_places else ""
        texts[column.name] = f"{column.name} {_widest(column.type) + _path(column)}{place}"
    return ", ".join(texts.get(name, name).strip() for name in names)


def _path(column: Column) -> str:
    return f" at {json.dumps(column.path, ensure_ascii=False)}" if column.path else ""


def _widest(column_type: ColumnType) -> str:
    """A type with the same texts for the same values, so that widening a column does not change ids."""
    if column_type.is_array:
        return str(column_type)
    if column_type.kind in INTEGERS:
        return str(Kind.BIGINT)
    return str(Kind.TEXT if column_type.kind is Kind.VARCHAR else column_type)


def _options(source: Source) -> str:
    if source.format is Format.FIXED:
        return repr(source.fixed)
    return repr(source.csv) if source.csv != CsvOptions() else ""


def _rest(declared: Declared) -> dict[str, str]:
    source, target = declared.source, declared.target
    return {
        PATH: shown(source.pattern or source.path),
        "source.options": _options(source),
        "source.sealed": str(source.sealed_after_s),
        "source.chunk_bytes": str(source.chunk_bytes),
        "source.record_bytes_max": str(source.record_bytes_max),
        "columns": ", ".join(
            f"{each.name} {each.type}{' not null' if each.not_null else ''}{_path(each)}" for each in declared.columns
        ),
        "unknown_fields": str(declared.unknown_fields),
        "message_id.keep": str(declared.message_id.keep_days) if declared.message_id else "",
        "transform": (OF_POSTGRES if declared.is_made_by_postgres else "") + (declared.transform or ""),
        "target": f"{target.write}, key {target.key}, deleted {target.deleted}, lineage {target.lineage}"
        + (f", newer_file {target.newer_file}" if target.newer_file else ""),
        "publish": str(declared.publish),
        "delivery.mode": str(declared.delivery.mode),
        "on_rewrite": str(declared.on_rewrite),
        "guarantee": str(declared.pipeline.guarantee or ""),
    }
