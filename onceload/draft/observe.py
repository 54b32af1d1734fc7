"""Take the records of a sample apart, and collect what was seen of each field."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from onceload.draft.sample import Sampled
from onceload.draft.types import Seen
from onceload.draft.values import Value, of_csv, of_json
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.csv.dialect import record_ends, split_record
from onceload_jobs.formats.jsonl.fields import fields_of
from onceload_jobs.formats.lines import BOM, Lines, lines_of
from onceload_jobs.formats.records import RecordRefused, ValueRefused
from onceload_jobs.pipeline.declared import CsvOptions, Source

_LINES_MAX = 100
_RECORD_BYTES_MAX = Source.record_bytes_max
#: How deep objects are taken apart, and how many fields of each: some are maps, in which each key is another one.
_LEVELS_MAX, _INSIDE_MAX = 5, 200


@dataclass(kw_only=True)
class Observed:
    """The fields of all records, in the order in which they were first seen."""

    fields: dict[str, Seen] = field(default_factory=dict)
    records: int = 0
    #: The fields of the objects that a field of JSON has as values.
    inside: dict[str, "Observed"] = field(default_factory=dict)

    def of(self, name: str) -> Seen:
        return self.fields.setdefault(name, Seen())

    def absent(self, seen: Seen) -> int:
        """How many records have no value for a field."""
        return self.records - seen.values


def lines_in(parts: Sequence[Part], options: CsvOptions | None = None) -> Iterator[str]:
    """The records of text files that are valid UTF-8, without the header of a CSV file."""
    for part in parts:
        lines = _lines(part, options)
        for index in range(lines.count):
            if options is None or not options.header or lines.sequence_ids[index] != 0:
                try:
                    yield lines.text(index)
                except RecordRefused:
                    continue


def _lines(part: Part, options: CsvOptions | None) -> Lines:
    if options is None:
        return lines_of([part], blanks=b" \t\r", record_bytes_max=_RECORD_BYTES_MAX)
    return lines_of([part], blanks=b"", record_bytes_max=_RECORD_BYTES_MAX, record_ends=record_ends(options))


def looks_like_json(beginning: bytes) -> bool:
    """Whether most lines start like an object."""
    lines = [
        line for each in beginning.split(b"\n", _LINES_MAX)[:_LINES_MAX] if (line := each.removeprefix(BOM).lstrip())
    ]
    return bool(lines) and 2 * sum(line.startswith(b"{") for line in lines) >= len(lines)


def is_json_record(line: str) -> bool:
    try:
        fields_of(line)
    except (RecordRefused, ValueRefused):
        return False
    return True


def observe_json(files: Sequence[Sampled]) -> Observed:
    observed = Observed()
    for line in (line for file in files for line in lines_in(file.parts)):
        _observe_object(observed, line)
    return observed


def _observe_object(observed: Observed, raw: str, *, level: int = 0) -> None:
    try:
        fields, twice = fields_of(raw)
    except (RecordRefused, ValueRefused):
        return
    observed.records += 1
    for name, value in fields.items():
        if level and name not in observed.fields and len(observed.fields) >= _INSIDE_MAX:
            continue
        _note(observed.of(name), None if value == "null" else value, of_json)
        observed.of(name).twice += name in twice
        if value.startswith("{") and level < _LEVELS_MAX:
            _observe_object(observed.inside.setdefault(name, Observed()), value, level=level + 1)


def observe_csv(files: Sequence[Sampled], options: CsvOptions) -> Observed:
    observed = Observed()
    for file in files:
        seen = [observed.of(name) for name in file.header]
        for values in records_in(file.parts, options):
            if len(values) == len(seen):
                observed.records += 1
                for each, text in zip(seen, values, strict=True):
                    _note(each, text, of_csv)
        for name in {name for name in file.header if file.header.count(name) > 1}:
            observed.of(name).twice = observed.records
    return observed


def records_in(parts: Sequence[Part], options: CsvOptions) -> Iterator[list[str | None]]:
    for line in lines_in(parts, options):
        try:
            yield split_record(line, options)
        except RecordRefused:
            continue


def _note(seen: Seen, raw: str | None, value_of: Callable[[str], Value]) -> None:
    if raw is not None:
        seen.see(raw, value_of(raw))
