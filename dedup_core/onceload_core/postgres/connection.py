"""Connections to Postgres, and the translation of its errors into ours."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from itertools import count
from typing import Any, TypeAlias, TypeVar

import psycopg2
from sqlalchemy import Connection, CursorResult, Engine, Row, TextClause, create_engine, text
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import (
    AlreadyConsumed,
    AskTheLedger,
    DatabaseLost,
    DatabaseRefused,
    PipelineBusy,
    SettingRefused,
)
from onceload_core.postgres.refusal import Attempt
from onceload_core.spans import SpanSet

Item = TypeVar("Item")
#: A row of a result, with the columns that the statement names.
Record: TypeAlias = Row[*tuple[Any, ...]]


_TCP_USER_TIMEOUT_MS = 180_000
_SETTINGS = "onceload_settings"


@dataclass(frozen=True, kw_only=True)
class LedgerSettings:
    """The address of the database, and its timeouts."""

    dsn: str = field(repr=False)
    connect_timeout_s: int = 10
    #: The longest wait for the pipeline's commit lock.
    lock_timeout_s: float = 30.0
    #: A worker that hangs in a transaction holds the commit lock. The server ends its session after this time.
    idle_timeout_s: float = 30.0


def connect(settings: LedgerSettings) -> Engine:
    """An engine whose connections use the primary, at READ COMMITTED."""
    # libpq parses the address, so that everything that psql accepts is accepted here.
    return create_engine(
        "postgresql+psycopg2://",
        creator=lambda: _open(settings),
        isolation_level="READ COMMITTED",
        pool_use_lifo=True,
        # The parameters are rows and names, which must not get into logs.
        hide_parameters=True,
        execution_options={_SETTINGS: settings},
    )


def settings_of(engine: Engine) -> LedgerSettings:
    """The settings of an engine that `connect` made, for workers that open connections of their own."""
    settings: LedgerSettings = engine.get_execution_options()[_SETTINGS]
    return settings


def _open(settings: LedgerSettings) -> "psycopg2.extensions.connection":
    # The timeout for unacknowledged data. It is long because the peer may be busy and not reading.
    gone: dict[str, Any] = {} if "tcp_user_timeout" in settings.dsn else {"tcp_user_timeout": _TCP_USER_TIMEOUT_MS}
    connection: psycopg2.extensions.connection = psycopg2.connect(
        settings.dsn,
        connection_factory=Attempt,
        connect_timeout=settings.connect_timeout_s,
        target_session_attrs="read-write",
        application_name="onceload",
        # Binary COPY data is UTF-8, whatever the role, the database or PGCLIENTENCODING set.
        client_encoding="UTF8",
        # A dead peer is detected within a minute instead of two hours.
        keepalives_idle=30,
        keepalives_interval=10,
        keepalives_count=3,
        **gone,
    )
    with connection.cursor() as cursor:
        timeouts = (f"{int(settings.lock_timeout_s * 1000)}ms", f"{int(settings.idle_timeout_s * 1000)}ms")
        cursor.execute(SQL["settings"].text, timeouts)
    connection.commit()
    return connection


def statements(name: str, *, package: str = __package__) -> Mapping[str, TextClause]:
    """The statements of a .sql file in a package, by the name above each."""
    parts = files(package).joinpath(name).read_text(encoding="utf-8").split("-- name: ")[1:]
    return {part.split("\n", 1)[0].strip(): text(part.split("\n", 1)[1]) for part in parts}


SQL = statements("connection.sql")


def on_table(statement: TextClause, table: str) -> TextClause:
    """Insert the name of a table, quoted as in SQL, into a statement."""
    # A colon in the name must not be taken for a parameter.
    return text(statement.text.replace("{table}", table.replace(":", "\\:")))


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    name: str
    prepare: str
    execute: str


_numbers = count(1)
#: A load of one commit executes most of them once or twice.
_PREPARED_AT = 3
#: The type of a column was changed since a statement was planned, or something removed the statement.
_PLAN_IS_GONE = frozenset({"0A000", "26000", "42P05"})


@cache
def _as_prepared(statement: str) -> _Prepared:
    numbered = PGDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    compiled = text(statement).compile(dialect=numbered)
    name = f"onceload_{next(_numbers)}"
    binds = ", ".join(f"%({bind})s" for bind in compiled.positiontup or ())
    return _Prepared(
        name=name, prepare=f"PREPARE {name} AS {compiled}", execute=f"EXECUTE {name}{f' ({binds})' if binds else ''}"
    )


def execute_prepared(connection: Connection, statement: TextClause, binds: Mapping[str, object]) -> CursorResult[Any]:
    """Execute a statement that a connection plans once, if it executes it again: planning takes longer than a step."""
    prepared = _as_prepared(statement.text)
    times: Counter[str] = connection.info.setdefault("prepared", Counter())
    times[prepared.name] += 1
    if times[prepared.name] < _PREPARED_AT:
        return connection.execute(statement, binds)
    try:
        if times[prepared.name] == _PREPARED_AT:
            connection.exec_driver_sql(prepared.prepare, execution_options={"no_parameters": True})
        return connection.exec_driver_sql(prepared.execute, dict(binds))
    except DBAPIError as error:
        if sqlstate(error) not in _PLAN_IS_GONE:
            raise
        # A new connection plans it again.
        connection.invalidate()
        raise DatabaseLost("using a prepared statement", first_line(error)) from error


#: After five executions, Postgres plans a prepared statement for any number of items. With many, such a plan may take a
#: hundred times as long as one that is made for their number.
_PREPARED_ITEMS_MAX = 100


def execute_for(
    connection: Connection, statement: TextClause, binds: Mapping[str, object], *, items: int
) -> CursorResult[Any]:
    """Execute a statement on some items. Its plan is kept for few items, and made each time for many."""
    if items > _PREPARED_ITEMS_MAX:
        return connection.execute(statement, binds)
    return execute_prepared(connection, statement, binds)


_BATCH_ITEMS_MAX = 100_000
#: The server limits a statement to 1 GB, and each byte is sent as two digits.
_BATCH_BYTES_MAX = 64 * 2**20


def in_batches(items: Sequence[Item], *, weigh: Callable[[Item], int] | None = None) -> Iterator[Sequence[Item]]:
    """Split items into batches: large enough for a round trip each, small enough for one message."""
    first = weight = 0
    for end, item in enumerate(items):
        weight += weigh(item) if weigh else 0
        if end > first and (end - first == _BATCH_ITEMS_MAX or weight > _BATCH_BYTES_MAX):
            yield items[first:end]
            first, weight = end, weigh(item) if weigh else 0
    if first < len(items):
        yield items[first:]


def array(values: Iterable[object]) -> str:
    """A Postgres array literal. One string is sent faster than an expression per element."""
    elements = list(values)
    if all(type(element) is int for element in elements):
        return "{" + ",".join(map(str, elements)) + "}"
    # unnest pads shorter arrays with NULL, so a million NULLs need not be sent.
    return "{" + ",".join(map(_element, elements)) + "}" if any(each is not None for each in elements) else "{}"


def _element(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bytes() | bytearray() | memoryview():
            return f'"\\\\x{bytes(value).hex()}"'
        case int():
            return str(value)
        case SpanSet():
            return f'"{value}"'
        case _:
            # Postgres text cannot hold NUL or lone surrogates. A visible replacement keeps the rest of the text.
            whole = str(value).encode("utf-8", "backslashreplace").decode().replace("\x00", "\u2400")
            escaped = whole.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'


#: Classes of errors: data exception, program limit exceeded.
_OUT_OF_RANGE = ("22", "54")
CONCURRENT_CHANGE = "a concurrent change"
_BUSY = {"55P03": "a lock", "40P01": "a lock (deadlock)", "40001": CONCURRENT_CHANGE}
#: Sessions that load set no limit for a query, so an administrator did.
QUERY_CANCELED = "57014"
#: On a schema, a table or a function.
RIGHT_MISSING = "42501"


@dataclass(eq=False)
class RightMissing(DatabaseRefused):
    def __str__(self) -> str:
        return (
            f"the database refused access: {self.reason}. Nothing more was written. Check the user in ONCELOAD_DSN, or "
            "grant it its role. For your own tables, grant it USAGE on their schema and the right on the table "
            "(docs/how-to/roles.md)."
        )


@contextmanager
def translated(*, pipeline: str, doing: str) -> Iterator[None]:
    """Translate database errors into errors that say what to do next."""
    try:
        yield
    except DBAPIError as error:
        if sqlstate(error).startswith(_OUT_OF_RANGE):
            # The server repeats the value in its message, and it may be a row: do not show it.
            found = f"one that Postgres cannot store ({type(error.orig).__name__}) while {doing}"
            raise SettingRefused("a value", found, "one that fits its column") from None
        ours = _in_our_words(error, pipeline=pipeline, doing=doing)
        if ours is error:
            # An error that was its own cause would have no end.
            raise
        raise ours from error


@contextmanager
def transaction(engine: Engine, pipeline: str, *, doing: str) -> Iterator[Connection]:
    """A transaction that reads, or a step of a load, which is repeated safely: its errors say what was done."""
    with translated(pipeline=pipeline, doing=doing), engine.begin() as connection:
        yield connection


@dataclass(eq=False)
class ChangeOutcomeUnknown(AskTheLedger):
    doing: str
    reason: str
    #: A command that shows the outcome.
    see: str

    def __str__(self) -> str:
        return (
            f"the database did not answer COMMIT while {self.doing}: {self.reason}. The change took effect completely "
            f"or not at all. Run `{self.see}` to see which. If it did not take effect, run the same command again."
        )


@contextmanager
def change(
    engine: Engine, pipeline: str, *, doing: str, see: str = "onceload status", begun: Connection | None = None
) -> Iterator[Connection]:
    """The same for a change that users rely on. Raise ChangeOutcomeUnknown if its COMMIT gets no answer.

    `see` is a command that shows whether it took effect.
    """
    unknown = partial(ChangeOutcomeUnknown, doing, see=see)
    with translated(pipeline=pipeline, doing=doing), at_once(engine, unknown, begun=begun) as connection:
        yield connection


def _in_our_words(error: DBAPIError, *, pipeline: str, doing: str) -> Exception:
    code, constraint, reason = sqlstate(error), _constraint(error), first_line(error)
    if constraint == "pipeline_keeps_to_producers_max":
        found = "a limit below the number of known producers"
        return SettingRefused("producers_max", found, "at least the number of known producers")
    if constraint in _CONSUMED:
        return AlreadyConsumed(pipeline, (_CONSUMED[constraint],))
    if code in _BUSY:
        return PipelineBusy(pipeline, _BUSY[code])
    if code in (RIGHT_MISSING, "28000", "28P01"):
        return RightMissing(reason) if code == RIGHT_MISSING else DatabaseRefused(reason)
    if code == QUERY_CANCELED:
        return DatabaseLost(doing, f"{reason} (an administrator cancelled the query, or set a limit for this session)")
    return DatabaseLost(doing, reason) if is_lost(error) or code.startswith("53") else error


#: Constraints that refuse what is already loaded.
_CONSUMED = {
    "messages_have_no_twins": "a business id",
}


_WITHOUT_ANSWER = (psycopg2.OperationalError, psycopg2.InterfaceError, psycopg2.DatabaseError)


def sqlstate(error: DBAPIError) -> str:
    return getattr(error.orig, "pgcode", None) or ""


def severity(error: DBAPIError) -> str:
    """The severity of the server's message, independent of its language, or empty."""
    return getattr(getattr(error.orig, "diag", None), "severity_nonlocalized", None) or ""


