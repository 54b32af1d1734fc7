"""Write until the outcome is certain.

`write` is one transaction. A try of it ends in one of these ways:

- It is committed: nothing is left.
- Its outcome is unknown, or another process was first. Whether it took effect is never guessed: before the next try,
  `find_rest` asks the ledger what is left. `on_unsure` reminds one that does not always ask. With `is_whole`, it is an
  error if another process was first: the rest of a batch is not written alone.
- The table got other columns meanwhile. Nothing was written; `on_columns` prepares a try with those.
- The server refused rows. Nothing was written; `on_refused` prepares a try that finds out which.

Any other error is raised, and so is the last one when patience is over: calling again is then as safe as a try.
"""

from collections.abc import Callable
from typing import TypeVar

from onceload_core.errors import AlreadyConsumed, CommitOutcomeUnknown, DatabaseLost, PipelineBusy, RowsRefused
from onceload_jobs.write.patience import Patience
from onceload_jobs.write.writer import ColumnsDiffer

Rest = TypeVar("Rest")


def until_certain(
    find_rest: Callable[[], Rest | None],
    write: Callable[[Rest], None],
    *,
    is_whole: bool = False,
    on_unsure: Callable[[], None] | None = None,
    on_columns: Callable[[ColumnsDiffer], None] | None = None,
    on_refused: Callable[[RowsRefused], None] | None = None,
) -> None:
    """Write what is left until everything took effect exactly once, by this process or another one."""
    patience = Patience()
    while (rest := patience.until_answered(find_rest)) is not None:
        try:
            write(rest)
        except (AlreadyConsumed, CommitOutcomeUnknown, DatabaseLost, PipelineBusy) as error:
            if is_whole and isinstance(error, AlreadyConsumed):
                raise
            # Rarely more than once, but a permanent refusal must not be retried forever.
            patience.wait(error)
            if on_unsure is not None:
                on_unsure()
        except ColumnsDiffer as differing:
            if on_columns is None:
                raise
            on_columns(differing)
        except RowsRefused as refused:
            if on_refused is None:
                raise
            on_refused(refused)
        else:
            return
