"""Files of a source with the same content: one of them is read, and the others wait for it.

A new file may also be a copy in progress: so far it contains the beginning of another one. When it is complete or
continues differently, one knows whether it is a copy. If it were loaded as a file of its own before, everything after
its beginning would be loaded twice.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import BinaryIO

from onceload_core.errors import OnceloadError
from onceload_core.names import ProducerId
from onceload_core.ports import KnownProducer
from onceload_jobs.files.addresses import Unreadable, errors_naming
from onceload_jobs.files.compression import Incomplete, is_compressed
from onceload_jobs.files.fingerprints import EDGE_BYTES
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.notes import Note
from onceload_jobs.files.reading import open_stream
from onceload_jobs.pipeline.declared import Declared, Write
from onceload_jobs.plan.choice import Choice
from onceload_jobs.plan.copies import CopyRecord
from onceload_jobs.plan.file_state import LEFT_OPEN
from onceload_jobs.plan.to_read import FileToRead, Finding

_READ_BYTES = 2**20

_WAITS = "No more of this file is loaded until it is found to be a copy of that file or to differ from it"
BEGINNING = (
    f"so far it is the beginning of {{0}}, perhaps a copy still being written. {_WAITS}. If it is a shortened copy, "
    "delete it while {0} is still there: without that file it is loaded as a file of its own"
)
BESIDE = f"some of its content is not loaded under the name {{}} yet, and {{}} is read first. {_WAITS}"


def one_name_per_content(
    declared: Declared, found: Mapping[Listed, Finding], known: Mapping[str, KnownProducer], choice: Choice
) -> tuple[dict[Listed, Finding], dict[Listed, Note], frozenset[Listed]]:
    """Let each content be read under one name; all files are compared, and then those that are not chosen are left out.

    Return the findings, the notes of files that wait, and the copies in progress of files that sort after them.
    """
    under_way = _under_way(found)
    begun = {each: _begun(each, other) for each, other in under_way.items()}
    found, waits = _one_reader_each({**found, **begun}, known)
    if declared.target.write is Write.MERGE:
        found |= _waiting_rotated(found, choice)
    chosen = {listed: file for listed, file in found.items() if choice.includes(listed.name)}
    return chosen, waits, frozenset(each for each, other in under_way.items() if other.name > each.name)


def _under_way(found: Mapping[Listed, Finding]) -> dict[Listed, Listed]:
    """New files that may be copies in progress, each with a file that is loaded or about to be."""
    new = {listed for listed, file in found.items() if isinstance(file, FileToRead) and file.is_new}
    sound = [
        listed
        for listed, file in found.items()
        if listed not in new and not (isinstance(file, Note) and (file.needs_a_person or file.is_unreadable))
    ]
    return copies_under_way(sorted(new, key=lambda each: each.name), sound)


def _begun(listed: Listed, other: Listed) -> Note:
    if other is listed:
        return Note(name=listed.name, reason=_UNKNOWN, is_unreadable=True)
    return Note(name=listed.name, reason=BEGINNING.format(other.name))


_UNKNOWN = (
    "it could not be read while it was compared with other files, so it may be a copy of one of them. Nothing of it is "
    "loaded. Load again"
)


def _one_reader_each(
    found: Mapping[Listed, Finding], known: Mapping[str, KnownProducer]
) -> tuple[dict[Listed, Finding], dict[Listed, Note]]:
    """Let each producer be read under one name only; other files with its content, or more, wait.

    Return the findings, and the notes of the files that wait.
    """
    findings, waits = dict(found), dict[Listed, Note]()
    by_name = {listed.name: file for listed, file in found.items()}
    for producer_id, copies in _copies_by_producer(found).items():
        name = _copy_record_of(copies[0]).name
        recorded = {file.listed for file in copies if _is_recorded(file, known)}
        for file in copies:
            if not file.spans and file.listed in recorded:
                # It has nothing new, or only an incomplete line.
                is_open = _copy_record_of(file).size is None
                findings[file.listed] = Note(name=file.listed.name, reason=LEFT_OPEN) if is_open else None
        has_left = _has_left(name, producer_id, by_name, known)
        own = None if has_left else by_name[name]
        reader = own if isinstance(own, FileToRead) and own.spans else None
        with_more = [file for file in copies if file.spans]
        candidates = with_more or [file for file in copies if has_left and file.listed not in recorded]
        if reader is None and candidates:
            reader = _taking_over(candidates)
            findings[reader.listed] = reader
        for file in with_more:
            if reader is not None and file.listed != reader.listed:
                waits[file.listed] = Note(name=file.listed.name, reason=BESIDE.format(name, reader.listed.name))
                # It is recorded as a copy now, unless that is not certain yet.
                is_settled = file.listed in recorded or _copy_record_of(file).has_holes
                findings[file.listed] = waits[file.listed] if is_settled else replace(file, spans=())
    return findings, waits


def _copies_by_producer(found: Mapping[Listed, Finding]) -> dict[ProducerId, list[FileToRead]]:
    """The files that contain everything that was loaded of a producer, under another name."""
    copies: dict[ProducerId, list[FileToRead]] = {}
    for file in found.values():
        record = file.copy_record if isinstance(file, FileToRead) else None
        if isinstance(file, FileToRead) and record and record.copy_of is not None and record.is_whole:
            copies.setdefault(record.copy_of, []).append(file)
    return copies


def _copy_record_of(file: FileToRead) -> CopyRecord:
    if file.copy_record is None:
        raise AssertionError
    return file.copy_record


def _is_recorded(file: FileToRead, known: Mapping[str, KnownProducer]) -> bool:
    """Whether everything about a copy is already recorded."""
    record, before = _copy_record_of(file), known.get(file.listed.name)
    if before is None or before.knowledge.shared is None:
        return False
    its, fingerprint = before.knowledge.shared.producer_id, before.knowledge.state.fingerprint
    return (its, fingerprint) == (record.copy_of, record.fingerprint)


def _has_left(
    name: str, producer_id: ProducerId, by_name: Mapping[str, Finding], known: Mapping[str, KnownProducer]
) -> bool:
    """Whether the name of a producer is gone, or now holds other content."""
    its = known.get(name)
    if name not in by_name or its is None or its.producer_id != producer_id:
        return True
    own = by_name[name]
    if isinstance(own, Note):
        return own.needs_a_person
    return own is not None and own.generation > its.knowledge.state.generation


def _taking_over(candidates: Sequence[FileToRead]) -> FileToRead:
    """The longest copy, as far as its size shows; its name becomes the producer's."""
    longest = max(candidates, key=lambda file: (not is_compressed(file.listed.url), file.listed.size))
    return replace(longest, copy_record=replace(_copy_record_of(longest), takes_over=True))


