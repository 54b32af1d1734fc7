"""Row groups of a Parquet file that is not on disk, as a load reads them."""

from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.parquet.footers import read_row_groups

URL = "landing/a.parquet"


def row_groups_of(content: bytes) -> list[Part]:
    return [
        Part(
            producer_id=ProducerId(1),
            first=group.first,
            end=group.end,
            raw=content[group.first_byte : group.end_byte],
            row_group=group,
        )
        for group in read_row_groups(content, url=URL, size=len(content))
    ]
