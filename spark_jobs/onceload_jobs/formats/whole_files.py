"""Files that are written once: what identifies each, and the row groups in which it is read."""

from dataclasses import dataclass

from onceload_jobs.files.fingerprints import Fingerprint, read_whole
from onceload_jobs.formats.chunks import RowGroup
from onceload_jobs.formats.json.documents import read_documents
from onceload_jobs.formats.parquet.footers import check_columns, read_row_groups
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Format


@dataclass(frozen=True, kw_only=True)
class WholeFile:
    fingerprint: Fingerprint
    #: All of its rows, in order.
    row_groups: tuple[RowGroup, ...]


def read_whole_file(of_format: Format, url: str, *, size: int, columns: tuple[Column, ...] = ()) -> WholeFile:
    """Find the rows of a file; refuse one that is not complete, or that lacks one of the columns."""
    fingerprint, tail = read_whole(url, size=size)
    match of_format:
        case Format.JSON:
            groups = read_documents(url, fingerprint)
        case _:
            check_columns(tail, columns, url=url)
            groups = read_row_groups(tail, url=url, size=size)
    return WholeFile(fingerprint=fingerprint, row_groups=groups)
