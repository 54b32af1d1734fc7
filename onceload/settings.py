"""The settings: read once from the environment, and then passed as arguments."""

import getpass
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from onceload import embedded, keeping
from onceload.terminal import is_watched, time_in_words, words
from onceload_core.errors import SettingRefused
from onceload_core.replay import Run

_KEEP = "ONCELOAD_EMBEDDED_KEEP"
SPARK = "ONCELOAD_SPARK"
_SPARK_UI = "ONCELOAD_SPARK_UI"
_STAGE = "ONCELOAD_STAGE"
_KEEP_ON_TERMINALS_S = 600
_SCHEMES = ("postgresql", "postgres")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings from the environment."""

    #: None: the embedded Postgres below home.
    dsn: str | None = field(default=None, repr=False)
    home: Path = Path(".onceload")
    #: The address of a Spark Connect server; it may contain a token.
    spark: str | None = field(default=None, repr=False)
    #: The address of its pages, for links.
    spark_ui: str | None = None
    #: Where rows of a staged batch wait: a folder or an S3 address that machines share. None: a folder of this machine.
    stage: str | None = None
    #: How long the embedded Postgres runs on after a command. None: ten minutes on a terminal, else not at all.
    keep_s: float | None = None
    #: The Airflow task that called; the ledger stores it with each commit.
    run: Run | None = None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read and check every setting; an empty one counts as unset."""
    dsn = environment.get("ONCELOAD_DSN")
    return Settings(
        dsn=_checked(dsn) if dsn else None,
        home=Path(environment.get("ONCELOAD_HOME") or ".onceload"),
        spark=checked_address(spark, named=SPARK) if (spark := environment.get(SPARK)) else None,
        spark_ui=environment.get(_SPARK_UI) or None,
        stage=_stage(environment.get(_STAGE)),
        keep_s=_keep_s(environment.get(_KEEP)),
        run=_run(environment),
    )


def given_settings(
    environment: Mapping[str, str], *, dsn: str | None = None, home: Path | str | None = None
) -> Settings:
    """The settings that a program gives, and those of its environment for the others."""
    settings = read_settings(environment if dsn is None else {**environment, "ONCELOAD_DSN": ""})
    if settings.keep_s is None:
        # A program starts no server that outlives its call.
        settings = replace(settings, keep_s=0.0)
    if dsn is not None:
        settings = replace(settings, dsn=_checked(dsn, named="dsn"))
    return settings if home is None else replace(settings, home=Path(home))


def user_name() -> str:
    """The user of this process, for what the database keeps about decisions."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "an unknown user"


def _stage(given: str | None) -> str | None:
    if not given:
        return None
    if not re.fullmatch(r"/.*|s3://[^/@:]+(/[^/@:]+)*/?", given):
        expected = "the absolute path of a folder, or s3://bucket/folder (credentials are those of the files)"
        raise SettingRefused(_STAGE, "another value (not shown, as it may contain a key)", expected)
    return given.rstrip("/") or "/"


def _keep_s(given: str | None) -> float | None:
    if not given:
        return None
    match = re.fullmatch(r"([0-9]{1,6}) ?([smhd])", given)
    if match is None:
        raise SettingRefused(_KEEP, repr(given), "a time with its unit, such as 30s, 10m or 1h, or 0s")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[match[2]]


def _run(environment: Mapping[str, str]) -> Run | None:
    """The run, from the variables that Airflow sets for the processes of its tasks."""
    dag_id, run_id, tried = (environment.get(f"AIRFLOW_CTX_{name}") for name in ("DAG_ID", "DAG_RUN_ID", "TRY_NUMBER"))
    if not dag_id or not run_id or not tried or not tried.isdecimal():
        return None
    return Run(dag_id=dag_id, run_id=run_id, try_number=int(tried))


@contextmanager
def database(settings: Settings) -> Iterator[str]:
    """Yield the address of the configured database, or of the embedded one while the block runs."""
    if settings.dsn:
        yield settings.dsn
    else:
        with embedded.running(settings.home) as dsn:
            try:
                yield dsn
            finally:
                _keep(settings, dsn)


def _keep(settings: Settings, dsn: str) -> None:
    """Let the embedded Postgres run on, so that psql or a notebook can connect to it."""
    keep_s = _KEEP_ON_TERMINALS_S if settings.keep_s is None and is_watched() else settings.keep_s
    # If there is no room for a keeper, the command has done its work anyway.
    with suppress(OSError):
        if keep_s is not None and keeping.keep(settings.home, for_s=keep_s):
            words(f"the embedded Postgres runs for {time_in_words(keep_s)} more: psql {shlex.quote(dsn)}")


def checked_address(address: str, *, named: str) -> str:
    """Refuse an address that is not one of a Spark Connect server; it may contain a token, so it is not shown."""
    if not address.startswith("sc://"):
        expected = (
            "sc://host:port, such as sc://localhost:15002 (`onceload spark start` starts a server of this machine)"
        )
        raise SettingRefused(named, "another value (not shown, as it may contain a token)", expected)
    return address


def _checked(dsn: str, *, named: str = "ONCELOAD_DSN") -> str:
    try:
        _split(dsn)
    except ValueError:
        raise SettingRefused(
            setting=named,
            found="another value (not shown, as it may contain a password)",
            expected="postgresql://user:password@host:port/database, with special characters percent-encoded",
        ) from None
    return dsn


def _split(dsn: str) -> SplitResult:
    """Parse the address; every error is a ValueError."""
    address = urlsplit(dsn)
    place = address.netloc.rpartition("@")[2]
    # A password with an unencoded / or # would be parsed, and shown, as the path.
    is_whole = "@" not in address.path + address.query and not address.fragment and address.netloc.count("@") <= 1
    # libpq's errors repeat what it cannot parse, and that may be a part of the password.
    is_whole = is_whole and not re.search(r"%(?![0-9A-Fa-f]{2})|%00", dsn)
    is_whole = is_whole and all("=" in parameter for parameter in address.query.split("&") if parameter)
    # There may be several hosts, each with a port; libpq parses those itself.
    if address.scheme not in _SCHEMES or not is_whole or ("," not in place and address.port == 0):
        raise ValueError
    return address
