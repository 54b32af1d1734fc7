"""A ledger in memory, for tests and examples: the same rules as in Postgres, and nothing that lasts.

A commit works on a copy of the pipeline's book and puts it in the old one's place as its last step,
so that whatever fails before leaves nothing behind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

from onceload_core.checks import check_name, check_producers
from onceload_core.declaration import (
    IDENTITY,
    MESSAGE_ID,
    ROOT,
    TARGET,
    Declaration,
    InUse,
    LoadedByAnother,
    names_other_messages,
    refuse_edit,
    refuse_other_version,
    settled,
)
from onceload_core.errors import (
    AlreadyConsumed,
    DeliveryTakenAway,
    LimitReached,
    NotFound,
    SessionFenced,
    SnapshotRefused,
)
from onceload_core.guards import refuse_change, refuse_other_rows, refuse_taken
from onceload_core.names import Batch, DeliveryId, Epoch, Position, ProducerId, SessionName, Version
from onceload_core.pipeline import Guarantee, Pipeline
from onceload_core.ports import (
    NO_NAMES,
    Advance,
    Claim,
    Commit,
    CommitStep,
    Knowledge,
    KnownProducer,
    Outcome,
    Outlook,
    QuarantineState,
    Session,
    Settlement,
    unwatched,
)
from onceload_core.postgres.quarantine import digest_of
from onceload_core.replay import (
    Condition,
    Counts,
    Entry,
    EntryKind,
    ProducerState,
    Proof,
    Receipt,
    Snapshot,
    States,
    replay,
)
from onceload_core.spans import SpanSet


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class _Held:
    claim: Claim
    deadline_at: datetime


@dataclass
class Book:
    """All that is known of one pipeline, its target rows included."""

    declared: Pipeline
    rows: list[object] = field(default_factory=list)
    states: dict[ProducerId, ProducerState] = field(default_factory=dict)
    advanced_at: dict[ProducerId, datetime] = field(default_factory=dict)
    #: The names that hold what another producer consumed.
    copies: dict[ProducerId, ProducerId] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    epochs: dict[SessionName, Epoch] = field(default_factory=dict)
    held: dict[DeliveryId, _Held] = field(default_factory=dict)
    messages: dict[str, datetime] = field(default_factory=dict)
    #: The columns of the remembered messages.
    messages_of: str = ""
    quarantine: dict[tuple[ProducerId, int], QuarantineState] = field(default_factory=dict)
    #: The digests of the bytes of quarantined records.
    digests: dict[tuple[ProducerId, int], str] = field(default_factory=dict)
    snapshots: dict[Position, Snapshot] = field(default_factory=dict)
    version: Version = field(default=Version(0, None))
    #: The addresses of its loaded files, by table, and whether they hold what was loaded, for all that is known.
    files: dict[tuple[str, str], bool] = field(default_factory=dict)
    #: The folders that its file names were relative to, as the pipeline file calls them, and their addresses.
    roots: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    @property
    def position(self) -> Position:
        return Position(len(self.entries))


class MemoryLedger:
    """The append-only list of commits, and the state that it adds up to."""

    def __init__(
        self,
        *,
        reached: Callable[[CommitStep], None] = unwatched,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        self._reached = reached
        self._clock = clock
        self._books: dict[str, Book] = {}
        self._ids = count(1)

    def commit(self, commit: Commit[Book]) -> Position:
        """Publish the rows and record what was consumed: both or neither."""
        book = deepcopy(self.book(commit.session.pipeline))
        position = self._commit_in(book, commit)
        self._books[commit.session.pipeline] = book
        self._reached(CommitStep.COMMITTED)
        return position

    def _commit_in(self, book: Book, commit: Commit[Book]) -> Position:
        session, now = commit.session, self._clock()
        self._reached(CommitStep.BEGUN)
        refuse_other_rows(commit, commit.write_rows(book))
        self._reached(CommitStep.ROWS_WRITTEN)
        position = Position(book.position + 1)
        _check_session(book, session)
        self._reached(CommitStep.POSITION_TAKEN)
        repeats_allowed = self._repeats_allowed(book)
        receipts = tuple(_advance(book, each, now, repeats_allowed=repeats_allowed) for each in commit.advances)
        self._reached(CommitStep.PRODUCERS_ADVANCED)
        files = [each.producer_id for each in commit.advances if each.fingerprint is not None]
        self._own(book, [book.states[each].name for each in files if book.states[each].consumed or each in book.copies])
        self._reached(CommitStep.FILES_OWNED)
        _record_messages(book, commit.message_ids, now, repeats_allowed=repeats_allowed)
        self._reached(CommitStep.MESSAGES_RECORDED)
        bad = {(each.producer_id, each.sequence_id): digest_of(each.raw) for each in commit.quarantined}
        _record_quarantine(book, bad, repeats_allowed=repeats_allowed)
        self._reached(CommitStep.QUARANTINE_RECORDED)
        book.entries.append(_entry(position, commit, receipts, now, kind=EntryKind.LOAD))
        self._reached(CommitStep.ENTRY_RECORDED)
        _ack(book, session, commit.claim, is_last=commit.is_last)
        self._reached(CommitStep.DELIVERY_ACKED)
        return position

    def settle(self, settlement: Settlement[Book]) -> Position:
        """Publish the rows and record what became of quarantined records: both or neither."""
        session, now = settlement.session, self._clock()
        book = deepcopy(self.book(session.pipeline))
        if settlement.load is not None:
            self._commit_in(book, settlement.load)
        self._reached(CommitStep.BEGUN)
        refuse_other_rows(settlement, settlement.write_rows(book))
        self._reached(CommitStep.ROWS_WRITTEN)
        position = Position(book.position + 1)
        _check_session(book, session)
        self._reached(CommitStep.POSITION_TAKEN)
        receipts = _settle(book, settlement)
        self._reached(CommitStep.QUARANTINE_RECORDED)
        book.entries.append(_entry(position, settlement, receipts, now, kind=settlement.kind))
        self._reached(CommitStep.ENTRY_RECORDED)
        self._books[session.pipeline] = book
        self._reached(CommitStep.COMMITTED)
        return position

    def _repeats_allowed(self, book: Book) -> bool:
        return book.declared.guarantee is Guarantee.AT_LEAST_ONCE

    def book(self, pipeline: str) -> Book:
        """The pipeline's book; tests read its rows."""
        if pipeline not in self._books:
            raise NotFound("pipeline", pipeline, tuple(sorted(self._books)))
        return self._books[pipeline]

    def declare(self, pipeline: Pipeline, *, version: Version | None = None) -> Version:
        """Make a pipeline known, or take a new version of its declaration; what an earlier one has begun is dropped."""
        book = self._books.setdefault(pipeline.name, Book(declared=pipeline))
        if version is not None:
            refuse_other_version(pipeline.name, version, book.version)
        before = book.declared.declaration if book.version.number else None
        after = settled(before, pipeline.declaration)
        folders = {pipeline.folder, book.declared.folder} - {None}
        if before != after or (book.version.number and len(folders) > 1):
            _refuse_edit(book, pipeline, before)
            if names_other_messages(book.messages_of, after):
                book.messages.clear()
            book.messages_of = after.terms.get(MESSAGE_ID) or book.messages_of
            book.version = Version(book.version.number + 1, self._clock())
            book.held.clear()
            if before is not None and before.terms.get(ROOT) != after.terms.get(ROOT):
                for name in {state.name for state in book.states.values()}:
                    if (here := _address(pipeline, name)) in book.files:
                        book.files[here] = False
        book.roots |= {after.terms[ROOT]} if ROOT in after.terms else set()
        book.folders |= {pipeline.folder} if pipeline.folder is not None else set()
        book.declared = replace(pipeline, declaration=after)
        return book.version

    def find_version(self, pipeline: Pipeline) -> Version | None:
        """The version in force, if the pipeline is declared just so. An edit that a load would refuse is refused."""
        book = self._books.get(pipeline.name)
        if book is None:
            return None
        before = book.declared.declaration
        if before == settled(before, pipeline.declaration):
            return book.version
        _refuse_edit(book, pipeline, before)
        return None

    def register(self, pipeline: str, names: Sequence[tuple[str, int]]) -> dict[tuple[str, int], ProducerId]:
        """Give each (name, generation) its producer id; it has consumed nothing yet."""
        check_producers(names)
        book = self.book(pipeline)
        ids = {(state.name, state.generation): producer_id for producer_id, state in book.states.items()}
        added = [name for name in dict.fromkeys(names) if name not in ids]
        found = len(book.states) + len(added)
        if found > book.declared.producers_max:
            raise LimitReached(pipeline, "producers_max", book.declared.producers_max, found)
        for name, generation in added:
            ids[name, generation] = producer_id = ProducerId(next(self._ids))
            book.states[producer_id] = ProducerState(name=name, generation=generation, consumed=SpanSet())
            book.advanced_at[producer_id] = self._clock()
        return {name: ids[name] for name in names}

    def others_by_content(self, pipeline: Pipeline) -> dict[str, str]:
        """The folders of other pipelines that load into the same table, and know files by their content."""
        return {
            name: book.declared.folder
            for name, book in sorted(self._books.items())
            if name != pipeline.name
            and book.files
            and book.declared.folder is not None
            and book.declared.declaration.terms.get(IDENTITY) == "content"
            and book.declared.declaration.terms.get(TARGET) == pipeline.declaration.terms.get(TARGET)
        }

    def _own(self, book: Book, names: Sequence[str]) -> None:
        """Record files as those of this pipeline."""
        if book.declared.folder is not None and TARGET in book.declared.declaration.terms:
            self.refuse_files_of_others(book.declared, names)
            book.files |= {_address(book.declared, name): True for name in names}

    def refuse_files_of_others(self, pipeline: Pipeline, names: Sequence[str]) -> None:
        """Refuse files that another pipeline has loaded into the same table, as a commit would."""
        for other in self._books.values():
            files = [each for name in names if (each := _address(pipeline, name)) in other.files]
            if other.declared.name != pipeline.name and files:
                raise LoadedByAnother(pipeline.name, other.declared.name, files[0][1], files[0][0], len(files) - 1)

    def find(self, pipeline: str, names: Sequence[str], *, here: Pipeline | None = None) -> dict[str, KnownProducer]:
        """The latest generation of each name that is registered; all claims count, by any session."""
        book, wanted = self.book(pipeline), set(names)
        # One that was registered and never came to anything is not a life of a file, unless there is no other.
        oldest_first = sorted(
            book.states.items(),
            key=lambda item: (bool(item[1].consumed) or item[1].fingerprint is not None, item[1].generation),
        )
        return {
            state.name: KnownProducer(
                producer_id,
                replace(self._known(book, producer_id), is_elsewhere=_is_elsewhere(book, state.name, here)),
            )
            for producer_id, state in oldest_first
            if state.name in wanted
        }

    def _known(self, book: Book, producer_id: ProducerId, *, asking: SessionName | None = None) -> Knowledge:
        claimed = self._claimed(book, producer_id, asking=asking)
        known = Knowledge(state=book.states[producer_id], claimed=claimed)
        its = book.copies.get(producer_id)
        return known if its is None else known.as_copy_of(its, book.states.get(its))

    def outlook(self, pipeline: str) -> Outlook:
        """The position of the ledger, and the producers of which any session is loading something."""
        return self._outlook(self.book(pipeline))

    def _outlook(self, book: Book, *, asking: SessionName | None = None) -> Outlook:
        live = (held.claim for held in book.held.values() if self._is_live(book, held))
        others = (claim for claim in live if claim.session.name != asking)
        claimed = frozenset(book.states[producer_id].name for claim in others for producer_id in claim.spans)
        return Outlook(position=book.position, claimed=claimed)

    def open_session(self, pipeline: str, name: SessionName, *, version: Version | None = None) -> Session:
        """Start a life of a session; whatever an earlier life still tries is refused from now on."""
        check_name("session", name)
        book = self.book(pipeline)
        version = book.version if version is None else version
        refuse_other_version(pipeline, version, book.version)
        book.epochs[name] = Epoch(book.epochs.get(name, 0) + 1)
        return Session(pipeline=pipeline, name=name, epoch=book.epochs[name], version=version)

    def know(self, session: Session, producer_ids: Sequence[ProducerId]) -> dict[ProducerId, Knowledge]:
        """What to judge by, as this session sees it."""
        book = self.book(session.pipeline)
        return {
            producer_id: self._known(book, producer_id, asking=session.name)
            for producer_id in producer_ids
            if producer_id in book.states
        }

    def _claimed(self, book: Book, producer_id: ProducerId, *, asking: SessionName | None = None) -> SpanSet:
        spans = SpanSet()
        for held in book.held.values():
            if self._is_live(book, held) and held.claim.session.name != asking:
                spans |= held.claim.spans.get(producer_id, SpanSet())
        return spans

    def _is_live(self, book: Book, held: _Held) -> bool:
        session = held.claim.session
        return held.deadline_at > self._clock() and book.epochs[session.name] == session.epoch

    def claim(
        self,
        session: Session,
        spans: Mapping[ProducerId, SpanSet],
        *,
        batch: Batch,
        lease_s: float,
        names: Mapping[ProducerId, str] = NO_NAMES,
        unchanged: Outlook | None = None,
        only_names: bool = False,
    ) -> Claim:
        """Hold spans that are neither consumed nor claimed by another session."""
        del batch  # Deliveries in memory are not looked at.
        book = self.book(session.pipeline)
        refuse_other_version(session.pipeline, session.version, book.version)
        book.held = {key: held for key, held in book.held.items() if self._is_live(book, held)}
        if unchanged is not None:
            since = book.entries[unchanged.position :]
            committed = {receipt.producer for entry in since for receipt in entry.receipts} if only_names else None
            now = self._outlook(book, asking=session.name)
            refuse_change(session, unchanged, now, committed=committed, names=names.values())
        refuse_taken(session, spans, self.know(session, list(spans)), names=names, position=book.position)
        _check_session(book, session)
        claim = Claim(delivery_id=DeliveryId(next(self._ids)), session=session, spans=spans)
        book.held[claim.delivery_id] = _Held(claim, self._clock() + timedelta(seconds=lease_s))
        return claim

    def renew(self, session: Session, *, lease_s: float) -> None:
        """Hold what a session still claims for another lease; what fell back meanwhile stays so."""
        book = self.book(session.pipeline)
        _check_session(book, session)
        deadline_at = self._clock() + timedelta(seconds=lease_s)
        for key, held in book.held.items():
            if held.claim.session == session and self._is_live(book, held):
                book.held[key] = _Held(held.claim, deadline_at)

    def release(self, claim: Claim) -> None:
        """Give a claim back: its spans fall back to what is consumed."""
        held = self.book(claim.session.pipeline).held
        if claim.delivery_id in held and held[claim.delivery_id].claim.session == claim.session:
            del held[claim.delivery_id]

    def proof_of(self, pipeline: str, producer_id: ProducerId, *, end: int | None = None) -> Proof:
        """Sum up what all commits of one producer read, or those that end before a sequence id."""
        book = self.book(pipeline)
        loads = [entry for entry in book.entries if entry.kind is EntryKind.LOAD]
        its = (each for entry in loads for each in entry.receipts if each.producer_id == producer_id)
        receipts = [each for each in its if end is None or (each.spans and each.spans.end <= end)]
        return Proof(
            records=sum(receipt.records for receipt in receipts),
            digests=b"".join(receipt.digest or b"" for receipt in receipts),
        )

    def position(self, pipeline: str) -> Position:
        """The number of the last commit; zero before the first."""
        return self.book(pipeline).position

    def outcome_of(self, pipeline: str, batch: Batch, *, after: Position) -> Outcome:
        """What a batch has come to since a position."""
        its_own = [entry for entry in self.entries(pipeline, after=after) if entry.batch == batch]
        return Outcome(
            position=its_own[-1].position if its_own else self.position(pipeline),
            counts=Counts(
                loaded=sum(entry.counts.loaded for entry in its_own),
                duplicate=sum(entry.counts.duplicate for entry in its_own),
                quarantined=sum(entry.counts.quarantined for entry in its_own),
                filtered=sum(entry.counts.filtered for entry in its_own),
            ),
            bytes=sum(entry.bytes for entry in its_own),
            has_quarantined=any(
                entry.counts.quarantined for entry in self.entries(pipeline, after=Position(0)) if entry.batch == batch
            ),
            has_replaced=any(
                receipt.condition is Condition.REPLACED for entry in its_own for receipt in entry.receipts
            ),
        )

    def forget_idle(self, pipeline: str) -> tuple[str, ...]:
        """Forget producers that records name and that were idle for as long as declared, never a file; return which."""
        book = self.book(pipeline)
        if book.declared.forget_idle_after_s is None:
            return ()
        idle_since = self._clock() - timedelta(seconds=book.declared.forget_idle_after_s)
        claimed = {key for held in book.held.values() if self._is_live(book, held) for key in held.claim.spans}
        files = {key for key, state in book.states.items() if state.fingerprint is not None}
        idle = [key for key, at in book.advanced_at.items() if at < idle_since and key not in claimed | files]
        if not idle:
            return ()
        gone = {key: book.states.pop(key) for key in idle}
        book.advanced_at = {key: at for key, at in book.advanced_at.items() if key not in gone}
        receipts = tuple(_receipt(key, state, _seen(key, state)) for key, state in gone.items())
        book.entries.append(_forget_entry(Position(book.position + 1), receipts, self._clock()))
        return tuple(sorted(state.name for state in gone.values()))

    def entries(self, pipeline: str, *, after: Position) -> Iterator[Entry]:
        """The commits after a position, oldest first."""
        return iter(self.book(pipeline).entries[after:])

    def states(self, pipeline: str) -> Snapshot:
        """The live states of all producers that have consumed anything, and the position they are at."""
        book = self.book(pipeline)
        states = {key: state for key, state in book.states.items() if state.consumed}
        return Snapshot(pipeline=pipeline, position=book.position, taken_at=self._clock(), states=states)


