"""The settings of a pipeline file that decide which records exist and what they mean, and their versions.

The ledger keeps the version in force. If the file has changed, a load takes a new version under the pipeline's lock.
From then on, everything that began under an earlier version is refused: claims, deliveries, kept batches, commits.
So no row is made from one version's bytes by another version's rules.

Some settings give the consumed sequence ids their meaning. They are called the terms. With other terms the same ids
would be other records, so the terms cannot change while anything is consumed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import CallAgain, WrongUse
from onceload_core.names import Version

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
PATH = "source.path"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Equal declarations make the same rows from the same bytes. Keys are those of the pipeline file."""

    #: Give consumed sequence ids their meaning. An empty value means none. A missing key is not compared.
    terms: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, str] = field(default_factory=dict)
    #: Where the fields of a record are in its bytes, for programs. The texts above say the same, so only they are
    #: compared. None: the version is from before it was kept.
    layout: Mapping[str, object] | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class InUse:
    """What depends on the terms in force."""

    #: Anything was consumed.
    is_loaded: bool
    #: The name of the loaded table is that of no table any more, or of another one: it was renamed or dropped.
    is_table_gone: bool


def settled(before: Declaration | None, after: Declaration) -> Declaration:
    """A declaration, with the terms that it leaves out taken from the one before."""
    if before is None:
        return after
    return replace(after, terms={**before.terms, **after.terms})


def names_other_messages(remembered: str, after: Declaration) -> bool:
    """Whether business ids come from other columns than the remembered ones, which then no longer apply.

    Without business ids, the remembered ones stay until they are as old as their window: they apply again once the same
    columns are declared.
    """
    declared = after.terms.get(MESSAGE_ID)
    return bool(declared) and declared != remembered


def refuse_edit(
    pipeline: str, before: Declaration, after: Declaration, in_use: InUse, *, moved_from: str | None
) -> None:
    """Raise if an edit would change the meaning of consumed ids."""
    for key, old, new in _edited(before, after):
        is_meant = key == ROOT and old == moved_from and not _is_nested(old, new)
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


def _is_nested(one: str, other: str) -> bool:
    """Whether one folder is in the other: files may be where they were, below a wider or a narrower path."""
    paths = PurePosixPath(one), PurePosixPath(other)
    return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])


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


@dataclass(eq=False)
class DeclarationChanged(CallAgain):
    pipeline: str
    version: Version
    in_force: Version

    def __str__(self) -> str:
        number, in_force = self.version.number, self.in_force.number
        other = "another version" if number == in_force else "version"
        return (
            f"pipeline {self.pipeline}: while this load ran, the pipeline file was edited, or was run where its path "
            f"leads to another folder (the load began with version {number}, and {other} {in_force} is in force). What "
            "it had committed stays loaded. Nothing more was written. Retry with the current file."
        )


@dataclass(eq=False)
class EditRefused(WrongUse):
    pipeline: str
    key: str
    before: str
    after: str

    def __str__(self) -> str:
        key = _NESTED if self.key == ROOT and _is_nested(self.before, self.after) else self.key
        causes, fix = (text.format(before=self.before) for text in _EDITS[key])
        return (
            f"pipeline {self.pipeline}: {self.key} was changed from {self.before} to {self.after}, and records are "
            f"already loaded. {causes} Nothing was changed. Restore the old value, unless you want this change. {fix}"
        )


@dataclass(eq=False)
class LoadedByAnother(WrongUse):
    """A pipeline would load files that another pipeline has loaded into the same table."""

    pipeline: str
    other: str
    #: The address of one of the files, and how many more there are.
    file: str
    table: str
    more: int

    def __str__(self) -> str:
        files = f"{self.file} and {self.more:,} other files" if self.more > 1 else self.file
        files += " and another file" if self.more == 1 else ""
        table = self.table.replace('"', "")
        return (
            f"pipeline {self.pipeline}: pipeline {self.other} has loaded {files} into {table}. A file belongs to "
            "one pipeline per table, because its records would be duplicated otherwise. This load was refused, and "
            f"loaded rows stay. If {self.other} was renamed to {self.pipeline}, restore the name {self.other}, or "
            "rename it in the database before the next load (docs/how-to/edit-a-pipeline.md). If only other files "
            f"were meant, change source.path so that it does not match these. To load them with {self.pipeline} "
            f"instead, first delete all rows of {self.other}: run `onceload recover rewind --position 0` with its "
            "pipeline file (append targets with lineage). To load them a second time on purpose, load them into "
            "another table."
        )


@dataclass(eq=False)
class LoadedUnderOtherName(WrongUse):
    """A pipeline would load files that it has loaded itself, when their names began in another folder."""

    pipeline: str
    #: The address of one of the files, its name now and then, and how many more there are.
    file: str
    name: str
    name_before: str
    more: int

    def __str__(self) -> str:
        others = f" The same is true of {self.more:,} other files." if self.more else ""
        return (
            f"pipeline {self.pipeline}: {self.file} is loaded already, as {self.name_before}. With the current "
            f"source.path, its name would be {self.name}, and it would be loaded a second time.{others} This load was "
            f"refused, and loaded rows stay. {_BY_CONTENT}"
        )


_BY_CONTENT = (
    "Set `source.identity: content`: loaded files are then found by their content, whatever their names, and other "
    "files of equal content count as copies. This cannot be undone, and goes neither with on_rewrite: replace nor "
    "with write: merge without newer_file."
)
_START_AGAIN = (
    "To load everything again, undo the edit, run `onceload recover rewind "
    f"{PIPELINE_FILE} --position 0` (append targets with lineage), make the edit again, and load. Or load into a new "
    f"database: `onceload recover rebuild {PIPELINE_FILE}`. To keep the loaded rows, give the pipeline another name "
    "and a source.path that matches new files only."
)
_NESTED = "source.root, one in the other"
_OF_ROOT = (
    "source.root is the folder of source.path before its first wildcard, and file names start below it. Every file "
    "would get another name and be loaded again."
)
#: What each edit would cause, and how to do it on purpose.
_EDITS = {
    ROOT: (
        _OF_ROOT,
        "If the folder was moved and the names below it stayed the same, set `source.moved_from: {before}`: each file "
        "is then compared with what was loaded under its name. " + _START_AGAIN,
    ),
    _NESTED: (
        _OF_ROOT,
        "One of the two folders is in the other, so loaded files may still be at their places, and "
        "`source.moved_from` cannot say which. " + _BY_CONTENT + " " + _START_AGAIN,
    ),
    "source.format": ("The rest of partly loaded files would be read in another format.", _START_AGAIN),
    "source.options": ("Records would begin and end at other bytes than those that were loaded.", _START_AGAIN),
    "producer": (
        "New records could be dropped as duplicates, and loaded ones could be loaded again.",
        _START_AGAIN,
    ),
    "message_id": (
        "New ids would be compared with remembered ids of the old columns, and new records could be dropped as "
        "duplicates.",
        "To start with other columns, remove message_id, load once, and then declare the new columns. Only ids from "
        "that load on are compared.",
    ),
    "producer.order": (
        "New records could be dropped as duplicates: with `ordered`, ids that were skipped count as loaded.",
        _START_AGAIN,
    ),
    "source.identity": (
        "Files that are loaded under another name would be loaded again.",
        _START_AGAIN,
    ),
    "target.table": (
        "The loaded rows would stay in {before}, where replace, rewind and verify would not look for them.",
        "If it is the same table under a new name, rename the table itself (ALTER TABLE ... RENAME TO ...). "
        + _START_AGAIN,
    ),
}
