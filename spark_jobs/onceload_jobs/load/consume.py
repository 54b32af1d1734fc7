"""A loader process without Spark: one session with its own name, on this machine or another.

It plans like any load, hands out what it finds, and works on open deliveries of any planner. It ends when it can get no
more work, or waits and looks again. When asked to stop, it finishes its current delivery. If it is killed, nothing is
lost: its delivery is handed out again when its lease ends, or when it starts again under its name.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from onceload_core.commands import PIPELINE_FILE
from onceload_core.declaration import DeclarationChanged
from onceload_core.errors import AskTheLedger, CallAgain, OnceloadError, SessionFenced, SettingRefused
from onceload_core.names import Batch, SessionName
from onceload_core.postgres.sessions import check_own_name
from onceload_jobs.executor.executor import InProcessExecutor
from onceload_jobs.load.load import load, take_version
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.pipeline.declared import Declared


def consume(
    declared: Declared, settings: LoadSettings, *, name: SessionName, batch: Batch, pause: Callable[[], bool]
) -> Iterator[Report | OnceloadError]:
    """Load what is new and what is open, and repeat while `pause` returns true.

    A temporary error is yielded instead of a report; a caller that stops must raise it.
    """
    check_consumer(declared, name)
    settings = replace(settings, session=name)
    with closing(InProcessExecutor()) as here:
        while True:
            try:
                if settings.version is None:
                    # Read once: if the file is edited later, this process must end, or it would restore the old one.
                    settings = replace(settings, version=take_version(declared, settings))
                yield load(declared, settings, batch=batch, executor=here)
            except (SessionFenced, DeclarationChanged):
                raise
            except (CallAgain, AskTheLedger) as error:
                yield error
            if settings.is_stopped() or not pause():
                return


def check_consumer(declared: Declared, name: SessionName) -> None:
    """Refuse a session that the pipeline has no work for."""
    check_own_name("--session", name)
    if declared.transform is not None:
        expected = f"one without (`onceload load {PIPELINE_FILE}` runs it)"
        raise SettingRefused("consume", "a pipeline with a transform", expected)
    rules = declared.delivery
    if declared.has_fixed_sessions and name not in rules.names:
        raise SettingRefused("--session", repr(name), f"a number from 1 to {rules.sessions} (delivery.sessions)")