class MemorySnapshots:
    """Where snapshots are kept."""

    def __init__(self, ledger: MemoryLedger) -> None:
        self._ledger = ledger

    def take(self, pipeline: str) -> Position:
        """Keep the states as they are now; one snapshot of a position is enough."""
        book, snapshot = self._ledger.book(pipeline), self._ledger.states(pipeline)
        if differing := _differing_names(snapshot.states, replay({}, book.entries)):
            raise SnapshotRefused(pipeline, snapshot.position, differing)
        book.snapshots.setdefault(snapshot.position, snapshot)
        for position in sorted(book.snapshots)[: -book.declared.snapshot.kept]:
            del book.snapshots[position]
        return snapshot.position

    def take_if_due(self, pipeline: str, *, now: datetime) -> Position | None:
        """What a loader calls after its commits."""
        book = self._ledger.book(pipeline)
        last = max(book.snapshots, default=Position(0))
        since = (
            book.snapshots[last].taken_at if last else min((each.committed_at for each in book.entries), default=now)
        )
        due = book.declared.snapshot.is_due(
            commits_since=book.position - last, seconds_since=(now - since).total_seconds()
        )
        return self.take(pipeline) if due else None

    def get(self, pipeline: str, position: Position | None = None) -> Snapshot:
        """The snapshot at a position, or the latest."""
        kept = self._ledger.book(pipeline).snapshots
        wanted = max(kept, default=None) if position is None else position
        if wanted not in kept:
            raise NotFound("snapshot", "the latest" if wanted is None else str(wanted), tuple(map(str, sorted(kept))))
        return kept[wanted]


