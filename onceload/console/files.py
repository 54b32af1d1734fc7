"""One file: its generations, what was loaded of it and by whom; and where one row came from."""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection, Engine

from onceload.console.access import Access
from onceload.console.reading import reading
from onceload_core.errors import NotFound, OnceloadError
from onceload_core.postgres.connection import Record, array, statements
from onceload_core.postgres.quarantine import find_root
from onceload_core.spans import Span, SpanSet
from onceload_jobs.files.addresses import errors_naming, local_path
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.reading import open_stream, read_at

SQL = statements("files.sql", package=__package__)
_GENERATIONS_MAX = 20
_RECEIPTS_MAX = 200
_RECORDS_MAX = 500
_WORK_MAX = 100
#: How many loaded spans are drawn: more than the picture is wide.
_LOADED_MAX = 2_000
_WORDS = {"held": "in progress", "dead": "dead letter"}
#: How much of a record is read from its file.
_RAW_BYTES_MAX = 4 * 2**10
#: How far into a file lines are counted, and how far into a compressed file a record is looked for.
_READ_BYTES_MAX = 64 * 2**20
#: The limit for uncompressed files in an object store, where reading just the record is much faster.
_FETCHED_BYTES_MAX = 2**20


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of the picture of a file, in thousandths of its length."""

    kind: str
    first: float
    width: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Generation:
    row: Record
    pieces: tuple[Piece, ...]
    #: The end of the picture.
    end: int
    #: Whether there are more loaded spans.
    is_cut: bool


@dataclass(frozen=True, kw_only=True)
class File:
    name: str
    generations: tuple[Generation, ...] = ()
    receipts: Sequence[Record] = ()
    work: Sequence[Record] = ()
    #: The lists of which only a part is shown.
    cut: tuple[str, ...] = ()


def known_of(engine: Engine, pipeline: str, names: Iterable[str]) -> frozenset[str]:
    """Those of some files of which something may be loaded."""
    with reading(engine, "which files are known", pipeline=pipeline) as (connection, pipeline_id):
        return frozenset(
            connection.execute(SQL["known"], {"pipeline_id": pipeline_id, "names": array(names)}).scalars()
        )


def file_of(engine: Engine, pipeline: str, name: str) -> File:
    """A file without a generation was never loaded."""
    with reading(engine, f"the file {name}", pipeline=pipeline) as (connection, pipeline_id):
        binds = {"pipeline_id": pipeline_id, "name": name, "at_most": _GENERATIONS_MAX + 1}
        rows = connection.execute(SQL["generations"], binds).all()
        of = {"pipeline_id": pipeline_id, "producer_ids": array(row.producer_id for row in rows)}
        receipts = connection.execute(SQL["receipts"], of | {"at_most": _RECEIPTS_MAX + 1}).all()
        bad_records = connection.execute(SQL["bad_records"], of | {"at_most": _RECORDS_MAX + 1}).all()
        work = connection.execute(SQL["work"], of | {"at_most": _WORK_MAX + 1}).all()
    return File(
        name=name,
        generations=tuple(_generation(row, bad_records, work) for row in rows[:_GENERATIONS_MAX]),
        receipts=receipts[:_RECEIPTS_MAX],
        work=work[:_WORK_MAX],
        cut=tuple(
            words
            for words, some, at_most in (
                (f"the newest {_GENERATIONS_MAX} generations", rows, _GENERATIONS_MAX),
                (f"the newest {_RECEIPTS_MAX} receipts", receipts, _RECEIPTS_MAX),
                (f"the first {_RECORDS_MAX} quarantined records", bad_records, _RECORDS_MAX),
                (f"the first {_WORK_MAX} parts of open work", work, _WORK_MAX),
            )
            if len(some) > at_most
        ),
    )


def _generation(row: Record, bad_records: Sequence[Record], work: Sequence[Record]) -> Generation:
    consumed = SpanSet.parse(row.consumed)
    held = [Span(each.sequence_id, each.sequence_id + 1) for each in bad_records if each.producer_id == row.producer_id]
    in_hand = [(SpanSet.parse(each.spans), each.state) for each in work if each.producer_id == row.producer_id]
    end = max([row.size or 0, 1, *(span.end for spans in (consumed, *(each for each, _ in in_hand)) for span in spans)])
    loaded = list(islice(consumed, _LOADED_MAX + 1))
    pieces = [_piece("loaded", span, end) for span in loaded[:_LOADED_MAX]]
    pieces += [_piece(state, span, end) for spans, state in in_hand for span in spans]
    pieces += [_piece("quarantined", span, end) for span in held]
    return Generation(row=row, pieces=tuple(pieces), end=end, is_cut=len(loaded) > _LOADED_MAX)


def _piece(kind: str, span: Span, end: int) -> Piece:
    # A single record of a large file must still be seen.
    width = max(1000 * len(span) / end, 2.0)
    start = min(1000 * span.first / end, 1000 - width)
    words = f"{_WORDS.get(kind, kind)}: [{span.first:,}, {span.end:,})"
    return Piece(kind=kind, first=round(start, 2), width=round(width, 2), words=words)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Where a row came from."""

    producer: Record
    sequence: int
    #: None if no commit is found: of producers that records name, receipts are not searched.
    commit: Record | None
    #: If it went to the quarantine.
    bad_record: Record | None
    now: "InFile"


