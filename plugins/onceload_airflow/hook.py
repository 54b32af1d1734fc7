"""Where Onceload's database is: ONCELOAD_DSN in the environment, or else an Airflow connection."""

import os
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
from spark_jobs.files.addresses import is_of_s3

CONNECTION = "onceload"
#: Of type aws: where files are and how to get in, if the environment does not say.
STORE = "onceload_store"
#: Any of these says how to get in already.
_SAID = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN")


@dataclass(eq=False)
class ConnectionNotFound(CallAgain):
    """Airflow says the same of a connection that nobody has made, and of one that it cannot look up just now."""

    connection: str

    def __str__(self) -> str:
        kind, says, or_else = "postgres ...", "where the database is", ""
        if self.connection == CONNECTION:
            or_else = ", or set ONCELOAD_DSN"
        if self.connection == STORE:
            kind, says = "aws", "how to get into the store of the files"
            or_else = ", with nothing more where the machine itself has the right, or set AWS_ACCESS_KEY_ID"
        return (
            f"connection {self.connection} should say {says}, and was not found; nothing was changed: "
            f"make it (airflow connections add {self.connection} --conn-type {kind}){or_else}"
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


def access_of(path: str) -> Mapping[str, str]:
    """How to get into the store of files that are not on a disk, where the environment does not say.

    A connection that is not there is an error: where it could only not be looked up, another store would be read.
    """
    if not is_of_s3(path) or any(map(os.environ.get, _SAID)):
        return {}
    try:
        connection = BaseHook.get_connection(STORE)
    except AirflowNotFoundException as error:
        raise ConnectionNotFound(STORE) from error
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
    return {name: value for name, value in said.items() if value}


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