def _differing_names(states: States, proven: States) -> tuple[str, ...]:
    """The names of the producers whose state differs from the proven one."""
    differing = (key for key in states.keys() | proven.keys() if states.get(key) != proven.get(key))
    return tuple(sorted((proven.get(key) or states[key]).name for key in differing))


def _address(pipeline: Pipeline, name: str) -> tuple[str, str]:
    return pipeline.declaration.terms.get(TARGET, ""), f"{pipeline.folder}{name}"


def _is_elsewhere(book: Book, name: str, here: Pipeline | None) -> bool:
    """Whether the folder was ever moved, and the file of this name was not seen in it since."""
    root = here and here.declaration.terms.get(ROOT)
    if here is None or root is None or (book.roots <= {root} and book.folders <= {here.folder}):
        return False
    return not book.files.get(_address(here, name))


def _refuse_edit(book: Book, pipeline: Pipeline, before: Declaration | None) -> None:
    if before is None:
        return
    in_use = InUse(
        is_loaded=any(state.consumed or state.fingerprint is not None for state in book.states.values()),
        is_table_gone=False,
    )
    refuse_edit(pipeline.name, before, pipeline.declaration, in_use, moved_from=pipeline.moved_from)


def _check_session(book: Book, session: Session) -> None:
    refuse_other_version(session.pipeline, session.version, book.version)
    if book.epochs.get(session.name) != session.epoch:
        raise SessionFenced(session.pipeline, session.name, session.epoch)


