"""How a load is called: with which settings, and on which files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dedup_core.postgres import LedgerSettings
from onceload.settings import Settings

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from spark_jobs.load.report import LoadSettings
    from spark_jobs.pipeline.declared import Declared
    from spark_jobs.plan.choice import Choice


def how_of(settings: Settings, dsn: str) -> "LoadSettings":
    """How to load, as far as the environment says."""
    from spark_jobs.load.report import LoadSettings

    return LoadSettings(ledger=LedgerSettings(dsn=dsn), docs=settings.home / "quality")


def chosen(declared: "Declared", *, files: Sequence[str], replaces: bool) -> "Choice":
    """Which files a load is about, refused where that pipeline allows no such choice."""
    from onceload.contradictions import refuse_choice
    from spark_jobs.plan.choice import Choice

    refuse_choice(declared, files=files, replaces=replaces)
    return Choice(files=tuple(files), replaces=replaces)
