"""The pipeline file, checked completely before anything starts.

Each key is named once, where it is read; the keys that are read here are the keys that exist. Single values are checked
while they are read; combinations of values are checked on the declared pipeline, by `contradictions`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import yaml

from dedup_core.delivery import Mode, Rules
from dedup_core.errors import NotFound, SettingRefused, WrongUse
from dedup_core.pipeline import Guarantee, Pipeline, SnapshotPolicy
from dedup_core.verdicts import Order
from onceload.contradictions import contradictions
from onceload.pipeline_yaml import (
    NAME_BYTES_MAX,
    PROBLEMS_MAX,
    Document,
    Section,
    column_name,
    duration,
    flag,
    is_text,
    is_whole_number,
    names,
    not_what,
    one_of,
    size,
    some_text,
    text,
    whole_number,
)
from onceload.suite_file import read_suite
from spark_jobs.files.listing import root_of
from spark_jobs.pipeline.columns import RESERVED, Column, ColumnType, Kind, parse_column
from spark_jobs.pipeline.declared import (
    ON_ARRIVAL,
    CsvOptions,
    Declared,
    Format,
    Identity,
    MessageId,
    MissingColumns,
    OnRewrite,
    Publish,
    QuarantineLimit,
    RecordProducer,
    Source,
    Suite,
    Target,
    UnknownFields,
    Write,
)

_INT4_MAX = 2**31 - 1
_INT8_MAX = 2**63 - 1
#: Postgres allows 1 600, and the lineage needs some of them.
_COLUMNS_MAX = 1_597
#: Postgres allows no more arguments.
_MESSAGE_COLUMNS_MAX = 100
_SESSIONS_MAX = 1_000
_DELIVERIES_MAX = 1_000
#: Taking a delivery in order scans all open ones.
_OPEN_MAX = 100_000
_LINEAGE = ("_producer_id", "_sequence")


@dataclass(eq=False)
class PipelineFileRefused(WrongUse):
    """All errors of one file, each with its line and its fix."""

    path: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((*self.problems, f"{self.path}: nothing was started. Fix the file, and retry"))


def read_pipeline(path: Path, *, values: Mapping[str, str] = {}, offered: Mapping[str, str] = {}) -> Declared:
    """Read one file and fill its placeholders; raise all its errors at once.

    The file must use every one of the values; it may ignore the offered ones.
    """
    document = Document(str(path))
    root = document.open(path)
    declared = None if root is None else _declared(root, _Values(values, offered), beside=path.parent)
    if declared is not None:
        document.refuse_unknown_keys()
        # A key that is already refused would only be reported twice.
        sound = (each for each in contradictions(declared) if all(map(document.is_sound, (each.at, *each.about))))
        for found in list(islice(sound, PROBLEMS_MAX)):
            document.refuse(found.at, found.sentence)
    if declared is None or document.problems:
        raise PipelineFileRefused(str(path), document.problems)
    return declared


def placeholders(path: Path) -> tuple[str, ...]:
    """The names of the placeholders in source.path."""
    root = Document(str(path)).open(path)
    pattern = "" if root is None else root.section("source").take("path", some_text, default="")
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(pattern)))


def find_pipelines(folder: Path) -> list[Path]:
    """The pipeline files of a folder, hidden ones left out."""
    if not folder.is_dir():
        raise NotFound("folder of pipeline files", str(folder))
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in {".yaml", ".yml"} and not path.name.startswith(".") and path.is_file()
    )


@dataclass(frozen=True)
class _Values:
    given: Mapping[str, str]
    offered: Mapping[str, str] = field(default_factory=dict)


def _declared(root: Section, values: _Values, *, beside: Path) -> Declared:
    message_id = _message_id(root.section("message_id"))
    quality = root.section("quality")
    source = _source(root.section("source"), values)
    return Declared(
        pipeline=_pipeline(root, message_id),
        source=source,
        columns=_columns(root),
        unknown_fields=root.take("unknown_fields", one_of(UnknownFields), default=Declared.unknown_fields),
        producer=_producer(root.section("producer")),
        message_id=message_id,
        transform=root.take("transform", some_text, default=None),
        target=_target(root.section("target")),
        publish=root.take("publish", one_of(Publish), default=Declared.publish),
        delivery=_delivery(root.section("delivery")),
        on_rewrite=root.take("on_rewrite", one_of(OnRewrite), default=Declared.on_rewrite),
        quarantine_limit=quality.take("quarantined_max", quarantine_limit, default=None) or QuarantineLimit(),
        suite=_suite(quality, beside),
        schedule=root.take("schedule", cron, default=None),
    )


def _pipeline(root: Section, message_id: MessageId | None) -> Pipeline:
    limits, snapshot = root.section("limits"), root.section("snapshot")
    count, idle = whole_number(least=1, most=_INT4_MAX), duration(least_s=1, most_s=_INT4_MAX)
    every = duration(least_s=0, most_s=_INT4_MAX)
    return Pipeline(
        name=root.need("pipeline", pipeline_name, example="pipeline: events", stand_in="unnamed"),
        guarantee=root.take("guarantee", one_of(Guarantee), default=None),
        message_keep_days=message_id.keep_days if message_id else 0,
        producers_max=limits.take(
            "producers_max", whole_number(least=1, most=_INT8_MAX), default=Pipeline.producers_max
        ),
        islands_max=limits.take("islands_max", count, default=Pipeline.islands_max),
        forget_idle_after_s=limits.take("forget_idle_after", idle, default=None),
        snapshot=SnapshotPolicy(
            every_commits=snapshot.take("every_commits", count, default=SnapshotPolicy.every_commits),
            every_s=snapshot.take("every", every, default=SnapshotPolicy.every_s),
            kept=snapshot.take("kept", count, default=SnapshotPolicy.kept),
        ),
    )


def _source(source: Section, values: _Values) -> Source:
    chunk, record = size(least=1, most=2**30), size(least=1, most=2**28)
    file_format = source.need("format", one_of(Format), example="format: jsonl", stand_in=Format.CSV)
    if file_format is Format.PARQUET and source.has("sealed"):
        source.refuse("sealed", "parquet files are always complete; remove the key")
    pattern = partial(path_pattern, values=values)
    unnamed = _Path(path="unnamed")
    found = source.need("path", pattern, example="path: in/*.jsonl", stand_in=unnamed)
    return Source(
        path=found.path,
        root=found.root,
        pattern=found.pattern,
        moved_from=source.take("moved_from", some_text, default=None),
        format=file_format,
        csv=_csv_options(source, file_format),
        identity=source.take("identity", one_of(Identity), default=Source.identity),
        sealed_after_s=source.take("sealed", sealed_after, default=None),
        chunk_bytes=source.take("chunk_bytes", chunk, default=Source.chunk_bytes),
        record_bytes_max=source.take("record_bytes_max", record, default=Source.record_bytes_max),
    )


def _csv_options(source: Section, file_format: Format) -> CsvOptions:
    options = source.section("options")
    if options.keys and file_format is not Format.CSV:
        found = f"{options.keys[0]} with format: {file_format}"
        source.refuse("options", f"these options are for csv only, found {found}; remove them, or set format: csv")
    return CsvOptions(
        header=options.take("header", flag, default=CsvOptions.header),
        delimiter=options.take("delimiter", one_byte, default=CsvOptions.delimiter),
        quote=options.take("quote", one_byte_or_none, default=CsvOptions.quote),
        escape=options.take("escape", one_byte, default=CsvOptions.escape),
        null=options.take("null", text, default=CsvOptions.null),
        multiline=options.take("multiline", flag, default=CsvOptions.multiline),
        missing_columns=options.take("missing_columns", one_of(MissingColumns), default=CsvOptions.missing_columns),
    )


def _columns(root: Section) -> tuple[Column, ...]:
    section = root.section("columns")
    if not section.keys and root.is_sound("columns"):
        root.refuse("columns", "expected at least one column; add it below, such as `id: bigint not null`")
    if len(section.keys) > _COLUMNS_MAX:
        root.refuse("columns", f"expected at most {_COLUMNS_MAX} columns, found {len(section.keys)}; split the table")
    for name in section.keys:
        if problem := _column_name_problem(name):
            section.refuse(name, problem)
    stand_in = ColumnType(kind=Kind.TEXT)
    return tuple(
        section.need(name, partial(_column, name), example="", stand_in=Column(name=name, type=stand_in))
        for name in section.keys
    )


def _column_name_problem(name: str) -> str | None:
    if not name or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
        return f"expected a column name of 1 to {NAME_BYTES_MAX} bytes without NUL; rename the column"
    if name.startswith(_LINEAGE):
        return f"names that begin with {' or '.join(_LINEAGE)} are reserved for lineage; rename the column"
    if name in RESERVED:
        return f"{name} is reserved by Onceload or Postgres; rename the column"
    return None


def _column(name: str, node: yaml.Node) -> Column:
    declared = text(node)
    # No type is that long, and its numbers are parsed without a bound.
    if len(declared) > 200:
        raise not_what(node, "a Postgres type, such as `numeric(12,2) not null`")
    return parse_column(name, declared)


def _producer(producer: Section) -> RecordProducer | None:
    named = {
        key: producer.need(key, column_name, example=f"{key}: <column>", stand_in="unnamed")
        for key in ("name", "sequence")
        if producer.is_given
    }
    order = producer.take("order", one_of(Order), default=RecordProducer.order)
    return RecordProducer(**named, order=order) if named else None


def _message_id(message_id: Section) -> MessageId | None:
    if not message_id.is_given:
        return None
    return MessageId(
        columns=message_id.need("columns", _some_names, example="columns: [id]", stand_in=()),
        keep_days=message_id.need("keep", whole_days, example="keep: 30d", stand_in=1),
    )


def _suite(quality: Section, beside: Path) -> Suite | None:
    """Read the suite, which is beside or below the pipeline file; its errors carry its own line numbers."""
    kept_s = quality.take("keep", duration(least_s=0, most_s=_INT4_MAX), default=Suite.kept_s)
    named = quality.take("suite", some_text, default=None)
    if named is None:
        return None
    path = beside / named
    document = Document(str(path))
    expectations = read_suite(document, path)
    for problem in document.problems:
        quality.refuse("suite", problem)
    return Suite(name=Path(named).stem, path=str(path), expectations=expectations, kept_s=kept_s)


def _delivery(delivery: Section) -> Rules:
    mode = delivery.take("mode", one_of(Mode), default=Rules.mode)
    sessions = delivery.take("sessions", whole_number(least=1, most=_SESSIONS_MAX), default=Rules.sessions)
    if mode is Mode.SESSION and sessions is None:
        if delivery.is_sound("mode") and delivery.is_sound("sessions"):
            delivery.refuse("mode", "mode session needs a fixed number of sessions; add it, such as `sessions: 4`")
        sessions = 1
    return Rules(
        mode=mode,
        sessions=sessions,
        ack_deadline_s=delivery.take(
            "ack_deadline", duration(least_s=1, most_s=_INT4_MAX), default=Rules.ack_deadline_s
        ),
        deliveries_max=delivery.take(
            "deliveries_max", whole_number(least=1, most=_DELIVERIES_MAX), default=Rules.deliveries_max
        ),
        open_max=delivery.take("open_max", whole_number(least=1, most=_OPEN_MAX), default=Rules.open_max),
    )


def _target(target: Section) -> Target:
    schema, table = target.need("table", table_name, example="table: public.events", stand_in=("public", "unnamed"))
    return Target(
        schema=schema,
        table=table,
        write=target.take("write", one_of(Write), default=Target.write),
        key=target.take("key", names, default=Target.key),
        deleted=target.take("deleted", column_name, default=None),
        lineage=target.take("lineage", flag, default=Target.lineage),
    )


def pipeline_name(node: yaml.Node) -> str:
    return Pipeline(name=text(node)).name


@dataclass(frozen=True)
class _Path:
    path: str
    #: The folder that file names are relative to, and the path before it was filled; only with placeholders.
    root: str | None = None
    pattern: str | None = None


def path_pattern(node: yaml.Node, *, values: _Values) -> _Path:
    """Fill the placeholders once, and find the folder that file names are relative to.

    Placeholders inside values are not filled.
    """
    pattern = some_text(node)
    if not pattern.isprintable():
        raise not_what(node, "a path on one line")
    if "{{" in (rest := _PLACEHOLDER.sub("", pattern)) or "}}" in rest:
        raise not_what(node, "placeholders that are plain names, such as {{ ds }}")
    asked = dict.fromkeys(_PLACEHOLDER.findall(pattern))
    if unknown := [name for name in values.given if name not in asked]:
        expected = (
            f"--set for its placeholders only ({', '.join(asked)})" if asked else "no --set, as it has no placeholder"
        )
        raise SettingRefused("value", ", ".join(map(repr, unknown)), expected)
    filled = {**values.offered, **values.given}
    if missing := [name for name in asked if name not in filled]:
        fix = " ".join(f"--set {name}={_EXAMPLES.get(name, '...')}" for name in missing)
        raise SettingRefused("value", f"none; add {fix}", f"a value for {', '.join(missing)}")
    for name in asked:
        _check_value(name, filled[name])
    # For the root, a placeholder counts as a wildcard.
    root = root_of(_PLACEHOLDER.sub("?", pattern)) if asked else None
    path = _PLACEHOLDER.sub(lambda match: filled[match[1]], pattern)
    # Refuse here what listing would refuse, because here the line is known.
    root_of(path, root=root)
    return _Path(path=path, root=root, pattern=pattern if asked else None)


def _check_value(name: str, value: str) -> None:
    # A value is a part of the path: it must neither widen the path nor leave it.
    leads_away = value.startswith(("/", "\\")) or any(part in value for part in ("..", "://", "::"))
    if not value.strip() or not value.isprintable() or leads_away or set(value) & set("*?[]{}"):
        expected = f"a value for {name} without wildcards, `..` or a leading /"
        raise SettingRefused("value", f"{value!r}; set another with --set {name}=...", expected)


_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
#: The placeholders that Airflow fills for each run.
GIVEN = ("ds", "ds_nodash", "ts_nodash", "data_interval_start", "data_interval_end")
_EXAMPLES = {"ds": "2026-11-21"}


def sealed_after(node: yaml.Node) -> float | None:
    if is_text(node) and node.value in _SEALED:
        return _SEALED[node.value]
    try:
        return duration(least_s=0, most_s=_INT4_MAX)(node)
    except SettingRefused:
        raise not_what(node, "never, always, or a duration with its unit, such as 10m") from None


_SEALED = {"never": None, "always": 0.0}


def whole_days(node: yaml.Node) -> int:
    days = duration(least_s=1, most_s=_INT4_MAX)(node) / 86_400
    if not days.is_integer():
        raise not_what(node, "whole days, such as 30d")
    return int(days)


def one_byte(node: yaml.Node) -> str:
    value = text(node)
    if len(value.encode()) != 1 or value in "\r\n":
        raise not_what(node, 'one character of one byte, no line end; a tab is "\\t"; most symbols need quotes: "|"')
    return value


def one_byte_or_none(node: yaml.Node) -> str:
    return "" if text(node) == "" else one_byte(node)


def _some_names(node: yaml.Node) -> tuple[str, ...]:
    found = names(node)
    if not found:
        raise not_what(node, "at least one name, such as [id]")
    if len(found) > _MESSAGE_COLUMNS_MAX:
        raise not_what(node, f"at most {_MESSAGE_COLUMNS_MAX} names; name only the columns that identify a record")
    return found


def table_name(node: yaml.Node) -> tuple[str, str]:
    """`schema.table` or `table`; quoted parts keep their case and special characters."""
    match = _TABLE.fullmatch(text(node))
    if match is None:
        raise not_what(node, "schema.table or table; anything but letters, digits and _ needs quotes: '\"my table\"'")
    parts = [part for part in match.groups() if part]
    if any(part[0] != '"' and part != part.lower() for part in parts):
        raise not_what(node, "lower case, or quotes to keep the upper case: '\"Events\"'")
    *schema, table = (part[1:-1].replace('""', '"') if part[0] == '"' else part for part in parts)
    for name in (*schema, table):
        if len(name.encode()) > NAME_BYTES_MAX:
            raise not_what(node, f"names of at most {NAME_BYTES_MAX} bytes")
    if schema and (schema[0] in _SCHEMAS_TAKEN or schema[0].startswith("pg_")):
        raise not_what(node, "a schema of your own; this one belongs to Postgres or Onceload")
    return (schema[0] if schema else "public"), table


_PART = r'("(?:[^"]|"")+"|[^\W\d][\w$]*)'
_TABLE = re.compile(rf"{_PART}(?:\.{_PART})?")
_SCHEMAS_TAKEN = ("onceload", "onceload_stage", "information_schema")


def quarantine_limit(node: yaml.Node) -> QuarantineLimit:
    match = _SHARE.fullmatch(node.value) if is_text(node) else None
    if match and float(match[1]) <= 100:
        return QuarantineLimit(share=float(match[1]) / 100)
    if is_whole_number(node) and int(node.value) >= 0:
        return QuarantineLimit(records=int(node.value))
    raise not_what(node, "a percentage such as 0.1%, at most 100%, or a number of records")


_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?) ?%")


def cron(node: yaml.Node) -> str:
    """Five cron fields, one of Airflow's presets, or on_arrival."""
    value = text(node)
    fields = value.split()
    is_cron = len(fields) == len(_CRON) and all(map(_is_cron_field, fields, _CRON))
    if not is_cron and value not in (*_PRESETS, ON_ARRIVAL):
        others = ", ".join((*_PRESETS, ON_ARRIVAL))
        expected = f'five cron fields in range, such as "*/5 * * * *" (every five minutes), or one of {others}'
        raise not_what(node, expected)
    return " ".join(fields)


def _is_cron_field(field: str, bounds: tuple[int, int]) -> bool:
    for part in field.split(","):
        match = _CRON_PART.fullmatch(part)
        if match is None or not all(bounds[0] <= int(n) <= bounds[1] for n in (match[1], match[2]) if n):
            return False
        if match[3] and int(match[3]) == 0:
            return False
    return True


_CRON = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_CRON_PART = re.compile(r"(?:\*|[a-zA-Z]{3}(?:-[a-zA-Z]{3})?|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?")
_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
