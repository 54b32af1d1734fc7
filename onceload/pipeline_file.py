"""The pipeline file, checked completely before anything starts.

Each key is named once, where it is read; the keys that are read here are the keys that exist. Single values are checked
while they are read; combinations of values are checked on the declared pipeline, by `contradictions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from onceload.contradictions import contradictions
from onceload.description import as_yaml
from onceload.pipeline_values import (
    INT4_MAX,
    column,
    cron,
    field_path,
    one_byte,
    one_byte_or_none,
    pipeline_name,
    place,
    quarantine_limit,
    sealed_after,
    some_names,
    table_name,
    whole_days,
)
from onceload.pipeline_yaml import PROBLEMS_MAX, Document, Section
from onceload.placeholders import FilledPath, Values, find_placeholders, path_pattern
from onceload.sources import source_of_rows
from onceload.suite_file import read_suite
from onceload.yaml_values import (
    NAME_BYTES_MAX,
    column_name,
    duration,
    flag,
    names,
    one_of,
    size,
    some_text,
    text,
    whole_number,
)
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import NotFound, WrongUse
from onceload_core.pipeline import Guarantee, Pipeline, SnapshotPolicy
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.columns import RESERVED, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import (
    CsvOptions,
    Declared,
    FixedOptions,
    Format,
    Identity,
    MessageId,
    MissingColumns,
    NewerFile,
    OnNewColumn,
    OnRewrite,
    Place,
    Publish,
    QuarantineLimit,
    RecordProducer,
    ShortLines,
    Source,
    Suite,
    Target,
    TransformEngine,
    UnknownFields,
    Write,
)

_INT8_MAX = 2**63 - 1
#: Postgres allows 1 600, and the lineage needs some of them.
COLUMNS_MAX = 1_597
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
        return "\n".join((*self.problems, f"{self.path}: nothing was started. Fix it, and retry"))


def read_pipeline(
    path: Path,
    *,
    values: Mapping[str, str] = {},
    offered: Mapping[str, str] = {},
    needs_source: bool = True,
) -> Declared:
    """Read one file and fill its placeholders; raise all its errors at once.

    The file must use every one of the values; it may ignore the offered ones. A pipeline without source is for rows
    that a program gives.
    """
    document, filled = Document(str(path)), Values(values, offered)
    return _checked(document, document.open(path), filled, beside=path.parent, needs_source=needs_source)


def parse_text(content: str, *, name: str) -> Declared:
    """The same for the text of a file without placeholders that is not written yet."""
    document = Document(name)
    return _checked(document, document.read(content.encode()), Values({}, {}), beside=Path(), needs_source=True)


def parse_pipeline(description: object, *, values: Mapping[str, str] = {}) -> Declared:
    """The same for a mapping with the keys of a file, or a dataclass; its paths are relative to the current folder."""
    document = Document("the description of the pipeline", has_lines=False)
    root = document.read(as_yaml(description))
    return _checked(document, root, Values(values), beside=Path(), needs_source=False)


def _checked(document: Document, root: Section | None, values: Values, *, beside: Path, needs_source: bool) -> Declared:
    declared = None if root is None else _declared(root, values, beside=beside, needs_source=needs_source)
    if declared is not None:
        document.refuse_unknown_keys()
        # A key that is already refused would only be reported twice.
        sound = (each for each in contradictions(declared) if all(map(document.is_sound, (each.at, *each.about))))
        for found in list(islice(sound, PROBLEMS_MAX)):
            document.refuse(found.at, found.sentence)
    if declared is None or document.problems:
        raise PipelineFileRefused(document.path, document.problems)
    return declared


def placeholders(path: Path) -> tuple[str, ...]:
    """The names of the placeholders in source.path."""
    root = Document(str(path)).open(path)
    pattern = "" if root is None else root.section("source").take("path", some_text, default="")
    return find_placeholders(pattern)


def find_pipelines(folder: Path) -> list[Path]:
    """The pipeline files of a folder, hidden ones left out."""
    if not folder.is_dir():
        raise NotFound("folder of pipeline files", str(folder))
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in {".yaml", ".yml"} and not path.name.startswith(".") and path.is_file()
    )


def _declared(root: Section, values: Values, *, beside: Path, needs_source: bool) -> Declared:
    message_id = _message_id(root.section("message_id"))
    quality, source = root.section("quality"), root.section("source")
    pipeline = _pipeline(root, message_id)
    transform, transform_engine = _transform(root)
    has_source = needs_source or root.has("source")
    return Declared(
        pipeline=pipeline,
        source=_source(source, values) if has_source else source_of_rows(pipeline.name),
        columns=_columns(root),
        unknown_fields=root.take("unknown_fields", one_of(UnknownFields), default=Declared.unknown_fields),
        on_new_column=root.take("on_new_column", one_of(OnNewColumn), default=Declared.on_new_column),
        producer=_producer(root.section("producer")),
        message_id=message_id,
        transform=transform,
        transform_engine=transform_engine,
        target=_target(root.section("target")),
        publish=root.take("publish", one_of(Publish), default=Declared.publish),
        delivery=_delivery(root.section("delivery")),
        on_rewrite=root.take("on_rewrite", one_of(OnRewrite), default=Declared.on_rewrite),
        quarantine_limit=quality.take("quarantined_max", quarantine_limit, default=None) or QuarantineLimit(),
        suite=_suite(quality, beside),
        schedule=root.take("schedule", cron, default=None),
    )


def _transform(root: Section) -> tuple[str | None, TransformEngine]:
    """A query alone is Spark SQL."""
    if not root.has_keys_below("transform"):
        return root.take("transform", some_text, default=None), Declared.transform_engine
    transform = root.section("transform")
    sql = transform.need("sql", some_text, example="sql: SELECT * FROM records", stand_in="SELECT")
    return sql, transform.take("engine", one_of(TransformEngine), default=Declared.transform_engine)


def _pipeline(root: Section, message_id: MessageId | None) -> Pipeline:
    limits, snapshot = root.section("limits"), root.section("snapshot")
    count, idle = whole_number(least=1, most=INT4_MAX), duration(least_s=1, most_s=INT4_MAX)
    every = duration(least_s=0, most_s=INT4_MAX)
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


def _source(source: Section, values: Values) -> Source:
    chunk, record = size(least=1, most=2**30), size(least=1, most=2**28)
    file_format = source.need("format", one_of(Format), example="format: jsonl", stand_in=Format.CSV)
    if file_format.is_whole and source.has("sealed"):
        source.refuse("sealed", f"{file_format} files are always complete; remove the key")
    csv, fixed = _options(source, file_format)
    pattern = partial(path_pattern, values=values)
    unnamed = FilledPath(path="unnamed")
    found = source.need("path", pattern, example="path: in/*.jsonl", stand_in=unnamed)
    return Source(
        path=found.path,
        root=found.root,
        pattern=found.pattern,
        moved_from=source.take("moved_from", some_text, default=None),
        format=file_format,
        csv=csv,
        fixed=fixed,
        identity=source.take("identity", one_of(Identity), default=Source.identity),
        sealed_after_s=source.take("sealed", sealed_after, default=None),
        chunk_bytes=source.take("chunk_bytes", chunk, default=Source.chunk_bytes),
        record_bytes_max=source.take("record_bytes_max", record, default=Source.record_bytes_max),
    )


def _options(source: Section, file_format: Format) -> tuple[CsvOptions, FixedOptions]:
    """The options of the format; those of another one are refused."""
    options = source.section("options")
    for key in options.keys:
        formats = [each for each, known in _OPTIONS.items() if key in known]
        if formats and file_format not in formats:
            found = f"{key} with format: {file_format}"
            only = f"this option is for {' and '.join(formats)} only, found {found}"
            source.refuse("options", f"{only}; remove it, or set format: {formats[0]}")
            break
    null = options.take("null", text, default="")
    csv, fixed = _csv_options(options, null=null), _fixed_options(options, null=null)
    return (CsvOptions(), fixed) if file_format is Format.FIXED else (csv, FixedOptions())


_OPTIONS = {
    Format.CSV: ("header", "delimiter", "quote", "escape", "null", "multiline", "missing_columns"),
    Format.FIXED: ("positions", "null", "short_lines"),
}


def _csv_options(options: Section, *, null: str) -> CsvOptions:
    return CsvOptions(
        header=options.take("header", flag, default=CsvOptions.header),
        delimiter=options.take("delimiter", one_byte, default=CsvOptions.delimiter),
        quote=options.take("quote", one_byte_or_none, default=CsvOptions.quote),
        escape=options.take("escape", one_byte, default=CsvOptions.escape),
        null=null,
        multiline=options.take("multiline", flag, default=CsvOptions.multiline),
        missing_columns=options.take("missing_columns", one_of(MissingColumns), default=CsvOptions.missing_columns),
    )


def _fixed_options(options: Section, *, null: str) -> FixedOptions:
    positions = options.section("positions")
    return FixedOptions(
        places=tuple(
            positions.need(name, partial(place, name), example="", stand_in=Place(column=name, first=0, end=0))
            for name in positions.keys
        ),
        null=null,
        short_lines=options.take("short_lines", one_of(ShortLines), default=FixedOptions.short_lines),
    )


def _columns(root: Section) -> tuple[Column, ...]:
    section = root.section("columns")
    if not section.keys and root.is_sound("columns"):
        root.refuse("columns", "expected at least one column; add it below, such as `id: bigint not null`")
    if len(section.keys) > COLUMNS_MAX:
        root.refuse("columns", f"expected at most {COLUMNS_MAX} columns, found {len(section.keys)}; split the table")
    for name in section.keys:
        if problem := find_column_name_problem(name):
            section.refuse(name, problem)
    return tuple(_column(section, name) for name in section.keys)


def _column(section: Section, name: str) -> Column:
    """A type alone, or a type with the path of its field."""
    stand_in, reading = Column(name=name, type=ColumnType(kind=Kind.TEXT)), partial(column, name)
    if not section.has_keys_below(name):
        return section.need(name, reading, example="", stand_in=stand_in)
    below = section.section(name)
    declared = below.need("type", reading, example="type: text", stand_in=stand_in)
    return replace(declared, path=below.take("path", field_path, default=()))


def find_column_name_problem(name: str) -> str | None:
    if not name or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
        return f"expected a column name of 1 to {NAME_BYTES_MAX} bytes without NUL; rename the column"
    if name.startswith(_LINEAGE):
        return f"names that begin with {' or '.join(_LINEAGE)} are reserved for lineage; rename the column"
    if name in RESERVED:
        return f"{name} is reserved by Onceload or Postgres; rename the column"
    return None


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
        columns=message_id.need("columns", some_names, example="columns: [id]", stand_in=()),
        keep_days=message_id.need("keep", whole_days, example="keep: 30d", stand_in=1),
    )


def _suite(quality: Section, beside: Path) -> Suite | None:
    """Read the suite, which is beside or below the pipeline file; its errors carry its own line numbers."""
    kept_s = quality.take("keep", duration(least_s=0, most_s=INT4_MAX), default=Suite.kept_s)
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
            "ack_deadline", duration(least_s=1, most_s=INT4_MAX), default=Rules.ack_deadline_s
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
        newer_file=target.take("newer_file", one_of(NewerFile), default=None),
        lineage=target.take("lineage", flag, default=Target.lineage),
    )
