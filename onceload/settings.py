"""The settings: read once from the environment, and passed in from there."""

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
    """What the environment says."""

    #: Left out, the embedded Postgres below home.
    dsn: str | None = field(default=None, repr=False)
    home: Path = Path(".onceload")
    #: The task of Airflow's that called; the ledger keeps it with each commit.
    run: Run | None = None


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read and check every setting; an empty one counts as left out."""
    dsn = environment.get("ONCELOAD_DSN")
    return Settings(
        dsn=_checked(dsn) if dsn else None,
        home=Path(environment.get("ONCELOAD_HOME") or ".onceload"),
        run=_run(environment),
    )


def _run(environment: Mapping[str, str]) -> Run | None:
    """What Airflow tells the processes that its tasks start."""
    dag_id, run_id, tried = (environment.get(f"AIRFLOW_CTX_{name}") for name in ("DAG_ID", "DAG_RUN_ID", "TRY_NUMBER"))
    if not dag_id or not run_id or not tried or not tried.isdecimal():
        return None
    return Run(dag_id=dag_id, run_id=run_id, try_number=int(tried))


@contextmanager
def database(settings: Settings) -> Iterator[str]:
    """Yield the address of the database: the given one, or the embedded one while the block runs."""
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
            found="something else (not shown: it may hold a password)",
            expected="postgresql://user:password@host:port/database, with special characters percent-encoded",
        ) from None
    return dsn


def _split(dsn: str) -> SplitResult:
    """Take the address apart; whatever is wrong with it is a ValueError."""
    address = urlsplit(dsn)
    place = address.netloc.rpartition("@")[2]
    # A password with a bare / or # in it ends the address too early, and would be shown as its path.
    is_whole = "@" not in address.path + address.query and not address.fragment and address.netloc.count("@") <= 1
    # libpq repeats what it cannot decode or take apart, and that may be a part of the password.
    is_whole = is_whole and not re.search(r"%(?![0-9A-Fa-f]{2})|%00", dsn)
    is_whole = is_whole and all("=" in parameter for parameter in address.query.split("&") if parameter)
    # Several hosts may be named, each with a port; libpq reads those itself.
    if address.scheme not in _SCHEMES or not is_whole or ("," not in place and address.port == 0):
        raise ValueError
    return address
