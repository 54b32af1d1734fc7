"""Loads files into Postgres exactly once: the Python API.

    import onceload

    pipeline = onceload.Pipeline.read("pipelines/events.yaml")
    report = pipeline.load()

`Pipeline` does what the commands do: plan, load, stage, audit, publish, give_up, verify, why, pause, resume,
recover_state, recover_rewind and recover_rebuild. `database` is the address of the database that they use. All errors
are `OnceloadError`s, and their groups say what to do next: `CallAgain`, `WrongUse`, `AskTheLedger` and `NeedsAPerson`.

Names are imported when they are first used, so that `import onceload` itself takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceload.explanation import Explanation
    from onceload.pipeline import ArrowStream, Pipeline, Rows, ToArrow, database
    from onceload.pipeline_file import PipelineFileRefused
    from onceload_core.declaration import DeclarationChanged, EditRefused, LoadedByAnother
    from onceload_core.errors import (
        AlreadyConsumed,
        AskTheLedger,
        CallAgain,
        ClaimedElsewhere,
        CommitOutcomeUnknown,
        DatabaseLost,
        DatabaseRefused,
        DatabaseUnreachable,
        ExitCode,
        LimitReached,
        NeedsAPerson,
        NotFound,
        OnceloadError,
        PipelineBusy,
        RowsRefused,
        SchemaRefused,
        SessionFenced,
        SettingRefused,
        StateDiffers,
        TooManyQuarantined,
        WrongUse,
    )
    from onceload_core.pause import Pause, PipelinePaused
    from onceload_core.postgres.batches import Audit, Finding
    from onceload_core.postgres.pausing import Paused
    from onceload_core.postgres.recovery import Recovery
    from onceload_core.postgres.rewind import Rewind
    from onceload_jobs.files.notes import Note
    from onceload_jobs.load.given_pieces import OfferRefused
    from onceload_jobs.load.given_rows import NoGoodRow
    from onceload_jobs.load.report import Report
    from onceload_jobs.load.settings import Engine
    from onceload_jobs.load.staged.kept_batch import NotAudited, NothingKept
    from onceload_jobs.plan.plan import Plan
    from onceload_jobs.plan.to_read import FileToRead
    from onceload_jobs.quality.audit import AuditFailed
    from onceload_jobs.recover.rebuild import Rebuild
    from onceload_jobs.verify.findings import Difference
    from onceload_jobs.verify.verify import Verification
    from onceload_jobs.work.progress import Progress, Waiting

#: The public names, by the modules that define them; the list above is the same for type checkers.
_NAMES_IN = {
    "onceload_core.declaration": "DeclarationChanged EditRefused LoadedByAnother",
    "onceload_core.errors": "AlreadyConsumed AskTheLedger CallAgain ClaimedElsewhere CommitOutcomeUnknown DatabaseLost "
    "DatabaseRefused DatabaseUnreachable ExitCode LimitReached NeedsAPerson NotFound OnceloadError PipelineBusy "
    "RowsRefused SchemaRefused SessionFenced SettingRefused StateDiffers TooManyQuarantined WrongUse",
    "onceload_core.pause": "Pause PipelinePaused",
    "onceload_core.postgres.batches": "Audit Finding",
    "onceload_core.postgres.pausing": "Paused",
    "onceload_core.postgres.recovery": "Recovery",
    "onceload_core.postgres.rewind": "Rewind",
    "onceload.explanation": "Explanation",
    "onceload.pipeline": "ArrowStream Pipeline Rows ToArrow database",
    "onceload.pipeline_file": "PipelineFileRefused",
    "onceload_jobs.files.notes": "Note",
    "onceload_jobs.load.settings": "Engine",
    "onceload_jobs.load.staged.kept_batch": "NotAudited NothingKept",
    "onceload_jobs.load.report": "Report",
    "onceload_jobs.load.given_pieces": "OfferRefused",
    "onceload_jobs.load.given_rows": "NoGoodRow",
    "onceload_jobs.plan.plan": "Plan",
    "onceload_jobs.plan.to_read": "FileToRead",
    "onceload_jobs.quality.audit": "AuditFailed",
    "onceload_jobs.recover.rebuild": "Rebuild",
    "onceload_jobs.verify.findings": "Difference",
    "onceload_jobs.verify.verify": "Verification",
    "onceload_jobs.work.progress": "Progress Waiting",
}
_MODULE_OF = {name: module for module, names in _NAMES_IN.items() for name in names.split()}

__all__ = [
    "AlreadyConsumed",
    "ArrowStream",
    "AskTheLedger",
    "Audit",
    "AuditFailed",
    "CallAgain",
    "ClaimedElsewhere",
    "CommitOutcomeUnknown",
    "DatabaseLost",
    "DatabaseRefused",
    "DatabaseUnreachable",
    "DeclarationChanged",
    "Difference",
    "EditRefused",
    "Engine",
    "ExitCode",
    "Explanation",
    "FileToRead",
    "Finding",
    "LimitReached",
    "LoadedByAnother",
    "NeedsAPerson",
    "NoGoodRow",
    "NotAudited",
    "NotFound",
    "Note",
    "NothingKept",
    "OfferRefused",
    "OnceloadError",
    "Pause",
    "Paused",
    "Pipeline",
    "PipelineBusy",
    "PipelineFileRefused",
    "PipelinePaused",
    "Plan",
    "Progress",
    "Rebuild",
    "Recovery",
    "Report",
    "Rewind",
    "Rows",
    "RowsRefused",
    "SchemaRefused",
    "SessionFenced",
    "SettingRefused",
    "StateDiffers",
    "ToArrow",
    "TooManyQuarantined",
    "Verification",
    "Waiting",
    "WrongUse",
    "database",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
