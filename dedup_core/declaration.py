"""The settings of a pipeline file that decide which records exist and what they mean, and their versions.

The ledger keeps the version in force. If the file has changed, a load takes a new version under the pipeline's lock.
From then on, everything that began under an earlier version is refused: claims, deliveries, kept batches, commits.
So no row is made from one version's bytes by another version's rules.

Some settings give the consumed sequence ids their meaning. They are called the terms. With other terms the same ids
would be other records, so the terms cannot change while anything is consumed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from dedup_core.errors import DeclarationChanged, EditRefused
from dedup_core.names import Version

#: The folder that file names are relative to.
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
    """Equal declarations make the same rows from the same bytes. Keys are those of the pipeline file."""

    #: Give consumed sequence ids their meaning. An empty value means none. A missing key is not compared.
    terms: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class InUse:
    """What depends on the terms in force."""

    #: Anything was consumed.
    is_loaded: bool
    #: No table has the name of the loaded one any more: it was renamed or dropped.
    is_table_gone: bool


def settled(before: Declaration | None, after: Declaration) -> Declaration:
    """A declaration, with the terms that it leaves out taken from the one before."""
    if before is None:
        return after
    return Declaration(terms={**before.terms, **after.terms}, rest=after.rest)


def names_other_messages(before: Declaration | None, after: Declaration) -> bool:
    """Whether business ids come from other columns now, so that remembered ids no longer apply."""
    return before is not None and before.terms.get(MESSAGE_ID) != after.terms.get(MESSAGE_ID)


def refuse_edit(
    pipeline: str, before: Declaration, after: Declaration, in_use: InUse, *, moved_from: str | None
) -> None:
    """Raise if an edit would change the meaning of consumed ids."""
    for key, old, new in _edited(before, after):
        is_meant = key == ROOT and old == moved_from
        if not is_meant and _depends_on(key, old, new, in_use):
            raise EditRefused(pipeline, key, old or "none", new or "none")


def refuse_other_version(pipeline: str, version: Version, in_force: Version) -> None:
    """Raise unless a version is the one in force."""
    if version != in_force:
        raise DeclarationChanged(pipeline, version, in_force)


def _edited(before: Declaration, after: Declaration) -> Iterator[tuple[str, str, str]]:
    for key, new in after.terms.items():
        old = before.terms.get(key, new)
        if old != new:
            yield key, old, new


def _depends_on(key: str, old: str, new: str, in_use: InUse) -> bool:
    match key:
        case "message_id":
            # A window may begin and end at any time. It cannot continue with other columns.
            return bool(old and new) and in_use.is_loaded
        case "source.identity":
            # From path to content is safe: loaded files are found by content. The reverse would load copies again.
            return in_use.is_loaded and new == "path"
        case "target.table":
            return in_use.is_loaded and not in_use.is_table_gone
        case _:
            return in_use.is_loaded
