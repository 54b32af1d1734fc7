"""Cut files after complete records."""

from collections.abc import Iterator

from onceload_jobs.files.reading import read_at

STEP_BYTES = 2**20
LOOK_BYTES = 64 * 2**10


def cuts(url: str, *, first: int, end: int, chunk_bytes: int, record_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Cut `[first, end)` of a plain file after the first newlines that follow multiples of `chunk_bytes`."""
    edge, wanted = first, first + chunk_bytes
    while wanted < end:
        # Include the byte before: a newline there ends a record exactly here.
        newline = find_newline(url, first=wanted - 1, end=min(end, wanted + record_bytes_max))
        reached = wanted + record_bytes_max if newline is None else newline + 1
        if newline is not None and newline + 1 < end:
            yield edge, newline + 1
            edge = newline + 1
        # An oversized record has no newline soon, so skip the multiples inside it.
        wanted = first + ((reached - first) // chunk_bytes + 1) * chunk_bytes
    if edge < end:
        yield edge, end


def complete_end(url: str, *, first: int, size: int) -> int:
    """Return the end of the last whole line in a plain file's `[first, size)`, or `first` if there is none."""
    end, step = size, LOOK_BYTES
    while end > first:
        start = max(first, end - step)
        newline = read_at(url, offset=start, size=end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end, step = start, min(2 * step, STEP_BYTES)
    return first


def find_newline(url: str, *, first: int, end: int) -> int | None:
    """Return the position of the first newline in a plain file's `[first, end)`."""
    at, step = first, LOOK_BYTES
    while at < end and (block := read_at(url, offset=at, size=min(step, end - at))):
        newline = block.find(b"\n")
        if newline >= 0:
            return at + newline
        at, step = at + len(block), min(2 * step, STEP_BYTES)
    return None