def _swap_names(book: Book, producer_id: ProducerId, other_id: ProducerId) -> None:
    """Let a producer go on under a name of which nothing is consumed; that row keeps the old one."""
    its, other = book.states.get(producer_id), book.states.get(other_id)
    if its is None or other is None or other.consumed:
        raise AlreadyConsumed(book.declared.name, (other.name if other else "a forgotten producer",))
    book.states[producer_id] = replace(its, name=other.name, generation=other.generation)
    book.states[other_id] = replace(its, consumed=SpanSet())
    book.copies[other_id] = producer_id


def _advance(book: Book, advance: Advance, now: datetime, *, repeats_allowed: bool) -> Receipt:
    if advance.takes_name_of is not None:
        _swap_names(book, advance.producer_id, advance.takes_name_of)
    state = book.states.get(advance.producer_id)
    # Nothing of a producer whose rows went when a later generation took its place comes back.
    is_gone = state is not None and state.condition is Condition.REPLACED
    is_no_copy = advance.copy_of is not None and bool(state and state.consumed)
    if state is None or is_gone or is_no_copy or (not repeats_allowed and state.consumed.overlaps(advance.spans)):
        raise AlreadyConsumed(book.declared.name, (state.name if state else "a forgotten producer",))
    # Chunks may commit in any order; what is noted of a file is what the furthest of them saw.
    is_behind = bool(advance.spans and state.consumed and advance.spans.end < state.consumed.end)
    seen = state if is_behind else advance
    # A file that was read again, and had nothing new, stays sealed: its last line may have no newline.
    is_as_it_was = is_behind or (not advance.spans and advance.condition is Condition.OPEN)
    after = replace(
        state,
        consumed=state.consumed | advance.spans,
        fingerprint=seen.fingerprint,
        size=seen.size,
        condition=state.condition if is_as_it_was else advance.condition,
    )
    if len(after.consumed.spans) > book.declared.islands_max:
        raise LimitReached(book.declared.name, "islands_max", book.declared.islands_max, len(after.consumed.spans))
    book.states[advance.producer_id], book.advanced_at[advance.producer_id] = after, now
    book.copies.pop(advance.producer_id, None)
    if advance.copy_of is not None:
        book.copies[advance.producer_id] = advance.copy_of
    noted = replace(advance, fingerprint=after.fingerprint, size=after.size, condition=after.condition)
    return _receipt(advance.producer_id, state, noted)


