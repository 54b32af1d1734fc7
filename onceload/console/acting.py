"""The two pages of each action: the question, and the answer. A form that another site has forged is refused.

After the form is sent, the browser is redirected to the answer. Reloading the answer does not send the form again.
"""

import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from onceload.console.access import Access, Link
from onceload.console.actions import deliveries, jobs, pausing, quarantine
from onceload.console.actions.asking import Action, Answer, Asked, Question
from onceload.console.parameters import Name, may_see
from onceload.console.rendering import query, rendered
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
TOKEN = "token"  # noqa: S105 - a name.


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
            app.post(f"/{name}", dependencies=needed)(self._answer(name, action))
        app.get("/answer", dependencies=needed[:2], response_class=HTMLResponse)(self._show_answer)

    def _question(self, name: str, action: Action) -> Callable[..., str]:
        def ask(request: Request, pipeline: Name) -> str:
            # A question counts what is there now, whatever its address says.
            values = {key: value for key, value in request.query_params.items() if key != "seen"}
            with self._asked(request, pipeline, values) as asked:
                question = action.ask(asked)
            return self._page(request, pipeline, name, values, question)

        return ask

    def _page(self, request: Request, pipeline: str, name: str, values: Mapping[str, str], question: Question) -> str:
        hidden = {**values, TOKEN: self._sealed(request, pipeline)}
        if question.seen is not None:
            hidden["seen"] = str(question.seen)
        if question.field:
            hidden.pop(question.field.name, None)
        shown = {"pipeline": pipeline, "name": name, "question": question, "hidden": hidden}
        return rendered("question.html", {"access": self._access, **shown})

    def _answer(self, name: str, action: Action) -> Callable[..., Response]:
        def do(request: Request, pipeline: Name, form: Annotated[dict[str, str], Depends(form_of)]) -> Response:
            if not self._is_sealed(request, form.pop(TOKEN, ""), pipeline):
                message = (
                    "this form has expired, or another site sent it. Nothing was changed. Reload the page and try again"
                )
                raise HTTPException(HTTPStatus.FORBIDDEN, message)
            with self._asked(request, pipeline, form) as asked:
                done = action.do(asked)
            if isinstance(done, Question):
                # What the user has written stays in the form.
                return HTMLResponse(self._page(request, pipeline, name, form, done))
            said = json.dumps(asdict(done))
            address = query(pipeline=pipeline, said=said, seal=self._sealed(request, pipeline, said))
            return RedirectResponse(f"answer?{address}", status_code=HTTPStatus.SEE_OTHER)

        return do

    def _show_answer(self, request: Request, pipeline: Name, said: str, seal: str) -> str:
        # Without the seal, anyone could create a link that shows any text on this page.
        if not self._is_sealed(request, seal, pipeline, said):
            message = (
                "this link is not valid: the console did not create it for you and this pipeline. This page changed "
                "nothing. Open the pipeline to see its state"
            )
            raise HTTPException(HTTPStatus.FORBIDDEN, message)
        given = json.loads(said)
        answer = Answer(sentences=tuple(given["sentences"]), link=Link(**given["link"]))
        return rendered("answer.html", {"access": self._access, "pipeline": pipeline, "answer": answer})

    @contextmanager
    def _asked(self, request: Request, pipeline: str, values: Mapping[str, str]) -> Iterator[Asked]:
        if any("\0" in value for value in values.values()):
            raise HTTPException(HTTPStatus.BAD_REQUEST, "this address or form contains a null character")
        behind = self._watch.now()
        described = behind.described.get(pipeline) if behind else None
        with self._access.opened() as engine:
            yield Asked(self._access, request, engine, pipeline, values, described)

    def _sealed(self, request: Request, *texts: str) -> str:
        """A signature of these texts for this user. Only this console can create it."""
        of_whom = "\0".join((self._access.identity(request), *texts)).encode()
        return hmac.new(self._access.secret, of_whom, "sha256").hexdigest()

    def _is_sealed(self, request: Request, seal: str, *texts: str) -> bool:
        return hmac.compare_digest(seal.encode(), self._sealed(request, *texts).encode())


async def form_of(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _FORM_BYTES_MAX:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "this form is larger than 1 MiB")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
    except (UnicodeDecodeError, ValueError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, "this form is not one of this page") from error
