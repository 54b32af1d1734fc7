"""Find the parts of loaded files that no commit loaded: gaps between loaded parts, and ends.

A gap that is waiting, being loaded or in the dead letters gets a note, because it is known. Any other gap is a
difference: its records are missing from the target until the file is loaded again.
"""

from collections.abc import Container, Iterator, Sequence

from onceload_core.names import ProducerId
from onceload_core.postgres.audit import FileReceipts, OpenSpans
from onceload_core.postgres.rewound import Owed
from onceload_core.spans import Span, SpanSet
from onceload_jobs.files.addresses import shown
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import Source
from onceload_jobs.verify.findings import Difference, Findings, Kind

#: With very many incomplete files, only the first are named.
_NOTED_MAX = 20


class Gaps:
    """Finds, file by file, what was never loaded."""

    def __init__(self, source: Source, findings: Findings, open_spans: Sequence[OpenSpans]) -> None:
        self._source = source
        self._findings = findings
        self._open_of: dict[ProducerId, list[OpenSpans]] = {}
        self._open_named: dict[str, list[OpenSpans]] = {}
        for each in open_spans:
            self._open_of.setdefault(each.producer_id, []).append(each)
            self._open_named.setdefault(each.name, []).append(each)
        self._noted = 0

    def within(self, file: FileReceipts) -> Iterator[Difference]:
        """The gaps before the end of the loaded part."""
        left = SpanSet([Span(0, file.end)]) - file.consumed if file.end else SpanSet()
        if left := self._without_open(file, left):
            yield self._gap(file, left)

    def behind(self, file: FileReceipts, *, end: int) -> Iterator[Difference]:
        """The part after the loaded end of a file that was recorded as read to its end."""
        if left := self._without_open(file, _after(file, end)):
            yield self._gap(file, left)

    def note_end(self, file: FileReceipts, *, end: int) -> None:
        """Note how much follows the loaded end; the next load takes it."""
        if left := self._without_open(file, _after(file, end)):
            self._note(file.name, f"{self._in_words(file, left)} are not loaded yet")

    def note_unread_end(self, file: FileReceipts) -> None:
        """The same, if only unpacking the file would show how much it is."""
        rest = f"everything after byte {file.end:,}"
        for each in self._open_of.get(file.producer_id, ()):
            if each.spans.end > file.end:
                self._note(file.name, f"{rest}: the records {_STATES[each.state].format(each.delivery)}")
                return
        self._note(file.name, f"it was not read to its end; {rest} is not loaded yet")

    def note_new(self, file: Listed) -> None:
        """Note a file of which nothing is loaded."""
        self._note(file.name, f"nothing of it is loaded yet ({file.size:,} bytes){self._delivery_of(file.name)}")

    def note_refused(self, note: Note) -> None:
        """Note a file or a folder that no load reads as it is."""
        reason = f"it could not be read, so it is unknown whether it has new records: {note.reason}"
        self._note(note.name, reason if note.is_unreadable else note.reason)

    def note_owed(self, owed: Owed) -> None:
        """Note a file of which nothing is loaded any more."""
        then = self._delivery_of(owed.producer) or "; the next load reads it again"
        self._note(owed.producer, f"nothing of it has been loaded since {owed.cause}{then}")

    def note_dead_letters(self, *, but: Container[str]) -> None:
        """Note the dead letters of files that the source does not list."""
        for each in (each for of_name in self._open_named.values() for each in of_name):
            if each.state == "dead" and each.name not in but:
                self._note(each.name, f"nothing of it is loaded: its records {_STATES['dead'].format(each.delivery)}")

    def _delivery_of(self, name: str) -> str:
        """What holds the records of a file. It may have several deliveries, and one that needs a person says most."""
        found = min(self._open_named.get(name, ()), key=lambda each: each.state != "dead", default=None)
        return "" if found is None else f": its records {_STATES[found.state].format(found.delivery)}"

    def _without_open(self, file: FileReceipts, spans: SpanSet) -> SpanSet:
        """What no delivery has of some spans; the rest is noted."""
        for each in self._open_of.get(file.producer_id, ()):
            if known := spans & each.spans:
                self._note(file.name, f"{self._in_words(file, known)} {_STATES[each.state].format(each.delivery)}")
                spans -= known
        return spans

    def note_rest(self) -> None:
        """Report how many more incomplete files there are."""
        if self._noted > _NOTED_MAX:
            reason = f"{self._noted - _NOTED_MAX:,} more notes are not shown"
            self._findings.notes.append(Note(name=shown(self._source.path), reason=reason))

    def _note(self, name: str, reason: str) -> None:
        self._noted += 1
        if self._noted <= _NOTED_MAX:
            self._findings.notes.append(Note(name=name, reason=reason))

    def _gap(self, file: FileReceipts, spans: SpanSet) -> Difference:
        return Difference(
            producer=file.name,
            kind=Kind.GAP,
            span=spans.shortened,
            expected="loaded, quarantined, duplicate, filtered or waiting",
            found=f"{spans.count:,} {self._unit(file)} that no commit loaded and no delivery holds",
        )

    def _in_words(self, file: FileReceipts, spans: SpanSet) -> str:
        return f"{spans.count:,} {self._unit(file)} {spans.shortened}"

    def _unit(self, file: FileReceipts) -> str:
        if self._source.format.is_whole:
            return "rows"
        return "unpacked bytes" if is_compressed(file.name) else "bytes"


def _after(file: FileReceipts, end: int) -> SpanSet:
    return SpanSet([Span(file.end, end)]) if end > file.end else SpanSet()


_STATES = {
    "waiting": "wait to be loaded, as delivery {}",
    "held": "are being loaded, as delivery {}",
    "dead": "are in the dead letters: see `onceload deliveries show {}`",
}
