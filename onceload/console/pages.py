"""What each page shows."""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from fastapi import Request, Response
from sqlalchemy import Engine

from onceload.console.access import Access
from onceload.console.actions.asking import no_pipeline_file
from onceload.console.charts import charts_of
from onceload.console.files import File, file_of, known_of, row_of
from onceload.console.hours import History
from onceload.console.overview import Line, lines_of, overview, with_activity
from onceload.console.parameters import Name, Number, Page, Word
from onceload.console.pipelines import (
    audits_of,
    dead_letters_of,
    declarations_of,
    files_of,
    recovery_s,
    run_of,
    snapshots_of,
    timeline_of,
)
from onceload.console.quarantine import check_size, ids_of_kind, newest_id, quarantine_of
from onceload.console.rendering import rendered
from onceload.console.rewritten import comparison_of
from onceload.console.rows import search
from onceload.console.watching import Watch
from onceload.lag import Behind, Described
from onceload.quarantine_file import line_of
from onceload.quarantined import readable
from onceload.sources import has_source
from onceload.states import State
from onceload_core.errors import NotFound
from onceload_core.postgres.quarantine import Selection, choose, find_records
from onceload_jobs.files.addresses import shown
from onceload_jobs.pipeline.declared import Declared

#: As many records are in a download.
_DOWNLOADED_MAX = 10_000
#: After all generations of a name.
_ALL_GENERATIONS = 2**31 - 1
#: A login in an address, such as `user:password@`.
_LOGIN = re.compile(r"(://)[^/@\s\"']+@")


