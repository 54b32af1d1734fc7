"""Plan, claim what is new, and hand it out to all sessions."""

import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from sqlalchemy import Connection

from onceload_core.errors import OnceloadError
from onceload_core.names import ProducerId
from onceload_core.ports import Advance, Claim, Commit, Outlook
from onceload_core.replay import Counts
from onceload_core.spans import SEQUENCE_END, SpanSet
from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.settings import without_replaced
from onceload_jobs.plan.bundles import Bundle, bundles_of, offers_of, spans_of
from onceload_jobs.plan.copies import CopyRecord
from onceload_jobs.plan.file_state import was_left_open
from onceload_jobs.plan.plan import Plan, depends_on_others, make_plan
from onceload_jobs.plan.to_read import FileToRead, oldest_first
from onceload_jobs.work.progress import planned_bytes, repeated
from onceload_jobs.write.patience import until_answered


@dataclass(kw_only=True)
class ClaimedWork:
    """What a load has claimed of its plan, cut into the bundles of its deliveries."""

    claim: Claim
    files: Sequence[FileToRead]
    bundles: Sequence[Bundle]
    #: The producer of each planned name and generation.
    ids: Mapping[tuple[str, int], ProducerId]
    #: More is new than may be open at a time.
    exceeds_open_max: bool
    #: Whether a commit has ended the claim.
    is_acked: bool = False


class Offering:
    """Plans one load repeatedly, and remembers what it handed out."""

    def __init__(self, context: LoadContext) -> None:
        self._context = context
        self._handed_out: dict[ProducerId, SpanSet] = {}
        self._sizes: dict[ProducerId, int] = {}

    def plan(self, notes: Sequence[Note]) -> Plan:
        """Plan what is new, without the files that failed before in this load."""
        context = self._context

        def planned() -> Plan:
            choice = replace(context.settings.choice, accepts_differences=context.settings.differences_accepted)
            name, batch = context.declared.name, context.batch
            choice = without_replaced(choice, context.ledger, name, batch, begun_at=context.before)
            return make_plan(context.declared, context.ledger, now_s=time.time(), choice=choice)

        plan = until_answered(planned)
        # Files that failed would fail again, and might take the room of others: the next call may retry them.
        failed = {note.name for note in (*notes, *self.not_loaded(plan.outlook, known=()))}
        return replace(plan, to_read=tuple(file for file in plan.to_read if file.listed.name not in failed))

    def not_loaded(self, outlook: Outlook, *, known: Container[str]) -> Iterator[Note]:
        """Deliveries that were handed out, are gone and were not loaded, because a session could not read them."""
        if not self._handed_out:
            return
        states = until_answered(partial(self._context.ledger.know, self._context.session, list(self._handed_out)))
        for producer_id, spans in self._handed_out.items():
            state = states[producer_id].state if producer_id in states else None
            if state is None or state.name in known or state.name in outlook.claimed:
                continue
            is_open_ended = bool(spans) and spans.end == SEQUENCE_END
            # For these, the size is recorded with the last part, unless the last line is open.
            is_read = (state.size or 0) >= self._sizes[producer_id] or was_left_open(state)
            if not (is_read if is_open_ended else state.consumed.covers(spans)):
                reason = "some of its records were not loaded. The session that read them reports why. Load again"
                yield Note(name=state.name, reason=reason, is_unreadable=True)

    @contextmanager
    def claimed(self, plan: Plan) -> Iterator[ClaimedWork]:
        """Claim the planned files while the block runs; what it hands out is no longer claimed after that."""
        context, declared = self._context, self._context.declared
        files, ids = self._registered(plan.to_read)
        named = {producer_id: name for (name, _), producer_id in ids.items()}
        copy_records = {ids[_key(file)]: file.copy_record for file in files if file.copy_record}
        ids |= _taking_over(files)
        bundles, exceeds_open_max = self._with_room(bundles_of(declared, files, ids))
        spans = spans_of(chunk for chunks in bundles for chunk in chunks)
        claim = context.ledger.claim(
            context.session,
            dict.fromkeys(copy_records, SpanSet()) | spans,
            batch=context.batch,
            lease_s=declared.delivery.ack_deadline_s,
            names=named,
            # A plan is outdated if another load has since brought the same content, records that come first in order,
            # or another generation of a file.
            unchanged=plan.outlook if depends_on_others(declared) or declared.is_merge_of_files else None,
            only_names=not depends_on_others(declared),
        )
        context.watch.bytes_planned = planned_bytes(bundles)
        work = ClaimedWork(claim=claim, files=files, bundles=bundles, ids=ids, exceeds_open_max=exceeds_open_max)
        with repeated(context.renew, every_s=context.beat_s):
            try:
                self._store_copy_records(copy_records, claim)
                yield work
            finally:
                # If handed out or kept, the claim is gone; else it is released now instead of when its lease ends.
                if not work.is_acked:
                    with suppress(OnceloadError):
                        context.ledger.release(claim)

    def _registered(
        self, files: Sequence[FileToRead]
    ) -> tuple[Sequence[FileToRead], dict[tuple[str, int], ProducerId]]:
        """The files with their ids. A merge lets the rows of the later id win, so the newest file gets the last one."""
        new = oldest_first(self._context.declared, [file for file in files if file.is_new and not file.copy_record])
        keys = set(map(_key, new))
        known = [file for file in files if _key(file) not in keys]
        while True:
            names = [_key(file) for file in (*known, *new)]
            ids = until_answered(partial(self._context.ledger.register, self._context.declared.name, names))
            last = max(((ids | _taking_over(known))[_key(file)] for file in known), default=0) if new else 0
            kept = _in_order(new, ids, after=last)
            if kept == len(new):
                return files, ids
            # A load that was killed or rewound has registered some before: they and all after them begin again.
            new = [*new[:kept], *(replace(file, generation=file.generation + 1) for file in new[kept:])]
            files = [*known, *new]

    def hand_out(self, work: ClaimedWork) -> None:
        """Put the deliveries on the board: from now on they belong to all sessions."""
        self._context.board.offer(work.claim, offers_of(work.bundles), batch=self._context.batch)
        chunks = [chunk for chunks in work.bundles for chunk in chunks]
        for producer_id, spans in spans_of(chunks).items():
            self._handed_out[producer_id] = self._handed_out.get(producer_id, SpanSet()) | spans
        self._sizes |= {chunk.producer_id: chunk.size for chunk in chunks}

    def _with_room(self, bundles: Iterable[Bundle]) -> tuple[list[Bundle], bool]:
        """As many deliveries as may be open, and whether there are more."""
        if not self._context.uses_board:
            return list(bundles), False
        room = max(0, self._context.declared.delivery.open_max - self._context.left().count)
        # Take one more, to know whether there are more.
        gathered = list(islice(bundles, room + 1))
        return gathered[:room], len(gathered) > room

    def _store_copy_records(self, copy_records: Mapping[ProducerId, CopyRecord], claim: Claim) -> None:
        """Record what the plan found without reading records, as long as its claim is held."""
        if not copy_records:
            return
        commit: Commit[Connection] = Commit(
            session=self._context.session,
            batch=self._context.batch,
            advances=tuple(_advance_of(producer_id, each) for producer_id, each in copy_records.items()),
            write_rows=lambda _: 0,
            # A planner that was away for longer than its lease has an outdated plan.
            claim=claim,
            is_last=False,
            counts=Counts(duplicate=sum(each.duplicates for each in copy_records.values())),
            run=self._context.run,
        )
        self._context.ledger.commit(commit)