def _record_messages(book: Book, message_ids: tuple[str, ...], now: datetime, *, repeats_allowed: bool) -> None:
    if not book.declared.message_keep_days:
        return
    kept_since = now.date() - timedelta(days=book.declared.message_keep_days)
    twins = [each for each in message_ids if each in book.messages and book.messages[each].date() >= kept_since]
    if twins and not repeats_allowed:
        raise AlreadyConsumed(book.declared.name, (f"{len(twins)} business ids",))
    book.messages.update(dict.fromkeys(set(message_ids) - set(twins), now))


def _record_quarantine(book: Book, records: dict[tuple[ProducerId, int], str], *, repeats_allowed: bool) -> None:
    new = {record: digest for record, digest in records.items() if record not in book.quarantine}
    if len(new) != len(records) and not repeats_allowed:
        raise AlreadyConsumed(book.declared.name, ("a quarantined record",))
    book.quarantine.update(dict.fromkeys(new, QuarantineState.HELD))
    book.digests.update(new)


def _settle(book: Book, settlement: Settlement[Book]) -> tuple[Receipt, ...]:
    refused = [
        record
        for record, digest in settlement.records.items()
        if not _may_settle(book, settlement.kind, record) or digest not in (None, book.digests[record])
    ]
    if refused:
        names = tuple(f"the quarantined record {sequence_id} of producer {key}" for key, sequence_id in refused)
        raise AlreadyConsumed(book.declared.name, names)
    book.quarantine.update(dict.fromkeys(settlement.records, settlement.state))
    rows_of = settlement.rows_of
    return tuple(_settled(book, key, spans, rows=rows_of.get(key, 0)) for key, spans in settlement.spans.items())


