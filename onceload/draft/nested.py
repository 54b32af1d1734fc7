"""The fields inside objects: a draft offers each as a column of its own, beside the column with the whole object."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from onceload.draft.guess import Guess, GuessedColumn, guess_column, is_utf8
from onceload.draft.observe import Observed
from onceload.draft.types import Seen
from onceload.draft.values import Written
from onceload.pipeline_file import find_column_name_problem
from onceload_jobs.pipeline.declared import Format

Path = tuple[str, ...]
#: An object with more fields is often a map.
FIELDS_MAX = 30
#: The characters of the names on a path.
_PATH_MAX = 200


def offer_paths(guess: Guess, observed: Observed) -> Guess:
    """The same columns, with the fields inside them."""
    found = [_first_fields(each.column.name, observed) for each in guess.columns]
    leaves = Counter(path[-1] for fields in found for path, _ in fields)
    taken = {each.column.name for each in guess.columns}
    columns = []
    for each, fields in zip(guess.columns, found, strict=True):
        inside = []
        for path, seen in fields[:FIELDS_MAX]:
            if name := _find_name(path, leaves, taken):
                taken.add(name)
                inside.append(_column(name, path, seen, observed.records))
        has_more = len(inside) < len(fields)
        columns.append(replace(each, inside=tuple(inside), has_more_inside=has_more))
    return replace(guess, columns=tuple(columns))


def _first_fields(name: str, observed: Observed) -> Sequence[tuple[Path, Seen]]:
    return list(islice(_fields_inside((name,), observed.fields[name], observed), FIELDS_MAX + 1))


def _fields_inside(path: Path, seen: Seen, around: Observed) -> Iterator[tuple[Path, Seen]]:
    """The fields that are not objects, or not always."""
    inner = around.inside.get(path[-1])
    # Another value on a path would send its record to quarantine.
    if inner is None or seen.kinds != {Written.OBJECT}:
        return
    for name, each in inner.fields.items():
        # A repeated name would too.
        if name.strip() and "\0" not in name and is_utf8(name) and not each.twice:
            below = list(_fields_inside((*path, name), each, inner))
            yield from below or [((*path, name), each)]


def _find_name(path: Path, leaves: Counter[str], taken: set[str]) -> str | None:
    """The field's own name, or its whole path if the name is taken, repeated or not allowed."""
    if len("".join(path)) > _PATH_MAX:
        return None
    names = ([path[-1]] if leaves[path[-1]] == 1 else []) + ["_".join(path)]
    return next((name for name in names if name not in taken and not find_column_name_problem(name)), None)


def _column(name: str, path: Path, seen: Seen, records: int) -> GuessedColumn:
    guessed = guess_column(name, seen, Observed(records=records), Format.JSON, is_missing=False)
    return replace(guessed, column=replace(guessed.column, path=path))
