"""`onceload ui`: the console without Airflow, for everyone who has the token in its address."""

import hashlib
import hmac
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus
from pathlib import Path

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import Engine
from starlette.middleware.trustedhost import TrustedHostMiddleware

from onceload.console.access import Job, Link
from onceload.console.actions.asking import no_pipeline_file
from onceload.console.app import make_app
from onceload.console.rendering import rendered
from onceload.console.running import Jobs
from onceload.lag import Described
from onceload.settings import Settings, user_name
from onceload.terminal import words
from onceload_core.errors import SettingRefused

#: Addresses that only this machine reaches.
_OWN = ("127.0.0.1", "localhost", "::1")
_TOKEN = "token"  # noqa: S105 - a name.


class TokenAccess:
    """Everyone who has the token sees everything."""

    loads_by_day = False

    def __init__(self, engine: Engine, settings: Settings, *, folder: Path | None, token: str, writes: bool) -> None:
        self.folder = folder
        self.secret = secrets.token_bytes()
        self.jobs = Jobs(settings)
        #: The cookie, which is sent to every port of this machine, is not the token itself.
        self.cookie = hashlib.sha256(f"cookie {token}".encode()).hexdigest()
        self._engine, self._token, self._writes = engine, token, writes

    def authenticate(self, request: Request) -> None:
        given = request.cookies.get(cookie_name(request), "")
        if not hmac.compare_digest(given.encode(), self.cookie.encode()):
            message = "the token is missing or wrong. Open the address that `onceload ui` printed, with its token"
            raise HTTPException(HTTPStatus.UNAUTHORIZED, message)

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    @contextmanager
    def opened(self) -> Iterator[Engine]:
        yield self._engine

    def seen_by(self, request: Request, pipelines: Collection[str]) -> set[str]:
        del request
        return set(pipelines)

    def reaching(self, path: str) -> AbstractContextManager[None]:
        del path
        # The environment has the credentials.
        return nullcontext()

    def refusal(self, request: Request, pipeline: str) -> str | None:
        del request, pipeline
        if self._writes:
            return None
        return "this console is read-only. Nothing was changed. Restart it with `onceload ui --write` to allow changes"

    def user(self, request: Request) -> str:
        del request
        return user_name()

    def identity(self, request: Request) -> str:
        return self.user(request)

    def start(self, request: Request, job: Job, described: Described | None) -> Link:
        if described is None:
            raise no_pipeline_file(job.pipeline)
        self.jobs.start(job, described, by=self.user(request))
        return Link(address="jobs", words="The jobs of this console")

    def login(self, request: Request) -> str | None:
        del request
        return None

    def run(self, dag_id: str, run_id: str) -> Link | None:
        del dag_id, run_id
        return None

    def dag(self, pipeline: str) -> Link | None:
        del pipeline
        return None

    def readers(self, request: Request, table: str) -> list[Link]:
        del request, table
        return []


def cookie_name(request: Request) -> str:
    """Cookies do not know ports, and there may be several servers on this machine."""
    return f"onceload_{_TOKEN}_{request.url.port}"


def make_standalone_app(access: TokenAccess, *, hosts: Collection[str]) -> FastAPI:
    app = make_app(access)

    @app.get("/jobs", dependencies=[Depends(access.authenticate)], response_class=HTMLResponse)
    def jobs() -> str:
        return rendered("jobs.html", {"access": access, "jobs": list(access.jobs.all)})

    @app.middleware("http")
    async def log_in(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.query_params.get(_TOKEN)
        if given is None or not access.is_token(given):
            return await answer(request)
        # The token must not stay in the address, which may be copied.
        response = RedirectResponse(str(request.url.remove_query_params(_TOKEN)), status_code=HTTPStatus.SEE_OTHER)
        # Lax, so that a link in a chat leads here. Forms have a token of their own.
        response.set_cookie(cookie_name(request), access.cookie, httponly=True, samesite="lax")
        return response

    # A page of another site must not reach this server under a name that leads here.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts])
    return app


def serve(engine: Engine, settings: Settings, *, address: str, port: int, folder: Path | None, writes: bool) -> None:
    """Serve the pages until stopped."""
    token = secrets.token_urlsafe(24)
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, port), family=family)
    except OSError as error:
        found = f"{address}:{port} ({error.strerror})"
        expected = "a free port and an address of this machine, such as --port 8099"
        raise SettingRefused("--port, --address", found, expected) from error
    access = TokenAccess(engine, settings, folder=folder, token=token, writes=writes)
    app = make_standalone_app(access, hosts=["localhost", "127.0.0.1", "[::1]"] if address in _OWN else ["*"])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    host = f"[{address}]" if ":" in address else address
    words(f"the console is at http://{host}:{listening.getsockname()[1]}/?{_TOKEN}={token}")
    can = "read all loads and the values of records" + (", and change them" if writes else "")
    words(f"everyone who has this address can {can}. Press Ctrl-C to stop the console")
    with listening:
        server.run(sockets=[listening])
