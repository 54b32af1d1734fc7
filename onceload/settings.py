"""The settings: read once from the environment, and then passed as arguments."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from dedup_core.errors import SettingRefused
from dedup_core.replay import Run
from onceload import embedded

_SCHEMES = ("postgresql", "postgres")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings from the environment."""

    #: None: the embedded Postgres below home.
    dsn: str | None = field(default=None, repr=False)
    home: Path = Path(".onceload")
    #: The Airflow task that called; the ledger stores it with each commit.
    run: Run | None = None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read and check every setting; an empty one counts as unset."""
    dsn = environment.get("ONCELOAD_DSN")
    return Settings(
        dsn=_checked(dsn) if dsn else None,
        home=Path(environment.get("ONCELOAD_HOME") or ".onceload"),
        run=_run(environment),
    )


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
            yield dsn


def _checked(dsn: str) -> str:
    try:
        _split(dsn)
    except ValueError:
        raise SettingRefused(
            setting="ONCELOAD_DSN",
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
