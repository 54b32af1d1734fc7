"""Small batches of records that name their producer, handled like large ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from onceload_jobs.publish import named_rows


@contextmanager
def small_batches_in_files() -> Iterator[None]:
    """Send batches with one delivery through files too."""
    before, named_rows.DELIVERIES_MIN = named_rows.DELIVERIES_MIN, 1
    try:
        yield
    finally:
        named_rows.DELIVERIES_MIN = before
