"""Any error in one sentence, with the exit code that says what to do next."""

from onceload.extras import advice_for
from onceload.outcome import Outcome
from onceload_core.errors import DatabaseLost, ExitCode, OnceloadError
from onceload_core.messages import whole_message


def outcome_of(error: BaseException) -> Outcome:
    """How a command ended that raised this error."""
    message, exit_code = _missing_extra(error) or _in_words(error)
    return Outcome(exit_code=exit_code, error=type(error).__name__, message=message)


def _missing_extra(error: BaseException) -> tuple[str, ExitCode] | None:
    if not (advice := advice_for(error)):
        return None
    before = whole_message(error) if isinstance(error, OnceloadError) else "All uncommitted work was rolled back."
    return f"{before} {advice}.", ExitCode.WRONG_USE


def _in_words(error: BaseException) -> tuple[str, ExitCode]:
    # Each command that can fail in this way has imported them.
    from sqlalchemy.exc import DBAPIError

    from onceload_core.postgres.connection import first_line, is_lost

    match error:
        case OnceloadError():
            return whole_message(error), error.exit_code
        case DBAPIError() if is_lost(error):
            return str(DatabaseLost("working", first_line(error))), ExitCode.CALL_AGAIN
        case DBAPIError():
            hint = getattr(getattr(error.orig, "diag", None), "message_hint", None)
            message = f"{first_line(error)}. Uncommitted work was rolled back"
            return f"{message}. {hint}" if hint else message, ExitCode.WRONG_USE
        case KeyboardInterrupt():
            message = "interrupted. All uncommitted work was rolled back. Run the command again"
            return message, ExitCode.CALL_AGAIN
        case OSError() | UnicodeError() | RuntimeError():
            return f"{type(error).__name__}: {error}", ExitCode.CALL_AGAIN
        case _:
            # The message of an unexpected error may contain values of rows, so it is not shown.
            unexpected = f"an unexpected {type(error).__name__} stopped this command. This is a bug in Onceload"
            what_now = "All uncommitted work was rolled back. Run it again with --debug, and report the traceback"
            return f"{unexpected}. {what_now}.", ExitCode.CALL_AGAIN
