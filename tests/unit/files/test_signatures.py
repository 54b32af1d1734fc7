"""The first bytes of files that are not text, and texts that begin almost like them."""

import bz2
import gzip
import io
import lzma
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.signatures import check_plain_text, check_text

TEXT = b'{"id": 1}\n'


def zipped() -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("a.jsonl", TEXT)
    return sink.getvalue()


def parquet(**columns: list[int]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("begins", "found"),
    [
        (gzip.compress(TEXT, mtime=0), "it is compressed with gzip"),
        (zstandard.compress(TEXT), "it is compressed with zstd"),
        (bz2.compress(TEXT), "it is compressed with bzip2"),
        (lzma.compress(TEXT), "it is compressed with xz"),
        (zipped(), "it is a zip archive"),
        (b"\x04\x22\x4d\x18\x60", "it is compressed with lz4"),
        (b"Obj\x01\x04\x14avro.codec", "it is an Avro file"),
        (parquet(id=[1]), "it is a Parquet file"),
        (parquet(), "it is a Parquet file"),
        (b"ORC\x0a\x00\x12", "it is an ORC file"),
        (TEXT.decode().encode("utf-16"), "it is text in UTF-16"),
        (b"\xfe\xff" + TEXT.decode().encode("utf-16-be"), "it is text in UTF-16"),
        (TEXT.decode().encode("utf-32"), "it is text in UTF-16 or UTF-32"),
        (b"\0\0\xfe\xff" + TEXT.decode().encode("utf-32-be"), "it is text in UTF-32"),
        (b"id,note\r1,a\r2,b", "its lines end in carriage returns alone"),
    ],
)
def test_a_file_that_is_not_text_is_reported_as_what_it_is(begins, found):
    with pytest.raises(FileRefused) as caught:
        check_text("a.jsonl", begins)

    assert found in str(caught.value)


@pytest.mark.parametrize(
    "begins",
    [
        b"",
        TEXT,
        b"\xef\xbb\xbf" + TEXT,
        b"PAR1,2\n",
        b"ORC\n1\n",
        b"BZh9,2\n",
        b"PK,2\n",
        b"id\r\n1\r\n",
        b"id\r",
        b'"a\rb",1\n',
    ],
)
def test_text_that_only_looks_like_a_signature_is_read_as_text(begins):
    check_text("a.csv", begins)


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_a_long_first_line_may_hold_carriage_returns(tmp_path, newline):
    path = tmp_path / "a.csv"
    path.write_bytes(b'"a\rb' + b"x" * 100_000 + b'"' + newline)

    if newline:
        check_plain_text(str(path), record_bytes_max=200_000)
    else:
        with pytest.raises(FileRefused, match="carriage returns"):
            check_plain_text(str(path), record_bytes_max=200_000)