def _waiting_rotated(found: Mapping[Listed, Finding], choice: Choice) -> dict[Listed, Note]:
    """The files that wait because the file that had their name before has new records but was not chosen.

    Its older rows would be loaded later, and a merge keeps the row that was loaded last.
    """
    rests = {
        _copy_record_of(file).name: file.listed.name
        for file in found.values()
        if isinstance(file, FileToRead) and file.spans and file.copy_record and file.copy_record.takes_over
        if not choice.includes(file.listed.name)
    }
    return {
        listed: Note(name=listed.name, reason=_ROTATED.format(rests[listed.name]))
        for listed, file in found.items()
        if isinstance(file, FileToRead) and listed.name in rests
    }


_ROTATED = (
    "{0} had this name before, and its last records are not loaded yet. If this file were loaded first, those older "
    "records would replace newer rows later. Nothing new of this file is loaded. Load {0} first, or both together"
)


def copies_under_way(new: Collection[Listed], known: Sequence[Listed]) -> dict[Listed, Listed]:
    """Find the new files that wait, each with the file whose beginning it is, or with itself if it cannot be read now.

    If files have equal content, only the oldest is loaded. The next load finds that the others are copies.
    """
    heads = {each: _find_head(each) for each in new}
    by_head: dict[bytes, list[Listed]] = {}
    for each, head in heads.items():
        # An empty file begins all others, and is a copy of none.
        if head:
            by_head.setdefault(head, []).append(each)
    in_order = sorted(by_head)
    waiting = {each: each for each, head in heads.items() if head is None}
    for other in (*known, *new) if in_order else ():
        is_new = other in heads
        head = heads[other] if is_new else _find_head(other)
        for each in (each for begin in _beginnings(head or b"", among=in_order) for each in by_head[begin]):
            if each is not other and each not in waiting and _goes_first(other, each, is_new=is_new):
                waiting[each] = other
    return waiting


def _find_head(listed: Listed) -> bytes | None:
    try:
        with errors_naming(listed.url), open_stream(listed.url) as stream:
            return stream.read(EDGE_BYTES)
    except Unreadable:
        return None
    except OnceloadError:
        return b""


def _beginnings(head: bytes, *, among: Sequence[bytes]) -> Iterator[bytes]:
    """Those of some sorted texts that this one begins with.

    All texts sorted between a beginning and the text itself have the same beginning, so each step skips them.
    """
    while at := bisect_right(among, head):
        before = among[at - 1]
        if head.startswith(before):
            yield before
            head = before[:-1]
        else:
            head = head[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, head, strict=False)))]


def _goes_first(other: Listed, each: Listed, *, is_new: bool) -> bool:
    """Whether another file contains all of this one and is loaded first: it is known, longer or older."""
    try:
        with errors_naming(each.url), open_stream(each.url) as stream, open_stream(other.url) as whole:
            for block in _blocks(stream):
                if whole.read(len(block)) != block:
                    return False
            return not is_new or _age(other) < _age(each) or bool(whole.read(1))
    except Unreadable:
        # They begin alike, so it waits until both can be read.
        return True
    except OnceloadError:
        return False


def _age(listed: Listed) -> tuple[float, str]:
    return listed.modified_at or 0, listed.name


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The blocks of a file, as far as it is complete."""
    with suppress(Incomplete):
        while block := stream.read(_READ_BYTES):
            yield block
