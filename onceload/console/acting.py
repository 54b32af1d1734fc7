"""The two pages of each action: the question, and the answer. A form that another site has forged is refused."""

import hmac
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse

from onceload.console.access import Access
from onceload.console.actions import deliveries, jobs, pausing, quarantine
from onceload.console.actions.asking import Action, Asked
from onceload.console.parameters import Name, may_see
from onceload.console.rendering import rendered
from onceload.console.watching import Watch

ACTIONS: Mapping[str, Action] = {
    "fix": quarantine.FIX,
    "retry": quarantine.RETRY,
    "discard": quarantine.DISCARD,
    "redeliver": deliveries.REDELIVER,
    "abandon": deliveries.ABANDON,
    "pause": pausing.PAUSE,
    "resume": pausing.RESUME,
    "load": jobs.LOAD,
    "replace": jobs.REPLACE,
    "rewind": jobs.REWIND,
    "verify": jobs.VERIFY,
    "snapshot": jobs.SNAPSHOT,
}
_FORM_BYTES_MAX = 2**20
_TOKEN = "token"  # noqa: S105 - a name.


class Acting:
    def __init__(self, access: Access, watch: Watch) -> None:
        self._access, self._watch = access, watch

    def add_to(self, app: FastAPI) -> None:
        def may_act(request: Request, pipeline: Name) -> None:
            if refusal := self._access.refusal(request, pipeline):
                raise HTTPException(HTTPStatus.FORBIDDEN, refusal)

        # The questions show values of records.
        needed = [Depends(self._access.authenticate), Depends(may_see(self._access)), Depends(may_act)]
        for name, action in ACTIONS.items():
            app.get(f"/{name}", dependencies=needed, response_class=HTMLResponse)(self._question(name, action))
            app.post(f"/{name}", dependencies=needed, response_class=HTMLResponse)(self._answer(action))

    def _question(self, name: str, action: Action) -> Callable[..., str]:
        def ask(request: Request, pipeline: Name) -> str:
            # A question counts what is there now, whatever its address says.
            values = {key: value for key, value in request.query_params.items() if key != "seen"}
            with self._asked(request, pipeline, values) as asked:
                question = action.ask(asked)
            hidden = {**values, _TOKEN: self._token(request, pipeline)}
            if question.seen is not None:
                hidden["seen"] = str(question.seen)
            if question.field:
                hidden.pop(question.field.name, None)
            shown = {"pipeline": pipeline, "name": name, "question": question, "hidden": hidden}
            return rendered("question.html", {"access": self._access, **shown})

        return ask

    def _answer(self, action: Action) -> Callable[..., str]:
        def do(request: Request, pipeline: Name, form: Annotated[dict[str, str], Depends(_form)]) -> str:
            if not hmac.compare_digest(form.pop(_TOKEN, "").encode(), self._token(request, pipeline).encode()):
                message = (
                    "this form has expired, or another site sent it. Nothing was changed. Reload the page and try again"
                )
                raise HTTPException(HTTPStatus.FORBIDDEN, message)
            with self._asked(request, pipeline, form) as asked:
                answer = action.do(asked)
            return rendered("answer.html", {"access": self._access, "pipeline": pipeline, "answer": answer})

        return do

    @contextmanager
    def _asked(self, request: Request, pipeline: str, values: Mapping[str, str]) -> Iterator[Asked]:
        if any("\0" in value for value in values.values()):
            raise HTTPException(HTTPStatus.BAD_REQUEST, "this address or form contains a null character")
        behind = self._watch.now()
        described = behind.described.get(pipeline) if behind else None
        with self._access.opened() as engine:
            yield Asked(self._access, request, engine, pipeline, values, described)

    def _token(self, request: Request, pipeline: str) -> str:
        of_whom = f"{self._access.user(request)}\n{pipeline}".encode()
        return hmac.new(self._access.secret, of_whom, "sha256").hexdigest()


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM_BYTES_MAX:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "this form is larger than 1 MiB")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
    except (UnicodeDecodeError, ValueError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "this form is not one of this page") from error
