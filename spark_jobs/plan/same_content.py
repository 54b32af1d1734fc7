"""Files with the same content: one of them is read, and the others wait for it."""

from collections.abc import Mapping
from dataclasses import replace

from dedup_core.names import ProducerId
from spark_jobs.content.copies import CopyRecord
from spark_jobs.files.compression import Compression
from spark_jobs.files.listing import Listed
from spark_jobs.files.notes import Note
from spark_jobs.plan.choice import Choice
from spark_jobs.plan.file_state import LEFT_OPEN
from spark_jobs.plan.ledger_lookup import KnownNames
from spark_jobs.plan.to_read import FileToRead

_WAITS = "No more of this file is loaded until it is found to be a copy of that file or to differ from it"
BEGINNING = (
    f"so far it is the beginning of {{0}}, perhaps a copy still being written. {_WAITS}. If it is a shortened copy, "
    "delete it while {0} is still there: without that file it is loaded as a file of its own"
)
BESIDE = f"some of its content is not loaded under the name {{}} yet, and {{}} is read first. {_WAITS}"


def one_reader_each(
    found: Mapping[Listed, FileToRead | Note | None], known: KnownNames
) -> tuple[dict[Listed, FileToRead | Note | None], dict[Listed, Note]]:
    """Let each producer be read under one name only; other files with its content, or more, wait."""
    groups: dict[ProducerId, list[FileToRead]] = {}
    for file in found.values():
        if (
            isinstance(file, FileToRead)
            and file.copy_record
            and file.copy_record.copy_of is not None
            and file.copy_record.is_whole
        ):
            groups.setdefault(file.copy_record.copy_of, []).append(file)
    chosen, waits = dict(found), dict[Listed, Note]()
    by_name = {listed.name: file for listed, file in found.items()}
    for producer_id, files in groups.items():
        name = _twin(files[0]).name
        for file in files:
            if not file.spans and _is_noted(file, known):
                # It has nothing new, or only an incomplete line.
                is_all = _twin(file).size is not None
                chosen[file.listed] = None if is_all else Note(name=file.listed.name, reason=LEFT_OPEN)
        its = known.get(name)
        generation = its.knowledge.state.generation if its and its.producer_id == producer_id else None
        own = by_name.get(name)
        has_left = name not in by_name or generation is None or _has_left(own, generation)
        reader = own if isinstance(own, FileToRead) and own.spans and not has_left else None
        behind = [file for file in files if file.spans]
        candidates = behind or [file for file in files if has_left and chosen[file.listed] is file]
        if reader is None and candidates:
            # Choose the longest one, as far as its size shows; its name becomes the producer's.
            reader = max(candidates, key=_reach)
            chosen[reader.listed] = replace(reader, copy_record=replace(_twin(reader), takes_over=True))
        for file in behind:
            if reader is not None and file is not reader:
                reason = BESIDE.format(name, reader.listed.name)
                waits[file.listed] = Note(name=file.listed.name, reason=reason)
                chosen[file.listed] = replace(file, spans=())
                if _is_noted(file, known) or _twin(file).has_holes:
                    chosen[file.listed] = waits[file.listed]
    return chosen, waits


def waiting_rotated(found: Mapping[Listed, FileToRead | Note | None], choice: Choice) -> dict[Listed, Note]:
    """The files that wait because the file that had their name before has new records but was not chosen.

    Its older rows would be loaded later, and a merge keeps the row that was loaded last.
    """
    rests = {
        _twin(file).name: file.listed.name
        for file in found.values()
        if isinstance(file, FileToRead) and file.spans and file.copy_record and file.copy_record.takes_over
        if not choice.means(file.listed.name)
    }
    return {
        listed: Note(name=listed.name, reason=_ROTATED.format(rests[listed.name]))
        for listed, file in found.items()
        if isinstance(file, FileToRead) and listed.name in rests
    }


_ROTATED = (
    "{0} had this name before, and its last records are not loaded. Loaded later, these older records would replace "
    "newer rows. Nothing new of this file is loaded. Load {0} first, or both together"
)


def _twin(file: FileToRead) -> CopyRecord:
    if file.copy_record is None:
        raise AssertionError
    return file.copy_record


def _has_left(own: "FileToRead | Note | None", generation: int) -> bool:
    """Whether a name now holds other content than its producer's."""
    if isinstance(own, Note):
        return own.needs_a_person
    return own is not None and own.generation > generation


def _reach(file: FileToRead) -> tuple[bool, int]:
    return Compression.of(file.listed.url) is Compression.NONE, file.listed.size


def _is_noted(file: FileToRead, known: KnownNames) -> bool:
    """Whether everything about a copy is already recorded."""
    copy_record, before = _twin(file), known.get(file.listed.name)
    if before is None or before.knowledge.shared is None:
        return False
    its, fingerprint = before.knowledge.shared.producer_id, before.knowledge.state.fingerprint
    return (its, fingerprint) == (copy_record.copy_of, copy_record.fingerprint)
