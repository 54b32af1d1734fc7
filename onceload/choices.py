"""Settings and chosen files of a load."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceload.settings import Settings
from onceload_core.postgres import LedgerSettings

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from onceload_jobs.load.settings import LoadSettings
    from onceload_jobs.pipeline.declared import Declared
    from onceload_jobs.plan.choice import Choice


def how_of(settings: Settings, dsn: str) -> "LoadSettings":
    """The load settings that follow from the environment."""
    from onceload_jobs.load.settings import LoadSettings

    return LoadSettings(ledger=LedgerSettings(dsn=dsn), docs=settings.home / "quality", stage=settings.stage)


def chosen(declared: "Declared", *, files: Sequence[str], replaces: bool) -> "Choice":
    """The files to load; raises if the pipeline does not allow this choice."""
    from onceload.contradictions import refuse_choice
    from onceload_jobs.plan.choice import Choice

    refuse_choice(declared, files=files, replaces=replaces)
    return Choice(files=tuple(files), replaces=replaces)