@contextmanager
def at_once(
    engine: Engine, unknown: Callable[[str], AskTheLedger], *, begun: Connection | None = None
) -> Iterator[Connection]:
    """One transaction, or the end of one that has begun. Raise what `unknown` makes if its COMMIT gets no answer."""
    with engine.connect() if begun is None else nullcontext(begun) as connection:
        yield connection
        try:
            connection.commit()
        except DBAPIError as error:
            if _refused_for_certain(error):
                raise
            raise unknown(first_line(error)) from error


def _refused_for_certain(error: DBAPIError) -> bool:
    """Whether the server answered COMMIT with a refusal. Otherwise the outcome is unknown."""
    # 40003 is "statement completion unknown": a refusal with an unknown outcome.
    return severity(error) == "ERROR" and sqlstate(error) != "40003" and not is_lost(error)


_PROTOCOL_VIOLATION = "08P01"


def is_lost(error: DBAPIError) -> bool:
    """Whether the connection is lost, or the server is shutting down or starting."""
    code = sqlstate(error)
    if code == _PROTOCOL_VIOLATION and severity(error) == "ERROR" and not error.connection_invalidated:
        # The server refused the data of a COPY. It would refuse it again.
        return False
    # After an immediate shutdown of the server, the driver raises an error without a code.
    gone = error.connection_invalidated or type(error.orig) in _WITHOUT_ANSWER
    return code.startswith(("08", "57P")) or code == "25P03" or (not code and gone)


def _constraint(error: DBAPIError) -> str:
    diagnostics = getattr(error.orig, "diag", None)
    return getattr(diagnostics, "constraint_name", None) or ""


def column_of(error: DBAPIError) -> str:
    """The column that an error is about."""
    return getattr(getattr(error.orig, "diag", None), "column_name", None) or ""


def first_line(error: Exception) -> str:
    """The server's message, without the statement and its values."""
    original = getattr(error, "orig", None) or error
    return (str(original).strip().splitlines() or ["no reason given"])[0]
