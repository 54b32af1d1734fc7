"""What a pipeline file declares, as far as it decides which records exist and what they mean; and its versions.

The ledger keeps the version in force. A load takes a new one, under the pipeline's lock, when the file says something
else. From then on everything that was begun under the one before is refused: claims, deliveries, kept batches, commits.
So no row is ever made of one version's bytes by another version's rules.

Some of it gives the consumed sequence ids their meaning: these are the terms. With other terms the same ids would be
other records, so terms stay as they are for as long as something is consumed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dedup_core.errors import EditRefused

#: The folder that names of files start below.
ROOT = "source.root"
FORMAT = "source.format"
#: What decides where one record ends and the next one begins.
BOUNDARIES = "source.options"
IDENTITY = "source.identity"
PRODUCER = "producer"
ORDER = "producer.order"
MESSAGE_ID = "message_id"
TARGET = "target.table"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Equal declarations make the same rows of the same bytes; each text is named by its key in the pipeline file."""

    #: What gives consumed sequence ids their meaning. An empty text means none; a key that is left out is not compared.
    terms: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class InUse:
    """What depends on the terms in force."""

    #: Something was consumed.
    is_loaded: bool
    #: The table that was loaded is not there any more under its name: it was renamed, or dropped.
    is_table_gone: bool


def settled(before: Declaration | None, after: Declaration) -> Declaration:
    """What a declaration says, and of the terms that it leaves out what the one before said."""
    if before is None:
        return after
    return Declaration(terms={**before.terms, **after.terms}, rest=after.rest)


def names_other_messages(before: Declaration | None, after: Declaration) -> bool:
    """Whether business ids are those of other columns from now on, so that none of those remembered means anything."""
    return before is not None and before.terms.get(MESSAGE_ID) != after.terms.get(MESSAGE_ID)


def refuse_edit(
    pipeline: str, before: Declaration, after: Declaration, in_use: InUse, *, moved_from: str | None
) -> None:
    """Raise if an edit would give what is consumed another meaning."""
    for key, old, new in _edited(before, after):
        is_meant = key == ROOT and old == moved_from
        if not is_meant and _depends_on(key, old, new, in_use):
            raise EditRefused(pipeline, key, old or "none", new or "none")


def _edited(before: Declaration, after: Declaration) -> Iterator[tuple[str, str, str]]:
    for key, new in after.terms.items():
        old = before.terms.get(key, new)
        if old != new:
            yield key, old, new


def _depends_on(key: str, old: str, new: str, in_use: InUse) -> bool:
    match key:
        case "message_id":
            # A window may begin at any time, and end at any time; it cannot go on with other columns.
            return bool(old and new) and in_use.is_loaded
        case "source.identity":
            # Names are found by content from then on; the other way, names of one content would be loaded once more.
            return in_use.is_loaded and new == "path"
        case "target.table":
            return in_use.is_loaded and not in_use.is_table_gone
        case _:
            return in_use.is_loaded
