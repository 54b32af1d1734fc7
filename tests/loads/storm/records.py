"""Records with a value of their own each, and how files of every form hold them."""

import csv
import gzip
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

import pyarrow as pa
import zstandard

from onceload_jobs.formats.json.documents import GROUP_BYTES
from onceload_jobs.pipeline.declared import Format, Place
from tests.typed_files import content_of

COLUMNS = {
    "uid": "bigint not null",
    "k": "bigint",
    "dev": "text",
    "device": "text",
    "seq": "bigint",
    "pos": "bigint",
    "oid": "bigint",
    "eid": "bigint",
    "amount": "numeric(12,2)",
    "note": "text",
}
#: What a record says in `note`, so that its raw bytes tell which it is, wherever they are.
_MARK = re.compile(rb"u(\d+)u")
BAD, GOOD = b"oops", b"1.50"


class Form(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"
    FIXED = "fixed"
    ORC = "orc"
    AVRO = "avro"

    @property
    def is_typed(self) -> bool:
        return self in TYPED

    @property
    def is_whole(self) -> bool:
        """Whether nothing is appended to its files."""
        return self.is_typed or self is Form.JSON

    @classmethod
    def of(cls, path: str) -> "Form":
        return next(each for each in cls if each in path.split("."))


TYPED = (Form.PARQUET, Form.ORC, Form.AVRO)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record that was ever written."""

    uid: int
    #: The key in a merge.
    k: int
    #: For producers that records name: two names of the same value, and two sequences.
    dev: str
    seq: int
    #: The business id; its second column says the same in other numbers.
    oid: int
    is_bad: bool = False
    #: Its value spans two lines, where the form allows it.
    is_folded: bool = False

    @property
    def pos(self) -> int:
        # Another number, which an earlier record may have as its other one.
        return self.seq ^ 8

    @property
    def eid(self) -> int:
        return self.oid ^ 16

    @property
    def amount(self) -> str:
        return f"{self.uid % 97}.50"

    def value(self, column: str) -> object:
        """What a column of the record holds, `device` being the other name of `dev`."""
        return getattr(self, "dev" if column == "device" else column)

    def fields(self) -> dict[str, object]:
        amount = BAD.decode() if self.is_bad else self.amount
        note = f"u{self.uid}u" + ("\nfolded" if self.is_folded else "")
        values = {name: self.value(name) for name in COLUMNS if name not in ("amount", "note")}
        return {**values, "amount": amount, "note": note}


def marked(raw: bytes) -> int | None:
    """Which record some raw bytes are of."""
    found = _MARK.search(raw)
    return int(found[1]) if found else None


_WIDTH = 12


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the fields of a record are, in a form that does not name them in each record."""

    delimiter: str
    #: The columns in their order.
    order: tuple[str, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        edges = ((name, _WIDTH * number) for number, name in enumerate(self.order))
        return tuple(Place(column=name, first=first, end=first + _WIDTH) for name, first in edges)


#: At first, and after an edit. Fields that exchange their places have values of the same type.
LAYOUTS = (
    Layout(delimiter=",", order=tuple(COLUMNS)),
    Layout(delimiter=";", order=("oid", "k", "device", "dev", "pos", "seq", "uid", "eid", "amount", "note")),
)


def stream_of(form: Form, records: Sequence[Record], layout: Layout, *, is_first: bool) -> bytes:
    """The bytes of some records at the beginning of a file, or behind others."""
    match form:
        case Form.JSONL:
            return "".join(json.dumps(each.fields()) + "\n" for each in records).encode()
        case Form.CSV:
            return _csv(records, layout, has_header=is_first)
        case Form.PARQUET | Form.ORC | Form.AVRO:
            return _typed(records, Format(form))
        case Form.JSON:
            return _json(records)
        case Form.FIXED:
            return "".join(_fixed(each, layout) for each in records).encode()


def _json(records: Sequence[Record]) -> bytes:
    """An array whose records are read in several groups, because blanks are as long as one."""
    written = (json.dumps(each.fields(), indent=1) for each in records)
    padded = (each if number % 4 else each + " " * GROUP_BYTES for number, each in enumerate(written, start=1))
    return f"[{','.join(padded)}]".encode()


def _fixed(record: Record, layout: Layout) -> str:
    fields = record.fields()
    return "".join(f"{fields[name]!s:<{_WIDTH}}" for name in layout.order) + "\n"


def _csv(records: Sequence[Record], layout: Layout, *, has_header: bool) -> bytes:
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n", delimiter=layout.delimiter)
    if has_header:
        rows.writerow(layout.order)
    rows.writerows([each.fields()[name] for name in layout.order] for each in records)
    return written.getvalue().encode()


#: So long that neither edge of a typed file says anything of its records.
_PADDING = "x" * 4_500


_NUMBERS = ("uid", "k", "seq", "pos", "oid", "eid")


def _typed(records: Sequence[Record], of_format: Format) -> bytes:
    rows = [each.fields() for each in records]
    amounts = [None if each.is_bad else Decimal(each.amount) for each in records]
    notes = [f"u{each.uid:09}u" for each in records]
    columns = {
        "padding": pa.array([_PADDING] + [""] * (len(rows) - 1)),
        **{name: pa.array([row[name] for row in rows], pa.int64()) for name in _NUMBERS},
        **{name: pa.array([row[name] for row in rows]) for name in ("dev", "device")},
        "amount": pa.array(amounts, pa.decimal128(12, 2)),
        "note": pa.array(notes),
    }
    table = pa.table(columns).replace_schema_metadata({"padding": _PADDING})
    options = {"compression": "none", "use_dictionary": False} if of_format is Format.PARQUET else {}
    return content_of(table, of_format, rows=4, **options)


def packed(name: str, stream: bytes) -> bytes:
    """A name says how a file is packed."""
    if name.endswith(".gz"):
        return gzip.compress(stream, mtime=0)
    return zstandard.compress(stream) if name.endswith(".zst") else stream
