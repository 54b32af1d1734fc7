"""The address of Onceload's database: ONCELOAD_DSN in the environment, or else an Airflow connection."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow.sdk import BaseHook

from onceload.databases import open_database
from onceload.pipeline import Pipeline
from onceload.settings import Settings, read_settings
from onceload_airflow.connections import CONNECTION, CONNECTION_TYPE, STORE, ConnectionNotFound
from onceload_airflow.provider import PLACEHOLDERS, RELABELING
from onceload_airflow.task_log import show_events
from onceload_airflow.versions import AirflowNotFoundException, find_connection, mask_secret
from onceload_core.errors import OnceloadError, SettingRefused
from onceload_jobs.files.addresses import is_of_s3, use_access

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from onceload_jobs.pipeline.declared import Declared

#: If one of these is set, the environment has credentials.
_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_ROLE_ARN")


class OnceloadHook(BaseHook):
    """The database of one connection; ONCELOAD_DSN replaces the default connection.

    There is no fallback from one to the other: a lookup that fails for a moment would lead to another database.
    """

    conn_name_attr = "onceload_conn_id"
    default_conn_name = CONNECTION
    conn_type = CONNECTION_TYPE
    hook_name = "Onceload"

    def __init__(self, onceload_conn_id: str = CONNECTION) -> None:
        super().__init__()
        self._conn_id = onceload_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """The fields of the form for a connection."""
        return {"hidden_fields": [], "relabeling": RELABELING, "placeholders": PLACEHOLDERS}

    def test_connection(self) -> tuple[bool, str]:
        """What the form's button Test shows."""
        try:
            with self.opened():
                pass
        except OnceloadError as error:
            return False, str(error)
        return True, "The database answers, and its schema fits this version of Onceload."

    @cached_property
    def settings(self) -> Settings:
        """The settings of the environment, with the connection's database; never an embedded database on the worker.

        The password is masked in logs.
        """
        settings = read_settings(os.environ)
        dsn = settings.dsn if settings.dsn and self._conn_id == CONNECTION else _address(self._conn_id)
        mask_secret(dsn)
        if password := urlsplit(dsn).password:
            mask_secret(password)
            mask_secret(unquote(password))
        return replace(settings, dsn=dsn)

    @contextmanager
    def opened(self) -> "Iterator[Engine]":
        """An engine on the database."""
        with open_database(self.settings) as engine:
            yield engine

    def pipeline(self, declared: "Declared") -> Pipeline:
        """The pipeline on this database, with the credentials of the store of its files, and of its staged rows."""
        show_events()
        use_access(self.access_for(declared.source.path))
        return Pipeline(declared, self.settings)

    def access_for(self, path: str) -> Mapping[str, str]:
        """The credentials of the store that a load of these files needs."""
        return access_of(path, self.settings.stage or "")

    def environment(self) -> Mapping[str, str]:
        """The environment for a submitted load; its events reach the log of the task."""
        dsn, home = str(self.settings.dsn), str(self.settings.home.absolute())
        return {"ONCELOAD_DSN": dsn, "ONCELOAD_HOME": home, "ONCELOAD_LOG": os.environ.get("ONCELOAD_LOG") or "info"}


def access_of(*addresses: str) -> Mapping[str, str]:
    """The credentials of the object store, if one of the addresses is in one and the environment has none.

    A missing connection is an error: if the lookup only failed for a moment, another store would be read.
    """
    if not any(map(is_of_s3, addresses)) or any(map(os.environ.get, _CREDENTIALS)):
        return {}
    try:
        connection = find_connection(STORE)
    except AirflowNotFoundException as error:
        raise ConnectionNotFound(STORE) from error
    if connection.conn_type != "aws":
        raise SettingRefused(f"connection {STORE}", f"one of type {connection.conn_type}", "one of type aws")
    extra = connection.extra_dejson
    credentials = {
        "AWS_ACCESS_KEY_ID": connection.login,
        "AWS_SECRET_ACCESS_KEY": connection.password,
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_ENDPOINT_URL": extra.get("endpoint_url"),
        "AWS_DEFAULT_REGION": extra.get("region_name"),
    }
    return {name: value for name, value in credentials.items() if value}


def _address(conn_id: str) -> str:
    try:
        connection = find_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConnectionNotFound(conn_id) from error
    scheme, _, rest = connection.get_uri().partition("://")
    # Airflow uses the older name of the scheme.
    if scheme not in (CONNECTION_TYPE, "postgres", "postgresql"):
        expected = f"one of type {CONNECTION_TYPE} or postgres"
        raise SettingRefused(f"connection {conn_id}", f"one of type {connection.conn_type}", expected)
    return f"postgresql://{rest}"