class Pages:
    """Each method is a page; its arguments are those of its address."""

    def __init__(self, access: Access, watch: Watch) -> None:
        self._access, self._watch, self._history = access, watch, History()

    def overview(self, request: Request, search: Word = "", state: Word = "", page: Page = 1) -> str:
        behind, now = self._watch.now(), _now()
        with self._access.opened() as engine:
            lines = lines_of(engine, behind, now=now)
            seen = self._access.seen_by(request, [line.name for line in lines])
            chosen = State(state) if state in set(State) else None
            found = overview(
                engine,
                self._history,
                [line for line in lines if line.name in seen],
                search=search,
                state=chosen,
                page=page,
                now=now,
            )
        values = {"found": found, "search": search, "state": chosen, "now": now}
        return self._page("overview.html", {**values, "folder": self._access.folder, "is_listed": _is_listed(behind)})

    def timeline(self, request: Request, pipeline: Name, before: Number | None = None) -> str:
        behind = self._watch.now()
        with self._access.opened() as engine:
            line = self._line(engine, pipeline)
            if line.row is None:
                return self._new(request, line)
            timeline = timeline_of(engine, pipeline, before=before)
            (line,) = with_activity(engine, self._history, [line], now=_now())
        charts = charts_of(line.hours, behind.waits.get(pipeline) if behind else None, now=_now())
        values = {"line": line, "charts": charts, "timeline": timeline}
        return self._page("pipeline.html", {**self._of(request, pipeline), **values})

    def files(
        self,
        request: Request,
        pipeline: Name,
        search: Word = "",
        after: Word = "",
        after_generation: Number = _ALL_GENERATIONS,
    ) -> str:
        with self._access.opened() as engine:
            line = self._line(engine, pipeline)
            if line.row is None:
                return self._new(request, line)
            found = files_of(engine, pipeline, search=search, after=after, after_generation=after_generation)
        # They are on the first page, before those with commits.
        lag = line.lag if not after else None
        waiting = [each for each in lag.waiting if search in each.name] if lag else []
        refused = [each for each in lag.notes if search in each.name] if lag else []
        values = {"found": found, "search": search, "line": line, "waiting": waiting, "refused": refused}
        return self._page("files.html", {"pipeline": pipeline, **values})

    def quality(self, pipeline: Name) -> str:
        with self._access.opened() as engine:
            return self._page("quality.html", {"pipeline": pipeline, "audits": audits_of(engine, pipeline)})

    def snapshots(self, request: Request, pipeline: Name) -> str:
        with self._access.opened() as engine:
            snapshots = snapshots_of(engine, pipeline)
        takes_s = recovery_s(snapshots[0]) if snapshots else None
        values = {"snapshots": snapshots, "takes_s": takes_s}
        return self._page("snapshots.html", {**self._of(request, pipeline), **values})

    def declaration(self, request: Request, pipeline: Name) -> str:
        with self._access.opened() as engine:
            declarations = declarations_of(engine, pipeline)
        described = self._described(pipeline)
        flow = self._flow(request, described.declared) if described else None
        values = {"declarations": declarations, "text": self._text_of(pipeline), "flow": flow}
        return self._page("declaration.html", {"pipeline": pipeline, **values})

    def run(self, pipeline: Name, batch: Name) -> str:
        with self._access.opened() as engine:
            run = run_of(engine, pipeline, batch)
        if run.commits is None and not run.findings:
            # A run that has done nothing yet has a page too: Airflow links to it.
            return self._page("run.html", {"pipeline": pipeline, "batch": batch, "run": run, "airflow": None})
        newest = run.commits.newest if run.commits else None
        link = self._access.run(newest.dag_id, newest.run_id) if newest and newest.dag_id and newest.run_id else None
        return self._page("run.html", {"pipeline": pipeline, "batch": batch, "run": run, "airflow": link})

    def file(self, request: Request, pipeline: Name, name: Name) -> str:
        with self._access.opened() as engine:
            line = self._line(engine, pipeline)
            found = file_of(engine, pipeline, name) if line.row else File(name=name)
        notes = _notes(self._watch.now(), pipeline, name)
        if not found.generations and not notes:
            raise NotFound("file", name)
        values = {"found": found, "notes": notes, "described": self._described(pipeline)}
        return self._page("file.html", {**self._of(request, pipeline), **values})

    def rewritten(self, request: Request, pipeline: Name, name: Name) -> str:
        described = self._described(pipeline)
        if described is None:
            raise no_pipeline_file(pipeline)
        with self._access.opened() as engine:
            found = comparison_of(engine, self._access, described, name)
        values = {"found": found, "notes": _notes(self._watch.now(), pipeline, name)}
        return self._page("rewritten.html", {**self._of(request, pipeline), **values})

    def row(
        self,
        pipeline: Name,
        producer_id: Number | None = None,
        sequence: Number | None = None,
        *,
        column: Word = "",
        value: Word = "",
    ) -> str:
        found, raw, searched, described = None, None, None, self._described(pipeline)
        with self._access.opened() as engine:
            if producer_id is not None and sequence is not None:
                found = row_of(engine, self._access, pipeline, producer_id=producer_id, sequence=sequence)
                raw = None if found.now.raw is None else "\n".join(readable(found.now.raw))
            if described is not None and described.declared.target.lineage:
                searched = search(engine, described, column=column, value=value)
        asked = {"producer_id": producer_id, "sequence": sequence, "column": column, "value": value}
        values = {"pipeline": pipeline, "found": found, "raw": raw, "searched": searched}
        return self._page("row.html", {**asked, **values})

    def quarantine(
        self,
        request: Request,
        pipeline: Name,
        *,
        kind: Word | None = None,
        column: Word | None = None,
        file: Word | None = None,
        before: Number | None = None,
    ) -> str:
        with self._access.opened() as engine:
            found = quarantine_of(engine, pipeline, kind=kind, column=column, file=file, before=before)
        return self._page(
            "quarantine.html",
            {**self._of(request, pipeline), "found": found, "kind": kind, "column": column, "file": file},
        )

    def download(
        self, pipeline: Name, *, kind: Word | None = None, column: Word | None = None, file: Word | None = None
    ) -> Response:
        """The records as a file to fix: `onceload quarantine retry --from` loads it."""
        with self._access.opened() as engine:
            ids = None
            if kind is not None:
                newest = newest_id(engine, pipeline)
                at_most = _DOWNLOADED_MAX
                ids = ids_of_kind(engine, pipeline, kind, column=column, file=file, seen=newest, at_most=at_most)
            selection = Selection(pipeline=pipeline, ids=ids, file=file)
            check_size(choose(engine, selection, at_most=_DOWNLOADED_MAX).held)
            # Whole in memory, so that an error is a page and not half a file.
            lines = b"".join(map(line_of, find_records(engine, selection, at_most=_DOWNLOADED_MAX)))
        headers = {"Content-Disposition": 'attachment; filename="quarantine.jsonl"'}
        return Response(lines, media_type="application/x-ndjson", headers=headers)

    def attention(self, request: Request, pipeline: Name) -> str:
        with self._access.opened() as engine:
            line = self._line(engine, pipeline)
            if line.row is None:
                return self._new(request, line)
            cases = _cases_of(engine, line)
        return self._page("attention.html", {**self._of(request, pipeline), **cases})

    def _new(self, request: Request, line: Line) -> str:
        """A pipeline that has committed nothing yet."""
        waiting = line.lag.waiting if line.lag else ()
        values = {"line": line, "waiting": waiting, "search": "", "text": self._text_of(line.name)}
        return self._page("new.html", {**self._of(request, line.name), **values})

    def _of(self, request: Request, pipeline: str) -> dict[str, object]:
        """The pipeline, and whether the page offers actions on it."""
        return {"pipeline": pipeline, "may_act": self._access.refusal(request, pipeline) is None}

    def _line(self, engine: Engine, pipeline: str) -> Line:
        for line in lines_of(engine, self._watch.now(), now=_now(), only=pipeline):
            return line
        raise NotFound("pipeline", pipeline)

    def _flow(self, request: Request, declared: Declared) -> dict[str, object]:
        """Where the records come from, and where they go."""
        table = f"{declared.target.schema}.{declared.target.table}"
        files = shown(declared.source.path) if has_source(declared) else None
        return {"files": files, "table": table, "readers": self._access.readers(request, table)}

    def _described(self, pipeline: str) -> Described | None:
        behind = self._watch.now()
        return behind.described.get(pipeline) if behind else None

    def _text_of(self, pipeline: str) -> str | None:
        described = self._described(pipeline)
        # It may have been deleted since it was listed.
        with suppress(OSError, UnicodeDecodeError):
            return _LOGIN.sub(r"\1***@", described.path.read_text(encoding="utf-8")) if described else None
        return None

    def _page(self, template: str, values: Mapping[str, object]) -> str:
        return rendered(template, {"access": self._access, "now": _now(), **values})


def _cases_of(engine: Engine, line: Line) -> dict[str, object]:
    """What needs a person, and the files that can be compared with what was loaded of them."""
    refused = [note.name for note in line.lag.notes if note.needs_a_person] if line.lag else []
    letters = dead_letters_of(engine, line.name)
    return {"line": line, "letters": letters, "known": known_of(engine, line.name, refused)}


def _notes(behind: Behind | None, pipeline: str, name: str) -> list[str]:
    """What the last listing says about a file."""
    seen = behind.seen.get(pipeline) if behind else None
    if seen is None:
        return []
    refused = [note.reason for note in seen[1].notes if note.name == name]
    return refused + [f"Not loaded yet: {each.why}" for each in seen[1].waiting if each.name == name]


def _is_listed(behind: Behind | None) -> bool:
    """Whether the files of every pipeline were listed once."""
    return behind is not None and behind.described.keys() <= behind.seen.keys() | behind.failed.keys()


def _now() -> datetime:
    return datetime.now(UTC)
