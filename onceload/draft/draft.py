"""Draft a pipeline file from a sample of its files.

The draft is parsed like any pipeline file, and the readers of a load read the sample with it. So what a draft says
about its sample is what a load will do.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from onceload.draft.files import Found, find_files, refused
from onceload.draft.formats import Sample, read_sample
from onceload.draft.guess import OVER_COLUMNS_MAX, Guess, guess_columns
from onceload.draft.names import topic_of
from onceload.draft.nested import offer_paths
from onceload.draft.sample import Sampled
from onceload.draft.write import Facts, write_draft
from onceload.pipeline_file import parse_text
from onceload.terminal import counted
from onceload.yaml_nodes import cut
from onceload_core.names import ProducerId
from onceload_core.ports import QuarantinedRecord
from onceload_core.postgres.quarantine import kind_of
from onceload_jobs.formats.chunks import Chunk, FileRefused
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.rows import read_records

_REASONS_MAX, _REASON_MAX = 5, 200
#: A page of Postgres has 8,192 bytes, and a long value stored elsewhere takes 18 of them.
_COLUMNS_SURE = 450
_NOT_UTF8 = "invalid UTF-8"


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A pipeline file, and what it was made of."""

    text: str
    pipeline: str
    #: How many records were read, and how many of them the file does not load.
    records: int
    quarantined: int
    #: In words, from how many files.
    source: str
    #: What a load will leave out.
    notes: tuple[str, ...]


def draft(pattern: str) -> Draft:
    """Read a sample, guess a pipeline file, and read the sample again with it."""
    found = find_files(pattern)
    sample = read_sample(pattern, found)
    facts = _facts(pattern, sample)
    records = _read(parse_text(write_draft(facts), name="the draft"), sample.files)
    bad = tuple(_reasons(records, sample.files, is_of_rows=sample.format.is_whole))
    if records.count and not records.rows.num_rows:
        url, expected = sample.files[0].listed.url, f"{sample.format} with at least one record that can be loaded"
        raise FileRefused(url, expected, bad[0], "Fix the records, or choose other files")
    notes = (*found.notes, *sample.notes, *_too_many(facts.guess), *bad)
    facts = replace(facts, source=_source(records.count, sample, found), notes=notes)
    text = write_draft(facts)
    parse_text(text, name="the draft")
    return Draft(
        text=text,
        pipeline=facts.topic,
        records=records.count,
        quarantined=len(records.bad),
        source=facts.source,
        notes=notes,
    )


def _facts(pattern: str, sample: Sample) -> Facts:
    topic = topic_of(pattern)
    guess = guess_columns(sample.observed, sample.files, sample.format, topic=topic)
    if not guess.columns:
        which = "; ".join(f"{name!r}: {why}" for name, why in guess.left_out[:_REASONS_MAX]) or "the records are empty"
        raise refused(pattern, f"no field that can be a column ({which})", "at least one field with a usable name")
    guess = offer_paths(guess, sample.observed)
    return Facts(
        pattern=pattern,
        topic=topic,
        format=sample.format,
        csv=sample.csv,
        has_tail=any(file.has_tail for file in sample.files),
        guess=guess,
    )


def _too_many(guess: Guess) -> Iterator[str]:
    """Notes about more columns than a row or a table may have."""
    if len(guess.columns) > _COLUMNS_SURE:
        yield (
            f"the draft has {len(guess.columns):,} columns. A row must fit into 8 kB. Up to {_COLUMNS_SURE} columns "
            "always do, whatever their types, and about 1,000 if each takes 8 bytes, such as bigint. Remove columns "
            "that you do not need"
        )
    if beyond := sum(why == OVER_COLUMNS_MAX for _, why in guess.left_out):
        yield f"{counted(beyond, 'field')} left out, because {OVER_COLUMNS_MAX}"


def _source(records: int, sample: Sample, found: Found) -> str:
    read, files = counted(len(sample.files), "file"), len(found.files)
    if len(sample.files) < files:
        return f"{counted(records, 'record')} of {read}, out of {files:,}"
    is_whole = all(file.is_whole for file in sample.files)
    return f"{counted(records, 'record')} of {read} ({'all' if is_whole else 'a part'} of the records)"


def _read(declared: Declared, files: Sequence[Sampled]) -> Records:
    """Read the sample as a load does; producers are the numbers of the files."""
    parts = [
        ReadPart(
            chunk=Chunk(
                producer_id=ProducerId(number),
                name=file.listed.name,
                url=file.listed.url,
                first=part.first,
                end=part.end,
                header=file.header,
            ),
            part=replace(part, producer_id=ProducerId(number)),
            fingerprint=b"",
        )
        for number, file in enumerate(files)
        for part in file.parts
    ]
    # The schema of a file without rows is enough for a draft.
    return read_records(declared, declared.columns, parts) if parts else Records(rows=pa.table({}))


def _reasons(records: Records, files: Sequence[Sampled], *, is_of_rows: bool) -> Iterator[str]:
    """Why records of the sample are bad, the most frequent reason first."""
    kinds = Counter(kind_of(bad.reason) for bad in records.bad)
    for kind, count in kinds.most_common(_REASONS_MAX):
        example: QuarantinedRecord = next(bad for bad in records.bad if kind_of(bad.reason) == kind)
        file = files[example.producer_id]
        # A row in the sample of a Parquet file has another number than in the file; an array has no bytes as numbers.
        where = "" if is_of_rows else _place(file, example.sequence_id)
        column = "" if example.column is None else f"column {example.column!r}: "
        fix = "; convert other encodings with iconv" if _NOT_UTF8 in example.reason else ""
        bad = f"{count:,} of {counted(records.count, 'record')} will go to quarantine"
        yield f"{bad}, such as {file.listed.name}{where}: {column}{cut(example.reason, at_most=_REASON_MAX)}{fix}"
    if others := len(records.bad) - sum(count for _, count in kinds.most_common(_REASONS_MAX)):
        yield f"{others:,} more will go to quarantine for other reasons"


def _place(file: Sampled, byte: int) -> str:
    """Where a record begins; the number of its line is known in the beginning of a file."""
    beginning = file.parts[0]
    if beginning.first or byte >= beginning.end:
        return f" from byte {byte}"
    line = beginning.raw.count(b"\n", 0, byte) + 1
    return f" from byte {byte} (line {line})"
