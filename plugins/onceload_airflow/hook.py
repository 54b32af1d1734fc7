"""Where Onceload's database is: ONCELOAD_DSN in the environment, or else an Airflow connection."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import unquote, urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from dedup_core.errors import CallAgain, SettingRefused
from onceload.settings import Settings, database, read_settings

CONNECTION = "onceload"
#: Of type aws: where files are and how to get in, if the environment does not say.
STORE = "onceload_store"
_OF_S3 = re.compile(r"\bs3a?://")


@dataclass(eq=False)
class ConnectionNotFound(CallAgain):
    """Airflow says the same of a connection that nobody has made, and of one that it cannot look up just now."""

    connection: str

    def __str__(self) -> str:
        or_else = ", or set ONCELOAD_DSN" if self.connection == CONNECTION else ""
        return (
            f"connection {self.connection} should say where the database is, and was not found; nothing was changed: "
            f"make it (airflow connections add {self.connection} --conn-type postgres ...){or_else}"
        )


class OnceloadHook(BaseHook):
    """The database of one connection (type postgres); the usual one is not asked for where ONCELOAD_DSN is set.

    Neither stands in for the other: a lookup that fails for a moment would lead to another database.
    """

    conn_name_attr = "onceload_conn_id"
    default_conn_name = CONNECTION
    hook_name = "Onceload"

    def __init__(self, onceload_conn_id: str = CONNECTION) -> None:
        super().__init__()
        self._conn_id = onceload_conn_id

    @cached_property
    def settings(self) -> Settings:
        """What the environment says, with the connection's database; never an embedded one of this very worker."""
        settings = read_settings(os.environ)
        if settings.dsn and self._conn_id == CONNECTION:
            return settings
        return replace(settings, dsn=_address(self._conn_id))

    @contextmanager
    def opened(self) -> Iterator[str]:
        """The address of the database, which no log shows the password of."""
        with database(self.settings) as dsn:
            mask_secret(dsn)
            if password := urlsplit(dsn).password:
                mask_secret(password)
                mask_secret(unquote(password))
            yield dsn

    def environment(self, dsn: str) -> Mapping[str, str]:
        """What a process has to be told that loads for us."""
        home = self.settings.home.absolute()
        return {"ONCELOAD_DSN": dsn, "ONCELOAD_HOME": str(home)}


def use_store(path: str) -> None:
    """Let this process, and what it starts, read files of that path as the connection to their store says."""
    if not _OF_S3.search(path) or os.environ.get("AWS_ACCESS_KEY_ID"):
        return
    try:
        connection = BaseHook.get_connection(STORE)
    except AirflowNotFoundException:
        # Then it may read what the machine may.
        return
    if connection.conn_type != "aws":
        raise SettingRefused(f"connection {STORE}", f"one of type {connection.conn_type}", "one of type aws")
    extra = connection.extra_dejson
    said = {
        "AWS_ACCESS_KEY_ID": connection.login,
        "AWS_SECRET_ACCESS_KEY": connection.password,
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_ENDPOINT_URL": extra.get("endpoint_url"),
        "AWS_DEFAULT_REGION": extra.get("region_name"),
    }
    os.environ.update({name: value for name, value in said.items() if value})


def _address(conn_id: str) -> str:
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConnectionNotFound(conn_id) from error
    scheme, _, rest = connection.get_uri().partition("://")
    # Airflow's own name of the scheme is an older one.
    if scheme not in ("postgres", "postgresql"):
        raise SettingRefused(f"connection {conn_id}", f"one of type {connection.conn_type}", "one of type postgres")
    return f"postgresql://{rest}"