@dataclass(frozen=True, kw_only=True)
class InFile:
    """A record as it is in its file now."""

    #: Its beginning, or why it is not shown.
    raw: bytes | None = None
    why_not: str = ""
    #: Counted from 1; None if it is too far into the file to be counted.
    line: int | None = None


def row_of(engine: Engine, access: Access, pipeline: str, *, producer_id: int, sequence: int) -> Row:
    with reading(engine, "where a row came from", pipeline=pipeline) as (connection, pipeline_id):
        binds = {"pipeline_id": pipeline_id, "producer_id": producer_id, "sequence": sequence}
        producer = _one(connection, "producer", binds)
        if producer is None:
            raise NotFound(f"producer of pipeline {pipeline}", str(producer_id))
        commit, bad = _one(connection, "commit_of_row", binds), _one(connection, "bad_record", binds)
    now = _read(engine, access, pipeline, producer=producer, sequence=sequence)
    return Row(producer=producer, sequence=sequence, commit=commit, bad_record=bad, now=now)


def _one(connection: Connection, statement: str, binds: Mapping[str, object]) -> Record | None:
    return connection.execute(SQL[statement], binds).one_or_none()


def _read(engine: Engine, access: Access, pipeline: str, *, producer: Record, sequence: int) -> InFile:
    root = find_root(engine, pipeline)
    if producer.condition == "replaced":
        return InFile(why_not="its file was replaced by a later generation")
    # A name comes from data, and must not lead out of the folder.
    if root is None or leads_out(producer.name):
        why = "records of this format have numbers instead of byte offsets, so they cannot be found in the file here"
        return InFile(why_not=why)
    url = posixpath.join(root, producer.name)
    is_here = is_compressed(url) or local_path(url) is not None
    is_near = sequence <= (_READ_BYTES_MAX if is_here else _FETCHED_BYTES_MAX)
    if is_compressed(url) and not is_near:
        return InFile(why_not=f"it begins after the first {_READ_BYTES_MAX // 2**20} MiB of its compressed file")
    try:
        with access.reaching(url):
            if not is_near:
                raw, lines = read_at(url, offset=sequence, size=_RAW_BYTES_MAX), None
            else:
                raw, lines = _read_from_start(url, sequence)
    except OnceloadError as error:
        return InFile(why_not=str(error))
    if not raw:
        return InFile(why_not="the file is shorter now")
    return InFile(raw=raw.split(b"\n", 1)[0], line=None if lines is None else lines + 1)


def leads_out(name: str) -> bool:
    """Whether a name that comes from data could lead out of the folder of a pipeline."""
    return name.startswith("/") or "://" in name or ".." in name.split("/")


def _read_from_start(url: str, sequence: int) -> tuple[bytes, int]:
    """The beginning of a record, and the number of lines before it."""
    lines = 0
    with errors_naming(url), open_stream(url) as stream:
        while sequence and (block := stream.read(min(sequence, 2**20))):
            sequence -= len(block)
            lines += block.count(b"\n")
        return b"" if sequence else stream.read(_RAW_BYTES_MAX), lines
