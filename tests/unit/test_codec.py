"""Our values as text, from one process to the next."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_core.errors import SettingRefused
from onceload_core.names import ProducerId
from onceload_core.ports import Advance, QuarantinedRecord
from onceload_core.replay import Condition
from onceload_core.spans import NotASpan, Span, SpanSet
from onceload_jobs.batch.job import Replacement
from onceload_jobs.batch.stage import PublishInput
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.write.codec import OtherRelease, decode, encode

IDS = st.integers(0, 2**62)
SPANS = st.builds(
    lambda some: SpanSet(Span(first, first + size) for first, size in some),
    st.lists(st.tuples(IDS, st.integers(1, 2**61))),
)
#: Any text, also with what Postgres cannot hold.
TEXTS = st.text(st.characters(codec=None))


@given(
    st.builds(
        Advance,
        producer_id=IDS.map(ProducerId),
        spans=SPANS,
        digest=st.none() | st.binary(),
        size=st.none() | IDS,
        condition=st.sampled_from(Condition),
    )
)
def test_an_advance_stays_as_it_is(advance):
    assert decode(Advance, encode(advance)) == advance


@given(st.binary(), TEXTS, st.none() | TEXTS)
def test_a_bad_record_stays_as_it_is(raw, reason, column):
    record = QuarantinedRecord(producer_id=ProducerId(1), sequence_id=2, raw=raw, reason=reason, column=column)

    assert decode(QuarantinedRecord, encode(record)) == record


def test_text_is_plain_ascii():
    assert encode(Note(name="été \ud800\0", reason="")).isascii()


def test_the_values_handed_over_with_a_batch_stay_as_they_are():
    publish_input = PublishInput(
        written=(parse_column("amount", "numeric(12,2) not null"), parse_column("names", "text[]")),
        has_lineage=True,
        replaced={ProducerId(7): Replacement(old=ProducerId(5), name="a.jsonl", planned=SpanSet.of((0, 5), (9, 12)))},
        notes=(Note(name="b.jsonl", reason="it is locked", is_unreadable=True),),
    )

    assert decode(PublishInput, encode(publish_input)) == publish_input


def test_fields_that_have_a_default_may_be_missing():
    found = decode(Chunk, '{"producer_id": 1, "name": "a", "url": "/a", "first": 0, "end": null}')

    assert found == Chunk(producer_id=ProducerId(1), name="a", url="/a", first=0, end=None)


@pytest.mark.parametrize("path", [(), ("written", 0, "type"), ("replaced", "7"), ("notes", 0)])
def test_a_field_that_is_unknown_is_refused(path):
    """A later release gave it a meaning."""
    whole = {
        "written": [{"name": "id", "type": {"kind": "bigint"}}],
        "has_lineage": True,
        "replaced": {"7": {"old": 5, "name": "a", "planned": {"spans": []}}},
        "notes": [{"name": "b", "reason": "it is locked"}],
    }
    inner: Any = whole
    for step in path:
        inner = inner[step]
    decode(PublishInput, json.dumps(whole))
    inner["later"] = None

    with pytest.raises(OtherRelease, match="unknown field `later`"):
        decode(PublishInput, json.dumps(whole))


def test_a_message_names_the_field_that_does_not_fit():
    with pytest.raises(OtherRelease, match=r"missing required field `url` - at `\$\[0\]`"):
        decode(tuple[Chunk, ...], '[{"producer_id": 1, "name": "a"}]')


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"producer_id": 1, "spans": {"spans": [{"first": 5, "end": 3}]}}', NotASpan),
        ('{"producer_id": 1, "spans": {"spans": []}, "rows": 3}', SettingRefused),
    ],
)
def test_a_value_that_could_not_be_made_is_refused(text, error):
    with pytest.raises(error):
        decode(Advance, text)