def _may_settle(book: Book, kind: EntryKind, record: tuple[ProducerId, int]) -> bool:
    """Nothing of a producer whose rows went when a later generation took its place comes back."""
    state = book.states.get(record[0])
    is_replaced = state is not None and state.condition is Condition.REPLACED
    is_held = book.quarantine.get(record) is QuarantineState.HELD
    return is_held and not (is_replaced and kind is EntryKind.RETRY)


def _settled(book: Book, producer_id: ProducerId, spans: SpanSet, *, rows: int) -> Receipt:
    """A receipt that names its producer as the one of the quarantine did, because the producer may be forgotten."""
    receipts = (receipt for entry in book.entries for receipt in entry.receipts if receipt.producer_id == producer_id)
    quarantined = next(receipt for receipt in receipts if spans.spans[0].first in receipt.spans)
    return replace(quarantined, spans=spans, rows=rows, records=0, digest=None, fingerprint=None, size=None)


def _ack(book: Book, session: Session, claim: Claim | None, *, is_last: bool) -> None:
    if claim is None:
        return
    held = book.held.get(claim.delivery_id)
    if held is None or claim.session != session or held.claim.session != session:
        raise DeliveryTakenAway(session.pipeline, claim.delivery_id, session.name, session.epoch, "no longer held")
    if is_last:
        del book.held[claim.delivery_id]


