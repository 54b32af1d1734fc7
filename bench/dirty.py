"""How fast dirty data is read into rows, against clean data of the same size."""

import re
from collections.abc import Callable
from time import process_time

from bench.events import COLUMNS
from bench.measured import Measured, check_equal
from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.csv.dialect import RecordEnds
from onceload_jobs.formats.csv.rows import read_csv
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import Column, parse_column
from onceload_jobs.pipeline.declared import CsvOptions, UnknownFields

_LINES = 200_000
#: Kinds that start so have one dirty line of this many.
_SOME, _ONE_IN = "one ", 4000
_OPTIONS = CsvOptions(header=False, multiline=True)
_ADDED = "an undeclared field, added"
_JSONB = "a column of jsonb"


def measure(*, repetitions: int, lines: int = _LINES) -> dict[str, Measured]:
    """Bytes a second, as a share of those of clean data in the same format; the kinds take turns."""
    blocks = {
        (is_csv, kind): _block(dirty, kind, lines, is_csv=is_csv)
        for is_csv, kinds in _KINDS.items()
        for kind, dirty in kinds.items()
    }
    found: dict[str, list[float]] = {}
    for _ in range(repetitions):
        rates = {key: _rate(block, is_csv=key[0], kind=key[1], lines=lines) for key, block in blocks.items()}
        for (is_csv, kind), rate in rates.items():
            if kind != _CLEAN:
                name = f"{'CSV' if is_csv else 'JSON lines'} with {kind} ÷ clean"
                found.setdefault(name, []).append(rate / rates[is_csv, _CLEAN])
    return {name: Measured(tuple(shares)) for name, shares in found.items()}


def _rate(block: bytes, *, is_csv: bool, kind: str, lines: int) -> float:
    columns = tuple(parse_column(*each) for each in (COLUMNS | ({"more": "jsonb"} if kind == _JSONB else {})).items())
    part = Part(producer_id=ProducerId(1), first=0, end=len(block), raw=block)
    started = process_time()
    records = _read_csv(part, columns) if is_csv else _read_jsonl(part, columns, adds=kind == _ADDED)
    seconds = process_time() - started
    check_equal(f"records with {kind}", found=records.count, expected=lines)
    return len(block) / seconds


def _read_jsonl(part: Part, columns: tuple[Column, ...], *, adds: bool) -> Records:
    return read_jsonl(
        [part],
        columns,
        declared=list(COLUMNS),
        unknown_fields=UnknownFields.ADD if adds else UnknownFields.IGNORE,
        record_bytes_max=part.end,
    )


def _read_csv(part: Part, columns: tuple[Column, ...]) -> Records:
    ends, cut = RecordEnds(_OPTIONS), part.raw.index(b",")
    # The ends of records are found first, block by block.
    ends.newlines(part.raw[:cut])
    ends.newlines(part.raw[cut:])
    return read_csv(
        [part],
        columns,
        header=tuple(COLUMNS),
        options=_OPTIONS,
        unknown_fields=UnknownFields.IGNORE,
        record_bytes_max=part.end,
    )


def _block(dirty: Callable[[str], str], kind: str, lines: int, *, is_csv: bool) -> bytes:
    one_in = _ONE_IN if kind.startswith(_SOME) else 1
    made = (_line(number, is_csv=is_csv) for number in range(lines))
    return "".join(dirty(line) if at % one_in == one_in - 1 else line for at, line in enumerate(made)).encode()


def _line(number: int, *, is_csv: bool) -> str:
    values = (
        f'"device-{number % 1000:07}"',
        f'"2026-01-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:00.{number % 1_000_000:06}Z"',
        str(number),
        '"changed"',
        f"{number % 10_000}.{number % 100:02}",
        f'"note {number}, of some words"',
    )
    if is_csv:
        return ",".join(value if "," in value else value.strip('"') for value in values) + "\n"
    return "{" + ",".join(f'"{name}":{value}' for name, value in zip(COLUMNS, values, strict=True)) + "}\n"


def _replacing(pattern: str, by: str) -> Callable[[str], str]:
    return lambda line: re.sub(pattern, by, line, count=1)


def _all_quoted(line: str) -> str:
    *values, note = line.replace('"', "").rstrip("\n").split(",", len(COLUMNS) - 1)
    return ",".join(f'"{value}"' for value in (*values, note)) + "\n"


_CLEAN = "clean"
_OBJECT = r'"more":{"a":1.50,"b":"c"},"kind"'
#: By whether it is CSV: what each kind makes of a clean line.
_KINDS: dict[bool, dict[str, Callable[[str], str]]] = {
    False: {
        _CLEAN: str,
        "one number for a text in 4000 lines": _replacing('"device":"[^"]*"', '"device":7'),
        "one bad value in 4000 lines": _replacing('"sequence":', '"sequence":"x'),
        "one name twice in 4000 lines": _replacing("}$", ',"kind":""}'),
        "numbers for a text": _replacing('"device":"[^0-9]*0*([0-9]+)"', r'"device":1\1'),
        _ADDED: _replacing('"kind"', _OBJECT),
        _JSONB: _replacing('"kind"', _OBJECT),
        "1.0 for a bigint": _replacing(',"kind"', '.0,"kind"'),
        "times of nanoseconds": _replacing('Z"', '789Z"'),
        "times with a blank before the zone": _replacing('Z"', ' +02"'),
    },
    True: {
        _CLEAN: str,
        "one quote in a value in 4000 records": _replacing("device", 'dev"ice'),
        "one record that is too short in 4000": _replacing("changed,", ""),
        "all values in quotes": _all_quoted,
        "CRLF in quotes": lambda line: line.replace(", ", ",\r\n").replace('"\n', '"\r\n'),
    },
}
