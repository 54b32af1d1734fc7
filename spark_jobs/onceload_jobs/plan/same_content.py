"""Files with the same content: one of them is read, and the others wait for it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from onceload_core.names import ProducerId
from onceload_jobs.content.copies import CopyRecord
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.notes import Note
from onceload_jobs.plan.choice import Choice
from onceload_jobs.plan.file_state import LEFT_OPEN
from onceload_jobs.plan.ledger_lookup import KnownNames
from onceload_jobs.plan.to_read import FileToRead, Finding

_WAITS = "No more of this file is loaded until it is found to be a copy of that file or to differ from it"
BEGINNING = (
    f"so far it is the beginning of {{0}}, perhaps a copy still being written. {_WAITS}. If it is a shortened copy, "
    "delete it while {0} is still there: without that file it is loaded as a file of its own"
)
BESIDE = f"some of its content is not loaded under the name {{}} yet, and {{}} is read first. {_WAITS}"


def one_reader_each(
    found: Mapping[Listed, Finding], known: KnownNames
) -> tuple[dict[Listed, Finding], dict[Listed, Note]]:
    """Let each producer be read under one name only; other files with its content, or more, wait.

    Return the findings, and the notes of the files that wait.
    """
    findings, waits = dict(found), dict[Listed, Note]()
    by_name = {listed.name: file for listed, file in found.items()}
    for producer_id, copies in _copies_by_producer(found).items():
        name = _copy_record_of(copies[0]).name
        nothing_new = _nothing_new(copies, known)
        findings |= nothing_new
        has_left = _has_left(name, producer_id, by_name, known)
        reader = None if has_left else _reader_under_own_name(by_name[name])
        with_more = [file for file in copies if file.spans]
        candidates = with_more or [file for file in copies if has_left and file.listed not in nothing_new]
        if reader is None and candidates:
            reader = _taking_over(candidates)
            findings[reader.listed] = reader
        for file in with_more:
            if reader is not None and file.listed != reader.listed:
                reason = BESIDE.format(name, reader.listed.name)
                waits[file.listed] = Note(name=file.listed.name, reason=reason)
                findings[file.listed] = _not_read_now(file, waits[file.listed], known)
    return findings, waits


def _copies_by_producer(found: Mapping[Listed, Finding]) -> dict[ProducerId, list[FileToRead]]:
    """The files that contain everything that was loaded of a producer, under another name."""
    copies: dict[ProducerId, list[FileToRead]] = {}
    for file in found.values():
        record = file.copy_record if isinstance(file, FileToRead) else None
        if isinstance(file, FileToRead) and record and record.copy_of is not None and record.is_whole:
            copies.setdefault(record.copy_of, []).append(file)
    return copies


def _nothing_new(copies: Iterable[FileToRead], known: KnownNames) -> dict[Listed, Note | None]:
    """The copies that are recorded and have nothing new, or only an incomplete line."""
    return {
        file.listed: Note(name=file.listed.name, reason=LEFT_OPEN) if _copy_record_of(file).size is None else None
        for file in copies
        if not file.spans and _is_recorded(file, known)
    }


def _has_left(name: str, producer_id: ProducerId, by_name: Mapping[str, Finding], known: KnownNames) -> bool:
    """Whether the name of a producer is gone, or now holds other content."""
    its = known.get(name)
    if name not in by_name or its is None or its.producer_id != producer_id:
        return True
    own = by_name[name]
    if isinstance(own, Note):
        return own.needs_a_person
    return own is not None and own.generation > its.knowledge.state.generation


def _reader_under_own_name(own: Finding) -> FileToRead | None:
    return own if isinstance(own, FileToRead) and own.spans else None


def _taking_over(candidates: Iterable[FileToRead]) -> FileToRead:
    """The longest copy, as far as its size shows; its name becomes the producer's."""
    longest = max(candidates, key=_reach)
    return replace(longest, copy_record=replace(_copy_record_of(longest), takes_over=True))


def _not_read_now(file: FileToRead, waits: Note, known: KnownNames) -> FileToRead | Note:
    """A copy that waits for its reader; it is recorded as a copy now, unless that is not certain yet."""
    if _is_recorded(file, known) or _copy_record_of(file).has_holes:
        return waits
    return replace(file, spans=())


def waiting_rotated(found: Mapping[Listed, Finding], choice: Choice) -> dict[Listed, Note]:
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


def _copy_record_of(file: FileToRead) -> CopyRecord:
    if file.copy_record is None:
        raise AssertionError
    return file.copy_record


def _reach(file: FileToRead) -> tuple[bool, int]:
    return not is_compressed(file.listed.url), file.listed.size


def _is_recorded(file: FileToRead, known: KnownNames) -> bool:
    """Whether everything about a copy is already recorded."""
    record, before = _copy_record_of(file), known.get(file.listed.name)
    if before is None or before.knowledge.shared is None:
        return False
    its, fingerprint = before.knowledge.shared.producer_id, before.knowledge.state.fingerprint
    return (its, fingerprint) == (record.copy_of, record.fingerprint)
