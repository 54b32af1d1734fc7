"""The law of the ledger: a state is an earlier state plus the entries between."""

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import event, given
from hypothesis import strategies as st

from onceload_core.names import Batch, Position, ProducerId
from onceload_core.replay import Condition, Counts, Entry, EntryKind, ProducerState, Receipt, replay
from onceload_core.spans import SpanSet
from tests.unit.test_spans import span_sets

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@st.composite
def receipts(draw):
    producer_id = draw(st.integers(1, 4))
    return Receipt(
        producer_id=ProducerId(producer_id),
        producer=f"file-{producer_id}",
        generation=1,
        spans=draw(span_sets()),
        rows=draw(st.integers(0, 5)),
        records=0,
        digest=draw(st.none() | st.binary(max_size=3)),
        fingerprint=draw(st.none() | st.binary(max_size=3)),
        size=draw(st.none() | st.integers(0, 100)),
        condition=draw(st.sampled_from(Condition)),
    )


@st.composite
def ledgers(draw):
    drafts = st.tuples(
        st.sampled_from(
            [*[EntryKind.LOAD] * 4, EntryKind.FORGET, EntryKind.RETRY, EntryKind.DISCARD, *[EntryKind.REWIND] * 2]
        ),
        st.lists(receipts(), max_size=3),
    )
    return [
        entry(number, kind, some) for number, (kind, some) in enumerate(draw(st.lists(drafts, max_size=8)), start=1)
    ]


def entry(position: int, kind: EntryKind, some: list[Receipt]) -> Entry:
    return Entry(
        position=Position(position),
        kind=kind,
        batch=Batch("b"),
        counts=Counts(),
        bytes=0,
        committed_at=NOON,
        session=None,
        epoch=None,
        run=None,
        receipts=tuple(some),
    )


@given(entries=ledgers(), data=st.data())
def test_a_restart_from_any_snapshot_loses_nothing(entries, data):
    cut = data.draw(st.integers(0, len(entries)))
    snapshot = replay({}, entries[:cut])

    assert replay(snapshot, entries[cut:]) == replay({}, entries)


@given(entries=ledgers())
def test_replaying_from_every_cut_gives_the_same_states(entries):
    whole = replay({}, entries)

    assert all(replay(replay({}, entries[:cut]), entries[cut:]) == whole for cut in range(len(entries) + 1))


@given(entries=ledgers())
def test_an_entry_that_settles_the_quarantine_changes_no_state(entries):
    """Quarantined records were consumed by the entry that put them there."""
    others = [each for each in entries if each.kind not in (EntryKind.RETRY, EntryKind.DISCARD)]

    assert replay({}, entries) == replay({}, others)


class Model:
    """A pipeline that remembers the states of every position, so that going back is looking them up."""

    def __init__(self) -> None:
        self.past: list[dict[ProducerId, ProducerState]] = [{}]
        self.entries: list[Entry] = []
        self.floor = 0
        self.taken_back: list[tuple[int, int]] = []

    @property
    def states(self) -> dict[ProducerId, ProducerState]:
        return self.past[-1]

    def add(self, kind: EntryKind, states: dict[ProducerId, ProducerState], some: list[Receipt]) -> None:
        self.entries.append(entry(len(self.entries) + 1, kind, some))
        self.past.append({key: state for key, state in states.items() if state.consumed})

    def load(self, offered: Receipt) -> None:
        before = self.states.get(offered.producer_id)
        consumed = before.consumed if before else SpanSet()
        receipt = replace(offered, spans=offered.spans - consumed)
        self.add(
            EntryKind.LOAD, {**self.states, receipt.producer_id: seen(receipt, consumed | receipt.spans)}, [receipt]
        )

    def forget(self, producer_id: ProducerId) -> None:
        """An id that was forgotten is never given again."""
        left = {key: state for key, state in self.states.items() if key != producer_id}
        gone = [receipt_of(producer_id, self.states[producer_id])]
        self.add(EntryKind.FORGET, left, gone)
        self.floor = len(self.entries)

    def positions(self) -> list[int]:
        """Where it may go back to: past no forgetting, and to nothing that was rolled back."""
        return [
            position
            for position in range(self.floor, len(self.past))
            if not any(to < position < at for to, at in self.taken_back)
        ]

    def rewind(self, to: int) -> None:
        now, then = self.states, self.past[to]
        some = []
        for key in now.keys() | then.keys():
            # A producer that had consumed nothing is as if it had never been seen.
            unseen = ProducerState(name=f"file-{key}", consumed=SpanSet())
            set_to, gone = then.get(key, unseen), now.get(key, unseen).consumed - then.get(key, unseen).consumed
            some.append(replace(receipt_of(key, set_to), spans=gone))
        self.taken_back.append((to, len(self.past)))
        self.add(EntryKind.REWIND, dict(then), some)


def receipt_of(producer_id: ProducerId, state: ProducerState) -> Receipt:
    return Receipt(
        producer_id=producer_id,
        producer=state.name,
        generation=state.generation,
        spans=state.consumed,
        rows=0,
        records=0,
        digest=None,
        fingerprint=state.fingerprint,
        size=state.size,
        condition=state.condition,
    )


def seen(receipt: Receipt, consumed: SpanSet) -> ProducerState:
    return ProducerState(
        name=receipt.producer,
        consumed=consumed,
        fingerprint=receipt.fingerprint,
        size=receipt.size,
        condition=receipt.condition,
    )


@given(data=st.data())
def test_after_any_loads_forgettings_and_rewinds_replay_knows_every_position(data):
    model = Model()
    for number in range(data.draw(st.integers(1, 10))):
        step = data.draw(st.sampled_from([EntryKind.LOAD, EntryKind.LOAD, EntryKind.FORGET, EntryKind.REWIND]))
        if step is EntryKind.REWIND:
            to = data.draw(st.sampled_from(model.positions()))
            event(f"rewound over {number - to} entries")
            model.rewind(to)
        elif step is EntryKind.FORGET and model.states:
            model.forget(data.draw(st.sampled_from(sorted(model.states))))
        else:
            offered = data.draw(receipts())
            # Ids grow with what is forgotten, as they do in the ledger.
            key = ProducerId(10 * model.floor + offered.producer_id)
            model.load(replace(offered, producer_id=key, producer=f"file-{key}"))

    for position, states in enumerate(model.past):
        assert replay({}, model.entries[:position]) == states
        assert replay(states, model.entries[position:]) == model.states