def _seen(producer_id: ProducerId, state: ProducerState) -> Advance:
    """An advance that says again what is known."""
    return Advance(
        producer_id=producer_id,
        spans=state.consumed,
        fingerprint=state.fingerprint,
        size=state.size,
        condition=state.condition,
    )


def _receipt(producer_id: ProducerId, state: ProducerState, advance: Advance) -> Receipt:
    return Receipt(
        producer_id=producer_id,
        producer=state.name,
        generation=state.generation,
        spans=advance.spans,
        rows=advance.rows,
        records=advance.records,
        digest=advance.digest,
        fingerprint=advance.fingerprint,
        size=advance.size,
        condition=advance.condition,
    )


def _entry(
    position: Position,
    commit: Commit[Book] | Settlement[Book],
    receipts: tuple[Receipt, ...],
    now: datetime,
    *,
    kind: EntryKind,
) -> Entry:
    return Entry(
        position=position,
        kind=kind,
        batch=commit.batch,
        counts=commit.counts,
        bytes=commit.bytes,
        committed_at=now,
        session=commit.session.name,
        epoch=commit.session.epoch,
        run=commit.run,
        receipts=tuple(sorted(receipts, key=lambda receipt: receipt.producer_id)),
    )


def _forget_entry(position: Position, receipts: tuple[Receipt, ...], now: datetime) -> Entry:
    return Entry(
        position=position,
        kind=EntryKind.FORGET,
        batch=Batch(f"forget-{position}"),
        counts=Counts(),
        bytes=0,
        committed_at=now,
        session=None,
        epoch=None,
        run=None,
        receipts=tuple(sorted(receipts, key=lambda receipt: receipt.producer_id)),
    )
