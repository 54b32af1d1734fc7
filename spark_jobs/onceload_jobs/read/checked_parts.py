"""Parts of a chunk, checked to be of the file that was planned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onceload_core.replay import Condition
from onceload_jobs.files.addresses import Unreadable, errors_naming
from onceload_jobs.files.compression import Damaged, Incomplete, is_compressed
from onceload_jobs.files.fingerprints import (
    EDGE_BYTES,
    Fingerprint,
    Resemblance,
    StreamMarks,
    compare,
    compare_whole,
    fingerprint_of,
    has_other_etag,
    still_begins_with,
)
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import look_at, open_stream, read_at
from onceload_jobs.formats.chunks import KEPT_BYTES, Chunk, FileRefused, LastLineOpen, Part, RowGroup
from onceload_jobs.formats.signatures import check_text
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.declared import Format, Source
from onceload_jobs.read.parts import STEP_BYTES, UnfinishedRecord, open_end, parts_of


@dataclass(frozen=True, kw_only=True)
class ReadPart:
    """A part that was read, and what its commit records about the file."""

    chunk: Chunk
    part: Part
    fingerprint: bytes
    #: The file's size when it was listed; only if nothing of the file is left to read.
    size: int | None = None
    condition: Condition = Condition.OPEN


class FileRewritten(Unreadable):
    """The file changed since it was planned, and must be planned again."""


def read_parts(chunk: Chunk, source: Source) -> Iterator[ReadPart]:
    """The parts of a chunk, each with what to record about its file if it is the last part committed.

    An error that prevents reading the rest of the file is raised after them.
    """
    etag = _check_unchanged(chunk, source)
    if source.format.is_whole:
        yield from _row_group_parts(chunk, source, etag=etag)
    elif is_compressed(chunk.url):
        yield from _packed_parts(chunk, source)
    else:
        yield from _plain_parts(chunk, source)


def _check_unchanged(chunk: Chunk, source: Source) -> str | None:
    """Refuse a file that was rewritten since it was planned.

    Return its ETag if it is the same as in the plan: then everything read since was of that content.
    """
    now = _check_stored(chunk)
    for expected in map(Fingerprint.from_bytes, chunk.expected):
        if source.format.is_whole:
            resemblance = compare_whole(now, expected)
        else:
            resemblance = compare(now, expected, consumed_end=expected.stream.end)
        if resemblance not in (Resemblance.SAME, Resemblance.GROWN):
            raise FileRewritten(chunk.url, "it was rewritten after this load planned it")
    return now.etag if now.etag == chunk.etag else None


def _check_stored(chunk: Chunk) -> Listed:
    """Check the stored bytes of a file, packed or not."""
    now = _look_again(chunk)
    if chunk.etag and now.etag != chunk.etag and now.size == chunk.size:
        raise FileRewritten(chunk.url, "the object store reports that it was rewritten after this load planned it")
    if chunk.stored is not None and not still_begins_with(now, chunk.stored):
        raise FileRewritten(chunk.url, "it was rewritten after this load planned it")
    return now


def _look_again(chunk: Chunk) -> Listed:
    stored = look_at(chunk.url)
    return Listed(name=chunk.name, url=chunk.url, size=stored.size, modified_at=None, etag=stored.etag)


def _plain_parts(chunk: Chunk, source: Source) -> Iterator[ReadPart]:
    if chunk.begins is not None:
        # The rest of a record that is already loaded; it is consumed without a row.
        rest = Part(producer_id=chunk.producer_id, first=chunk.first, end=chunk.begins, raw=b"")
        fingerprint = fingerprint_of(chunk.url, end=rest.end).to_bytes()
        yield ReadPart(chunk=chunk, part=rest, fingerprint=fingerprint, size=chunk.size)
        chunk = replace(chunk, first=chunk.begins, begins=None)
    if chunk.first == chunk.end:
        return
    if not chunk.size:
        # An empty file that replaces loaded rows is recorded too.
        yield replace(_nothing(chunk, fingerprint_of(chunk.url, end=0)), size=0)
        return
    left = UnfinishedRecord()
    for part in parts_of(chunk, source, rest=left):
        # The file must still be the one that the part was read from, or the fingerprint would be of another file.
        fingerprint = _marked(chunk, part).named(_check_unchanged(chunk, source)).to_bytes()
        chunk = replace(chunk, expected=(*chunk.expected[:2], fingerprint))
        condition = Condition.SEALED if chunk.sealed and part.end >= chunk.size else Condition.OPEN
        check_tail(chunk, part)
        yield ReadPart(chunk=chunk, part=part, fingerprint=fingerprint, size=chunk.size, condition=condition)
    if left.size:
        raise open_end(chunk.url, source, left, sealed=chunk.sealed)


def _marked(chunk: Chunk, part: Part) -> Fingerprint:
    """The fingerprint of a plain file up to the end of a part."""
    if part.first or part.too_long:
        return fingerprint_of(chunk.url, end=part.end)
    marks = StreamMarks()
    marks.feed(part.raw)
    return Fingerprint(stream=marks.marks)


def _nothing(chunk: Chunk, fingerprint: Fingerprint) -> ReadPart:
    part = Part(producer_id=chunk.producer_id, first=chunk.first, end=chunk.first, raw=b"")
    return ReadPart(chunk=chunk, part=part, fingerprint=fingerprint.to_bytes())


@dataclass(eq=False)
class TailWentOn(LastLineOpen):
    """A last line counted as sealed, but has grown since it was read."""

    url: str = ""


def check_tail(chunk: Chunk, part: Part) -> None:
    """Refuse a last line without its newline if its file has grown."""
    end = chunk.size if is_compressed(chunk.url) else part.end
    if part.is_tail and _look_again(chunk).size > end:
        why = "was still being written while it was read, though it counted as sealed"
        raise TailWentOn(part.end - part.first, why, url=chunk.url)


def _packed_parts(chunk: Chunk, source: Source) -> Iterator[ReadPart]:
    """Each part waits for the next, because only the last one may record that the file was read to its end.

    No part is returned unless the file is still the one that the first part was read from.
    """
    seen, rest = StreamMarks(), UnfinishedRecord()
    stored = chunk.stored or fingerprint_of(chunk.url, end=chunk.size).to_bytes()
    chunk = replace(chunk, stored=stored)
    held: ReadPart | None = None
    broken: Incomplete | Damaged | FileRefused | None = None
    try:
        for part in _text_parts(chunk, source, marks=seen, rest=rest):
            _check_stored(chunk)
            if held:
                yield held
            held = ReadPart(chunk=chunk, part=part, fingerprint=Fingerprint(stream=seen.marks).to_bytes())
    except Incomplete as error:
        broken = error.in_sealed_file() if chunk.sealed else error
    except Damaged as error:
        broken = error
    now = _check_stored(chunk)
    left = open_end(chunk.url, source, rest, sealed=chunk.sealed) if rest.size else None
    broken = left if isinstance(left, FileRefused) else broken
    if broken:
        if held:
            yield held
        raise broken
    # A file without new records is recorded too, so that it is not unpacked again.
    last = held or _nothing(chunk, Fingerprint(stream=seen.marks))
    check_tail(chunk, last.part)
    # Marks of the packed file record that it was read to its end. A size records that nothing was left over.
    whole = replace(Fingerprint.from_bytes(last.fingerprint), packed=Fingerprint.from_bytes(stored).stream)
    yield replace(
        last,
        fingerprint=whole.named(chunk.etag if now.etag == chunk.etag else None).to_bytes(),
        size=None if left else chunk.size,
        condition=Condition.SEALED if chunk.sealed else Condition.OPEN,
    )
    if left:
        raise left


def _text_parts(chunk: Chunk, source: Source, *, marks: StreamMarks, rest: UnfinishedRecord) -> Iterator[Part]:
    """The parts of a packed file, whose beginning is checked while reading."""
    is_begun = chunk.first > 0
    for part in parts_of(chunk, source, marks=marks, rest=rest):
        if not is_begun:
            check_text(chunk.url, part.raw)
            is_begun = True
        yield part
    if rest.size and not is_begun:
        with errors_naming(chunk.url), open_stream(chunk.url) as stream:
            check_text(chunk.url, stream.read(EDGE_BYTES))


def _row_group_parts(chunk: Chunk, source: Source, *, etag: str | None) -> Iterator[ReadPart]:
    """A file that is written once is recognised as a whole, and read by row group.

    The size is recorded only with the last part: then the whole file was read, and need not be unpacked again.
    """
    found = read_whole_file(source.format, chunk.url, size=chunk.size)
    whole, groups = found.fingerprint.named(etag), found.row_groups
    wanted = [group for group in groups if group.end > chunk.span.first and group.first < chunk.span.end]
    for group, raw in _bytes_of(chunk.url, wanted, source):
        if len(raw) < _read_bytes(group, source):
            # A program that writes the same bytes again may have written all of them when the file is checked.
            raise FileRewritten(chunk.url, "it was cut while it was read, so it is being written again")
        _check_whole(chunk, whole)
        size = chunk.size if group is groups[-1] else None
        yield ReadPart(
            chunk=chunk,
            part=Part(
                producer_id=chunk.producer_id,
                first=group.first,
                end=group.end,
                raw=raw,
                too_long=len(raw) < group.bytes,
                row_group=group,
            ),
            fingerprint=(whole if size is not None else replace(whole, packed=None)).to_bytes(),
            size=size,
            condition=Condition.SEALED,
        )
    if not wanted and chunk.end is None:
        yield replace(_nothing(chunk, whole), size=chunk.size, condition=Condition.SEALED)


def _bytes_of(url: str, groups: Sequence[RowGroup], source: Source) -> Iterator[tuple[RowGroup, bytes]]:
    """The bytes of row groups in their order; of a record that is too long, only its beginning."""
    if not is_compressed(url):
        for group in groups:
            yield group, read_at(url, offset=group.first_byte, size=_read_bytes(group, source))
        return
    with open_stream(url) as stream:
        at = 0
        for group in groups:
            while at < group.first_byte and (skipped := stream.read(min(STEP_BYTES, group.first_byte - at))):
                at += len(skipped)
            raw = stream.read(_read_bytes(group, source))
            at += len(raw)
            yield group, raw


def _read_bytes(group: RowGroup, source: Source) -> int:
    is_too_long = (
        source.format is Format.JSON and group.end - group.first == 1 and group.bytes >= source.record_bytes_max
    )
    return min(KEPT_BYTES, group.bytes) if is_too_long else group.bytes


def _check_whole(chunk: Chunk, fingerprint: Fingerprint) -> None:
    """Check that a row group is of the file that its footer was read from."""
    now = _look_again(chunk)
    if has_other_etag(now, fingerprint) or compare_whole(now, fingerprint) is not Resemblance.SAME:
        raise FileRewritten(chunk.url, "it was rewritten while it was read")
