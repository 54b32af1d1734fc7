"""Postgres' own prompt on a database."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

from psycopg2.extensions import make_dsn, parse_dsn

from onceload import embedded
from onceload_core.errors import SettingRefused

#: What psql can only get as an argument, which every user of the machine can read.
_SECRETS = frozenset({"sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})


def find_psql(dsn: str, *, is_embedded: bool) -> Path | None:
    """The psql of the embedded Postgres or that of the system, the one of the same version first; None without any."""
    if _SECRETS & parse_dsn(dsn).keys():
        return None
    system = shutil.which("psql")
    try:
        ours = embedded.binaries(18) / "psql"
    except SettingRefused:
        ours = None
    if system and not (is_embedded and ours):
        return Path(system)
    return ours


def run_psql(psql: Path, dsn: str, *, writes: bool) -> int:
    """Run psql until its user leaves it; return its exit code."""
    found = {name: str(value) for name, value in parse_dsn(dsn).items()}
    # Arguments are visible to all users of this machine, the environment is not.
    password = found.pop("password", None)
    options = found.pop("options", None) or os.environ.get("PGOPTIONS", "")
    if not writes:
        options = f"{options} -c default_transaction_read_only=on".strip()
    environment = {**os.environ, "PGOPTIONS": options} | ({} if password is None else {"PGPASSWORD": password})
    # Ctrl-C is psql's: it cancels a statement. A handler, unlike SIG_IGN, is not inherited.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run([psql, make_dsn(**found)], env=environment, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
