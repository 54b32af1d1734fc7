"""What a file begins with that is no text in UTF-8, or no text in lines, whatever its name says."""

from spark_jobs.files.reading import read_at
from spark_jobs.formats.records import FileRefused

_LOOK_BYTES = 64 * 2**10
_UNPACK = "unpack it there"
_CONVERT = "convert it to UTF-8"
#: Each is longer than what a text might begin with by chance.
_SIGNATURES = (
    (b"\x1f\x8b\x08", "it is compressed with gzip", f"give it a name that ends in .gz, or {_UNPACK}"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with zstd", f"give it a name that ends in .zst, or {_UNPACK}"),
    (b"BZh91AY&SY", "it is compressed with bzip2", f"{_UNPACK}, or compress it with gzip or zstd"),
    (b"\xfd7zXZ\0", "it is compressed with xz", f"{_UNPACK}, or compress it with gzip or zstd"),
    (b"\x04\x22\x4d\x18", "it is compressed with lz4", f"{_UNPACK}, or compress it with gzip or zstd"),
    (b"PK\x03\x04", "it is a zip archive", f"{_UNPACK}, or compress it with gzip or zstd"),
    (b"PAR1\x15", "it is a Parquet file", "declare it with format: parquet in a pipeline of its own"),
    (b"Obj\x01", "it is an Avro file", "write it as JSON lines, CSV or Parquet"),
    (b"\xff\xfe", "it is text in UTF-16 or UTF-32", _CONVERT),
    (b"\xfe\xff", "it is text in UTF-16", _CONVERT),
    (b"\0\0\xfe\xff", "it is text in UTF-32", _CONVERT),
)


def check_text(url: str, begins: bytes) -> None:
    """Refuse a file that begins as no text does; of one without newlines, all that a record may have is given."""
    for signature, found, fix in _SIGNATURES:
        if begins.startswith(signature):
            raise FileRefused(url, "be text in UTF-8", found, fix)
    if _ends_in_returns(begins):
        fix = "convert it, for example with tr '\\r' '\\n'"
        raise FileRefused(url, "end its lines with newlines", "they end in carriage returns alone", fix)


def check_plain_text(url: str, *, record_bytes_max: int) -> None:
    """Look at the beginning of a file that is not compressed."""
    begins = read_at(url, offset=0, size=_LOOK_BYTES)
    if _ends_in_returns(begins) and len(begins) == _LOOK_BYTES:
        begins = read_at(url, offset=0, size=record_bytes_max)
    check_text(url, begins)


def _ends_in_returns(begins: bytes) -> bool:
    # The last byte may be the first of two that end a line.
    return b"\n" not in begins and b"\r" in begins[:-1]