def _in_order(files: Sequence[FileToRead], ids: Mapping[tuple[str, int], ProducerId], *, after: int) -> int:
    """How many of the first files have ascending ids."""
    for number, file in enumerate(files):
        if ids[_key(file)] < after:
            return number
        after = ids[_key(file)]
    return len(files)


def _key(file: FileToRead) -> tuple[str, int]:
    return file.listed.name, file.generation


def _taking_over(files: Sequence[FileToRead]) -> dict[tuple[str, int], ProducerId]:
    """The files that continue a producer under a new name: they are read as that producer."""
    return {
        _key(file): file.copy_record.copy_of
        for file in files
        if file.copy_record and file.copy_record.takes_over and file.copy_record.copy_of is not None
    }


def _advance_of(producer_id: ProducerId, copy_record: CopyRecord) -> Advance:
    """The advance of the producer that the file continues under a new name, or else of the file itself."""
    if copy_record.takes_over and copy_record.copy_of is not None:
        its: dict[str, ProducerId] = {"producer_id": copy_record.copy_of, "takes_name_of": producer_id}
    else:
        its = {"producer_id": producer_id} | ({} if copy_record.copy_of is None else {"copy_of": copy_record.copy_of})
    return Advance(
        **its,
        spans=copy_record.consumed,
        shares_with=copy_record.shares_with,
        records=copy_record.records,
        digest=copy_record.digest,
        fingerprint=copy_record.fingerprint,
        size=copy_record.size,
        condition=copy_record.condition,
    )
