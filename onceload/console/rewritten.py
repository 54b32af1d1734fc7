"""A rewritten file: what was loaded of it beside what it has now, and what each choice would do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from sqlalchemy import Engine

from onceload.console.access import Access
from onceload.console.files import leads_out
from onceload.console.reading import reading
from onceload.console.rows import LINES_MAX, loaded_from
from onceload.contradictions import against_replacing
from onceload.lag import Described
from onceload_core.errors import NotFound, OnceloadError
from onceload_core.postgres.connection import Record, statements
from onceload_core.spans import Span
from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.listing import url_of
from onceload_jobs.files.reading import look_at, open_stream
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.pipeline.declared import OnRewrite
from onceload_jobs.read.digests import Digests, digests_in
from onceload_jobs.write.sql import table_name

SQL = statements("files.sql", package=__package__)
_PARTS_MAX = 50
_BLOCK_BYTES = 2**20
#: How much of the file is read for one page.
_READ_BYTES_MAX = 32 * 2**20
_SHOWN_BYTES = 2_000
#: How many changed parts are shown beside their loaded rows.
_PARTS_WITH_ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one commit read of the file."""

    receipt: Record
    span: Span
    #: Whether the file has the same bytes there now; None if that is not known.
    is_same: bool | None
    #: The first lines of the part in the file now, if its bytes have changed.
    lines: tuple[str, ...] = ()
    #: The first rows that were loaded from it, as JSON; None if they were not looked for.
    rows: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The loaded generation of a file beside the file itself."""

    name: str
    generation: Record
    #: According to the receipts.
    rows: int
    parts: tuple[Part, ...]
    #: Of the file now.
    size: int | None
    #: Why the file or a part of it is not compared, and why loaded rows are not shown.
    not_compared: str | None
    not_shown: str | None
    on_rewrite: OnRewrite
    #: Why its rows cannot be replaced.
    against_replacing: tuple[str, ...]
    #: Shows the loaded rows; None if they do not name their file.
    query: str | None


def comparison_of(engine: Engine, access: Access, described: Described, name: str) -> Comparison:
    declared = described.declared
    with reading(engine, f"what was loaded of {name}", pipeline=declared.name) as (connection, pipeline_id):
        of = {"pipeline_id": pipeline_id, "name": name, "at_most": 1}
        generation = connection.execute(SQL["generations"], of).one_or_none()
        if generation is None:
            raise NotFound("file", name)
        binds = {"pipeline_id": pipeline_id, "producer_id": generation.producer_id}
        receipts = connection.execute(SQL["digests"], binds | {"at_most": _PARTS_MAX}).all()
        rows = connection.execute(SQL["rows_of_file"], binds).scalar_one()
    size, parts, not_compared = None, tuple(_unknown(receipts)), None
    try:
        # A name comes from data, and must not lead out of the folder.
        if leads_out(name):
            raise NotFound("file", name)
        url = url_of(declared.source.path, name, root=declared.source.root)
        with access.reaching(url):
            size = look_at(url).size
            if declared.source.format.is_whole:
                not_compared = "rows of this format are numbered, so only sizes are compared here. Use Verify"
            else:
                with errors_naming(url):
                    parts = tuple(_compare(url, receipts))
    except OnceloadError as error:
        not_compared = str(error)
    not_compared = _why_not_all(not_compared, receipts, parts)
    parts, not_shown = _with_rows(engine, described, generation.producer_id, parts)
    return Comparison(
        name=name,
        generation=generation,
        rows=rows,
        parts=parts,
        size=size,
        not_compared=not_compared,
        not_shown=not_shown,
        on_rewrite=declared.on_rewrite,
        against_replacing=tuple(against_replacing(declared)),
        query=_query(described, generation.producer_id),
    )


def _why_not_all(not_compared: str | None, receipts: Sequence[Record], parts: Sequence[Part]) -> str | None:
    """Why the file, or a part of it, was not compared; None if all of it was."""
    if len(receipts) == _PARTS_MAX:
        return f"only the first {_PARTS_MAX} commits of the file are shown here. Use Verify"
    if not_compared is None and any(part.is_same is None for part in parts):
        return f"only the first {_READ_BYTES_MAX // 2**20} MiB of the file are compared here. Use Verify"
    return not_compared


def _with_rows(
    engine: Engine, described: Described, producer_id: int, parts: tuple[Part, ...]
) -> tuple[tuple[Part, ...], str | None]:
    """The parts, the first changed ones with their rows; or why there are none."""
    changed = [part for part in parts if part.is_same is False][:_PARTS_WITH_ROWS]
    if not changed or not described.declared.target.lineage:
        return parts, None
    try:
        rows = loaded_from(engine, described, producer_id, [part.span for part in changed])
    except OnceloadError as error:
        return parts, str(error)
    shown = {part.span: tuple(some) for part, some in zip(changed, rows, strict=True)}
    return tuple(replace(part, rows=shown.get(part.span)) for part in parts), None


def _query(described: Described, producer_id: int) -> str | None:
    target = described.declared.target
    if not target.lineage:
        return None
    # It is shown, and not run.
    return f"SELECT * FROM {table_name(target)} WHERE {PRODUCER_ID} = {producer_id} ORDER BY {SEQUENCE};"  # noqa: S608


def _spans(receipts: Sequence[Record]) -> list[tuple[Record, Span, bytes]]:
    found = [(receipt, span, digest) for receipt in receipts for span, digest in digests_in(receipt.digest)]
    return sorted(found, key=lambda each: (each[1].first, each[1].end))[:_PARTS_MAX]


def _unknown(receipts: Sequence[Record]) -> Iterator[Part]:
    for receipt, span, _ in _spans(receipts):
        yield Part(receipt=receipt, span=span, is_same=None)


def _compare(url: str, receipts: Sequence[Record]) -> Iterator[Part]:
    """Read the beginning of the file once."""
    with open_stream(url) as stream:
        at = 0
        for receipt, span, expected in _spans(receipts):
            if span.end > _READ_BYTES_MAX or span.first < at:
                yield Part(receipt=receipt, span=span, is_same=None)
                continue
            for _ in _blocks(stream, span.first - at):
                pass
            digests, begins, at = Digests(), b"", span.end
            for block in _blocks(stream, len(span)):
                begins = begins or block[:_SHOWN_BYTES]
                digests.feed(block)
            is_same = expected in digests.possible()
            yield Part(receipt=receipt, span=span, is_same=is_same, lines=() if is_same else _lines(begins))


def _blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (block := stream.read(min(size, _BLOCK_BYTES))):
        size -= len(block)
        yield block


def _lines(begins: bytes) -> tuple[str, ...]:
    return tuple(line.decode(errors="replace") for line in begins.splitlines()[:LINES_MAX])
