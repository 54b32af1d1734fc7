"""The pages as a FastAPI app, for Airflow's API server and for `onceload ui`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from onceload.console.access import Access
from onceload.console.acting import Acting, form_of
from onceload.console.pages import Pages
from onceload.console.parameters import may_see
from onceload.console.rendering import rendered, static
from onceload.console.watching import Watch
from onceload_core.errors import ExitCode, NotFound, OnceloadError

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'self'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_STATUS = {
    ExitCode.WRONG_USE: HTTPStatus.BAD_REQUEST,
    ExitCode.NEEDS_A_PERSON: HTTPStatus.CONFLICT,
    ExitCode.CALL_AGAIN: HTTPStatus.SERVICE_UNAVAILABLE,
    ExitCode.OUTCOME_UNKNOWN: HTTPStatus.SERVICE_UNAVAILABLE,
}
_TITLES = {
    400: "This is not possible",
    403: "Not allowed",
    404: "Not found",
    409: "A person must decide",
    503: "Not possible right now",
}
_STATIC = {"console.css": "text/css", "frame.js": "text/javascript", "icon.svg": "image/svg+xml"}


def make_app(access: Access) -> FastAPI:
    watch = Watch(access)

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        yield
        watch.stop()

    # No OpenAPI document and no docs pages: they would be unprotected.
    app = FastAPI(openapi_url=None, lifespan=living)
    app.state.watch = watch
    for name, kind in _STATIC.items():
        app.get(f"/{name}")(_static(name, kind))
    _add_pages(app, Pages(access, watch), access)
    Acting(access, watch).add_to(app)
    app.exception_handler(StarletteHTTPException)(_refused(access))
    app.exception_handler(Exception)(_broken)
    app.exception_handler(RequestValidationError)(_malformed)
    app.exception_handler(OnceloadError)(_failed)
    app.middleware("http")(_with_headers)
    return app


def _add_pages(app: FastAPI, pages: Pages, access: Access) -> None:
    known = [Depends(access.authenticate)]
    app.get("/", dependencies=known, response_class=HTMLResponse)(pages.overview)
    for path, show in {
        "/pipeline": pages.timeline,
        "/files": pages.files,
        "/quarantine": pages.quarantine,
        "/attention": pages.attention,
        "/quality": pages.quality,
        "/snapshots": pages.snapshots,
        "/declaration": pages.declaration,
        "/run": pages.run,
        "/file": pages.file,
        "/rewritten": pages.rewritten,
        "/row": pages.row,
    }.items():
        app.get(path, dependencies=[*known, Depends(may_see(access))], response_class=HTMLResponse)(show)  # type: ignore[type-var]
    app.get("/download", dependencies=[*known, Depends(may_see(access))])(pages.download)


def _static(name: str, kind: str) -> Callable[[], Response]:
    def serve() -> Response:
        return Response(static(name), media_type=kind)

    return serve


async def _with_headers(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await answer(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _refused(access: Access) -> Callable[[Request, StarletteHTTPException], Awaitable[Response]]:
    """Without a login, a GET is redirected to the login page, and a POST gets a page that keeps the form's values.

    All other errors get an error page.
    """

    async def handle(request: Request, error: StarletteHTTPException) -> Response:
        if error.status_code != HTTPStatus.UNAUTHORIZED or not (login := access.login(request)):
            return _error(error.status_code, str(error.detail))
        if request.method == "GET":
            return RedirectResponse(login, status_code=HTTPStatus.SEE_OTHER)
        try:
            form = await form_of(request)
        except StarletteHTTPException as refused:
            return _error(refused.status_code, str(refused.detail))
        shown = {"login": login, "address": request.url.query, "hidden": form, "tab": None}
        return HTMLResponse(rendered("login.html", shown), status_code=HTTPStatus.UNAUTHORIZED)

    return handle


def _malformed(_: Request, error: RequestValidationError) -> Response:
    wrong = ", ".join(str(each["loc"][-1]) for each in error.errors())
    return _error(HTTPStatus.BAD_REQUEST, f"this address has a wrong value for: {wrong}")


def _failed(_: Request, error: OnceloadError) -> Response:
    return _error(HTTPStatus.NOT_FOUND if isinstance(error, NotFound) else _STATUS[error.exit_code], str(error))


def _broken(_: Request, error: Exception) -> Response:
    """An error that nothing expected: Starlette logs it, and it ends only this request."""
    message = f"this page has an error: {type(error).__name__}. Loads are not affected. The log has its details"
    response = _error(HTTPStatus.INTERNAL_SERVER_ERROR, message)
    response.headers.update(_HEADERS)
    return response


def _error(status: int, message: str) -> Response:
    title = _TITLES.get(status, HTTPStatus(status).phrase)
    return HTMLResponse(rendered("error.html", {"title": title, "message": message, "tab": None}), status_code=status)
