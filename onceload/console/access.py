"""What differs between the console in Airflow and the one by itself: the database, who may see what, and the links."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from fastapi import Request
from sqlalchemy import Engine

from onceload.lag import Described


@dataclass(frozen=True, kw_only=True)
class Link:
    address: str
    words: str
    #: It leaves the console.
    is_outside: bool = False


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work that takes long: a DAG of Airflow, or the call of the API that does the same."""

    kind: Literal["backfill", "recover", "verify", "snapshot"]
    pipeline: str
    #: The parameters of the DAG, without the pipeline.
    params: Mapping[str, Any]


class Access(Protocol):
    @property
    def authenticate(self) -> Callable[..., Any]:
        """A dependency of FastAPI: it stores the user in `request.state.user`, or raises an HTTPException."""

    @property
    def folder(self) -> Path | None:
        """The folder of the pipeline files, if this process can read it."""

    def opened(self) -> AbstractContextManager[Engine]:
        """An engine on the database."""

    def seen_by(self, request: Request, pipelines: Collection[str]) -> set[str]:
        """Those of the pipelines that the user may see."""

    def reaching(self, path: str) -> AbstractContextManager[None]:
        """Access to the store of these files while the block runs."""

    @property
    def loads_by_day(self) -> bool:
        """Whether a job loads one day of a path that contains a day, instead of all."""

    def refusal(self, request: Request, pipeline: str) -> str | None:
        """Why the user must not change the pipeline; None if the user has the right."""

    def user(self, request: Request) -> str:
        """The name that the ledger records."""

    def identity(self, request: Request) -> str:
        """The unique id of the user. Two users may have the same name."""

    @property
    def secret(self) -> bytes:
        """The key of the tokens in forms; the same in all processes that serve these pages."""

    def start(self, request: Request, job: Job, described: Described | None) -> Link:
        """Start a job for the user; return the page that shows it."""

    def login(self, request: Request) -> str | None:
        """The address of the login page. It leads back to the requested page, or from a form to the overview."""

    def run(self, dag_id: str, run_id: str) -> Link | None:
        """The page of a run."""

    def dag(self, pipeline: str) -> Link | None:
        """The page of the pipeline's DAG."""

    def readers(self, request: Request, table: str) -> list[Link]:
        """What follows a load of this table: its asset in Airflow, and the DAGs that the asset starts."""
