"""What a run was asked for: its day and data interval, its files, and the choices of its form."""

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceload.pipeline_file import placeholders
from onceload.placeholders import GIVEN
from onceload_core.names import Batch

if TYPE_CHECKING:
    from airflow.sdk import Context

#: What to do with loaded files: keep their rows, or reload them.
MISSING, REPLACE = MODES = ("missing", "replace")
#: Types of runs that another run follows, by Airflow's own names.
_REPEATED = ("scheduled", "asset_triggered")


def given_values(context: "Context") -> dict[str, str]:
    """The day and data interval of a run: from its parameter `date`, else its logical date, else its start."""
    run: Any = context["dag_run"]
    if day := (context.get("params") or {}).get("date"):
        return values_of_day(date.fromisoformat(day))
    at = run.logical_date or run.run_after
    return _values(at, run.data_interval_start or at, run.data_interval_end or at)


def values_of_day(day: date) -> dict[str, str]:
    start = datetime.combine(day, time(), UTC)
    return _values(start, start, start + timedelta(days=1))


def _values(at: datetime, start: datetime, end: datetime) -> dict[str, str]:
    return {
        "ds": f"{at:%Y-%m-%d}",
        "ds_nodash": f"{at:%Y%m%d}",
        "ts_nodash": f"{at:%Y%m%dT%H%M%S}",
        "data_interval_start": f"{start:%Y-%m-%dT%H:%M:%S}",
        "data_interval_end": f"{end:%Y-%m-%dT%H:%M:%S}",
    }


def chosen_files(context: "Context") -> tuple[str, ...]:
    return tuple((context.get("params") or {}).get("files") or ())


def is_replacing(context: "Context") -> bool:
    return (context.get("params") or {}).get("mode") == REPLACE


def accepts_differences(context: "Context") -> bool:
    return bool((context.get("params") or {}).get("accept_differences"))


def is_by_day(pipeline_file: Path) -> bool:
    return bool(set(placeholders(pipeline_file)) & set(GIVEN))


def is_followed(context: "Context", pipeline_file: Path) -> bool:
    """Whether a later run loads by itself what this one leaves: no other run loads the day of a run, or is asked to."""
    run: Any = context["dag_run"]
    return run.run_type in _REPEATED and not is_by_day(pipeline_file)


def batch_of(context: "Context") -> Batch:
    return Batch(str(context["run_id"]))
