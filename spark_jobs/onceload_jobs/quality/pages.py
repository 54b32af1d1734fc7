"""The pages of audits: Great Expectations' Data Docs, in a folder that all audits share.

An audit writes its own page, that of its suite, and the index of the newest pages; other pages are not changed. One
process writes at a time. The pages are for people only: the results are stored in `onceload.audit`.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: The database keeps results for longer; a page per minute is 40 MB a day.
PAGES_KEPT_S = 30 * 86_400.0
#: Other pages are found by their batch, below `validations`.
_IN_THE_INDEX = 100
_FOLDERS = ("results", "validations", "expectations")


def context_of(docs: Path | None) -> Any:  # noqa: ANN401 - of a library that is imported late.
    """Configure the library to keep only what it needs for pages, if they are wanted."""
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    common: dict[str, Any] = {"analytics_enabled": False, "progress_bars": ProgressBarsConfig(globally=False)}
    if docs is None:
        return DataContextConfig(store_backend_defaults=InMemoryStoreBackendDefaults(), **common)
    # The expectations are of this audit alone; only results are kept, for the pages.
    backend: Any = InMemoryStoreBackendDefaults()
    backend.stores[backend.validation_results_store_name]["store_backend"] = _folder(docs / "results")
    index = {
        "class_name": "Index",
        "module_name": "onceload_jobs.quality.pages_index",
        "validation_results_limit": _IN_THE_INDEX,
    }
    site = {
        "class_name": "SiteBuilder",
        "show_how_to_buttons": False,
        "store_backend": _folder(docs),
        "site_index_builder": index,
        "site_section_builders": {"profiling": "None"},
    }
    return DataContextConfig(store_backend_defaults=backend, data_docs_sites={"site": site}, **common)


def _folder(path: Path) -> dict[str, str]:
    return {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(path.absolute())}


def write_pages(context: Any, validation: Any, docs: Path) -> None:  # noqa: ANN401 - of the library.
    """Write the new pages of this audit, and the index."""
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    suite = ExpectationSuiteIdentifier(name=validation.suite_name)
    own = ValidationResultIdentifier(
        expectation_suite_identifier=suite, run_id=validation.meta["run_id"], batch_identifier=validation.batch_id
    )
    with _alone(docs):
        context.build_data_docs(resource_identifiers=[suite, own])


def drop_old_pages(docs: Path, *, now_s: float | None = None) -> int:
    """Delete pages older than their retention with their sources, and return how many."""
    if not docs.is_dir():
        return 0
    before = (time.time() if now_s is None else now_s) - PAGES_KEPT_S
    dropped = 0
    with _alone(docs):
        for path in sorted((path for name in _FOLDERS for path in (docs / name).rglob("*")), reverse=True):
            with suppress(OSError):
                if path.is_dir():
                    # A folder that is not empty is kept.
                    path.rmdir()
                elif path.stat().st_mtime < before:
                    path.unlink()
                    dropped += path.suffix == ".html"
    return dropped


@contextmanager
def _alone(docs: Path) -> Iterator[None]:
    """Exclude other writers of pages; the lock ends with its process."""
    # The pages show rows.
    docs.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (docs / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
