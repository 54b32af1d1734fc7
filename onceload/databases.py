"""Engines on the database that the settings name."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from onceload import schema
from onceload.settings import Settings, database
from onceload_core.errors import NotFound, SettingRefused
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.postgres.views import look


@contextmanager
def open_database(settings: Settings, *, schema_checked: bool = True) -> Iterator[Engine]:
    """An engine on the database of the settings; raises unless its schema fits this code.

    An embedded database without a schema gets one, so that each command may be the first.
    """
    with database(settings) as dsn, opened(dsn, schema_checked=False) as engine:
        if schema_checked:
            _make_ready(settings, engine)
        yield engine


@contextmanager
def opened(dsn: str, *, schema_checked: bool = True) -> Iterator[Engine]:
    """An engine on the database of this address."""
    engine = connect(LedgerSettings(dsn=dsn))
    try:
        if schema_checked:
            schema.check(engine)
        yield engine
    finally:
        engine.dispose()


@contextmanager
def ready_database(settings: Settings) -> Iterator[str]:
    """The address of a database with the schema; the embedded database gets it if it is missing."""
    with database(settings) as dsn:
        with opened(dsn, schema_checked=False) as engine:
            _make_ready(settings, engine)
        yield dsn


def _make_ready(settings: Settings, engine: Engine) -> None:
    if settings.dsn is None:
        schema.make_if_missing(engine)
    schema.check(engine)


def only_pipeline(engine: Engine) -> str:
    """The default of --pipeline: the only pipeline in the database."""
    names = [str(row["pipeline"]) for row in look(engine, "status", pipeline=None, at_most=6)]
    if len(names) != 1:
        if not names:
            raise NotFound("pipeline", "(any)")
        raise SettingRefused("--pipeline", "no name", f"one of {', '.join(names)}")
    return names[0]
