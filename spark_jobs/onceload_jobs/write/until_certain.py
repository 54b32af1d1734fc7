"""Write until the outcome is certain."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from onceload_core.errors import AlreadyConsumed, CommitOutcomeUnknown, DatabaseLost, PipelineBusy, SettingRefused
from onceload_jobs.write.patience import Patience
from onceload_jobs.write.writer import ColumnsDiffer

Rest = TypeVar("Rest")


def until_certain(
    find_rest: Callable[[], Rest | None],
    write: Callable[[Rest], None],
    *,
    on_unsure: Callable[[], None] | None = None,
    on_columns: Callable[[ColumnsDiffer], None],
    on_refused: Callable[[Rest, Exception], None],
) -> None:
    """Write what is left until everything took effect exactly once, by this process or another one.

    `write` is one transaction. A try of it ends in one of these ways:

    - It is committed: nothing is left.
    - Its outcome is unknown, or another process was first. Whether it took effect is never guessed: before the next
      try, `find_rest` asks the ledger what is left. `on_unsure` reminds one that does not always ask.
    - The table got other columns meanwhile. Nothing was written; `on_columns` prepares a try with those.
    - The server refused it. Nothing was written. `on_refused` leaves the refused rows out of the next try, or raises
      the refusal again.

    Any other error is raised, and so is the last one when patience is over: calling again is then as safe as a try.
    """
    patience = Patience()
    while (rest := patience.until_answered(find_rest)) is not None:
        try:
            write(rest)
        except (AlreadyConsumed, CommitOutcomeUnknown, DatabaseLost, PipelineBusy) as error:
            # Rarely more than once, but a permanent refusal must not be retried forever.
            patience.wait(error)
            if on_unsure is not None:
                on_unsure()
        except ColumnsDiffer as differing:
            on_columns(differing)
        except (SettingRefused, DBAPIError) as error:
            on_refused(rest, error)
        else:
            return
