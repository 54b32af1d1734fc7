"""Content that another pipeline has loaded from a folder that is gone: the pipeline was renamed, and its folder moved.

No key of the database holds this: equal files in two folders may well be two deliveries.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from onceload_core.declaration import TARGET, LoadedByAnother
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Ledger
from onceload_jobs.content.copies import LoadedContents, has_loaded
from onceload_jobs.files.addresses import Unreadable, with_login
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import look_at
from onceload_jobs.pipeline.declared import Declared


def refuse_moved_content(declared: Declared, ledger: Ledger[Any], pipeline: Pipeline, files: Iterable[Listed]) -> None:
    """Refuse the first load of a pipeline if another one has loaded its files in a folder where they are gone."""
    if has_loaded(ledger, pipeline.name):
        return
    new = tuple(files)
    for other, folder in ledger.others_by_content(pipeline).items():
        contents = LoadedContents(replace(declared, pipeline=replace(declared.pipeline, name=other)), ledger)
        for listed in new:
            shared = contents.find(listed)
            if shared is not None and _is_gone(with_login(folder + shared.state.name, of=declared.source.path)):
                file = (
                    f"{pipeline.folder}{listed.name} (as {folder}{shared.state.name}, which is gone; if these are two "
                    f"deliveries, set identity: path for the first load of {pipeline.name})"
                )
                raise LoadedByAnother(pipeline.name, other, file, pipeline.declaration.terms[TARGET], 0)


def _is_gone(url: str) -> bool:
    try:
        look_at(url)
    except Unreadable as error:
        # A store that does not answer proves nothing.
        return isinstance(error.__cause__, FileNotFoundError)
    return False
