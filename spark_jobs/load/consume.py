"""A loader process without Spark: one session with a name of its own, on this machine or on any other.

It plans like any load, hands out what it finds, and works on what is open, whoever found it. It ends when nothing can
come to it any more, or stays and looks again. Asked to stop, it finishes what it has in hand; killed, it has lost
nothing: what it held is handed out again when its lease has ended, or as soon as it comes back under its name.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from dedup_core.errors import AskTheLedger, CallAgain, DeclarationChanged, OnceloadError, SessionFenced, SettingRefused
from dedup_core.names import Batch, SessionName
from dedup_core.postgres.deliveries import check_own_name
from spark_jobs.load.load import load, take_version
from spark_jobs.load.report import LoadSettings, Report
from spark_jobs.pipeline.declared import Declared
from spark_jobs.work.in_process import Here


def consume(
    declared: Declared, settings: LoadSettings, *, name: SessionName, batch: Batch, pause: Callable[[], bool]
) -> Iterator[Report | OnceloadError]:
    """Load what is new and whatever is open; then again, as long as `pause` answers that it should go on.

    What passes is told instead of a report; whoever does not go on has to raise it.
    """
    check_consumer(declared, name)
    settings = replace(settings, session=name)
    with closing(Here(name, settings.is_stopped)) as here:
        while True:
            try:
                if settings.version is None:
                    # Taken once: a file that was edited since ends this process, which would take its own back.
                    settings = replace(settings, version=take_version(declared, settings))
                yield load(declared, settings, batch=batch, tasks=here)
            except (SessionFenced, DeclarationChanged):
                raise
            except (CallAgain, AskTheLedger) as error:
                yield error
            if settings.is_stopped() or not pause():
                return


def check_consumer(declared: Declared, name: SessionName) -> None:
    """Refuse a session that the pipeline has nothing for."""
    check_own_name("--session", name)
    if declared.transform is not None:
        raise SettingRefused("consume", "a pipeline with a transform", "one without: `onceload load` runs Spark SQL")
    rules = declared.delivery
    if declared.has_fixed_sessions and name not in rules.names:
        raise SettingRefused("--session", repr(name), f"1 to {rules.sessions}, as delivery.sessions says")
