"""Messages about recoveries."""

from shlex import quote

from onceload.terminal import counted
from onceload_core.commands import PIPELINE_FILE
from onceload_core.postgres.recovery import Recovery
from onceload_core.postgres.rewind import Rewind

_NAMES_SHOWN = 20


def state_in_words(found: Recovery) -> str:
    start = f"snapshot at {found.snapshot_position} + " if found.snapshot_position else "whole ledger, "
    summary = (
        f"pipeline {found.pipeline}: {start}{found.entries_replayed} entries = position {found.position} with "
        f"{found.producers} producers"
    )
    if found.snapshot_position:
        summary += "\ndamage older than the snapshot was not checked. Run without --position to check it"
    if found.applied:
        how = f"{len(found.differing)} producers differed and were repaired. The ledger and the rows were not changed"
    elif found.is_different:
        how = f"{len(found.differing)} producers differ, such as {', '.join(found.differing[:5]) or 'the position'}"
    else:
        how = "the live state is the same; there was nothing to do"
    return f"{summary}\n{how}"


def rewind_in_words(found: Rewind) -> str:
    if not found.entries:
        return f"pipeline {found.pipeline}: it is already at position {found.rewound_to}; there was nothing to do"
    were = "was" if found.entries == 1 else "were"
    undone = f"{were} rolled back" if found.applied else "would be rolled back"
    what = (
        f"pipeline {found.pipeline}, back to position {found.rewound_to}: {counted(found.entries, 'commit')} of "
        f"{counted(found.producers, 'producer')} {undone}, with {counted(found.rows, 'row')}, "
        f"{counted(found.quarantined, 'quarantined record')} and {counted(found.message_ids, 'business id')}"
    )
    if found.held_again:
        are = "that was retried or discarded is" if found.held_again == 1 else "that were retried or discarded are"
        what += f"; {counted(found.held_again, 'record')} {are} held in quarantine again"
    lines = [what, *(f"differs: {each}" for each in found.differing[:_NAMES_SHOWN])]
    if found.lost:
        of_these = "records of these files" if found.applied else "records of these files would be rolled back, and"
        lines.append(f"{of_these} cannot be loaded again: {_some(found.lost)}")
    return "\n".join(lines)


def after_rewind_in_words(found: Rewind, *, has_source: bool) -> str:
    """What to do after a rewind that was applied."""
    lines = [f"the rewind is position {found.position} of the ledger"]
    # The rows of retried records are not read from a source again.
    if found.rows > found.held_again or found.quarantined:
        lines.append(
            f"run `onceload load {PIPELINE_FILE}` to load the records again"
            if has_source
            else "load these rows again from your program: until then, `load_rows` refuses later ids"
        )
    if found.held_again:
        shown = f"`onceload quarantine list --pipeline {quote(found.pipeline)}`"
        lines.append(f"{shown} shows the records that are in quarantine again")
    return "\n".join(lines)


def _some(found: tuple[str, ...]) -> str:
    more = len(found) - _NAMES_SHOWN
    return "; ".join(found[:_NAMES_SHOWN]) + (f"; and {more:,} more files" if more > 0 else "")
