"""Which ids of a bucket are new, against a model that takes one record after the other; and the buckets themselves."""

from collections.abc import Iterable
from decimal import Decimal
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from onceload_jobs.pipeline.columns import arrow_type, parse_column
from onceload_jobs.work.buckets import Buckets, hashes_of
from onceload_jobs.work.by_producer import Runs, new_ids


def integers(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int64)


@pytest.mark.parametrize("seed", range(20))
def test_the_first_record_of_each_id_that_is_not_consumed_is_new(seed):
    rng = Random(seed)
    top = rng.choice([12, 40, 2**63 - 10])
    spans = [(producer, top - 10 + 3 * step, 2) for producer in range(3) for step in range(3) if rng.random() < 0.4]
    consumed = Runs(
        producers=integers(each[0] for each in spans),
        first=integers(each[1] for each in spans),
        end=integers(each[1] + each[2] for each in spans),
    )
    records = [(rng.randrange(3), top - rng.randrange(12), rng.randrange(3), rng.randrange(1000)) for _ in range(60)]

    producers, ids, files, places = (integers(column) for column in zip(*records, strict=True))
    found = new_ids(producers, ids, (files, places), consumed)

    seen = {(producer, first + number) for producer, first, count in spans for number in range(count)}
    new = set()
    for number, (producer, each, *_) in sorted(enumerate(records), key=lambda one: one[1][2:]):
        if (producer, each) not in seen:
            seen.add((producer, each))
            new.add(number)
    same_place = len({record[2:] for record in records}) == len(records)
    ids_of = {records[number][:2] for number in new}
    assert {records[number][:2] for number in np.flatnonzero(found.rows)} == ids_of
    if same_place:
        assert set(np.flatnonzero(found.rows)) == new
    runs = zip(found.runs.producers, found.runs.first, found.runs.end, strict=True)
    assert {(producer, each) for producer, first, end in runs for each in range(first, end)} == ids_of
    assert list(found.counts) == list(found.runs.end - found.runs.first)


@pytest.mark.parametrize(
    ("of_type", "values"),
    [
        ("text", ["", "a", "b", "ab", "ba", "a\0", "ä", "\U0001f600" * 40]),
        ("bigint", [0, 1, -1, 2**62]),
        ("numeric(12,2)", [Decimal("0.00"), Decimal("1.50"), Decimal("-1.50")]),
        ("uuid", [bytes(16), bytes(15) + b"\1"]),
        ("bytea", [b"", b"\0", b"\0\0"]),
        ("jsonb", ['{"a": 1}', '{"a": 2}', "[]"]),
        ("text[]", [[], ["a"], ["a", "b"], ["ab"]]),
    ],
)
def test_equal_values_have_equal_numbers_wherever_they_are(of_type, values):
    column = parse_column("v", of_type)
    rng = Random(1)
    taken = [rng.choice(values) for _ in range(500)] + values
    whole = pa.array(taken, arrow_type(column.type))

    numbers = [int(each) for each in hashes_of(pa.table({"v": whole}), [column])]
    sliced = [int(each) for each in hashes_of(pa.table({"v": whole.slice(100)}), [column])]

    assert sliced == numbers[100:]
    assert len({repr(value): number for value, number in zip(taken, numbers, strict=True)}) == len(values)
    assert len(set(zip(map(repr, taken), numbers, strict=True))) == len(set(numbers)) == len(values)


def test_texts_that_the_server_reads_as_one_value_have_one_number():
    column = parse_column("v", "jsonb")
    texts = ['{"a": 1e1, "b": [true]}', '{"b":[true],"a":10}', '{"a": 10, "b": [true]}']

    assert len(set(hashes_of(pa.table({"v": texts}), [column]))) == 1


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_row_is_in_one_bucket_and_all_rows_of_an_id_in_the_same(count):
    rng = Random(count)
    rows = pa.table({"dev": [f"d{rng.randrange(50)}" for _ in range(2000)], "seq": range(2000), "at": range(2000)})
    buckets = Buckets(count=count, named_by=(parse_column("dev", "text"),), sequence="seq")

    cut = [(number, some) for number, some in buckets.split(rows)]

    assert sorted(at for _, some in cut for at in some.column("at").to_pylist()) == list(range(2000))
    assert all(some.column("at").to_pylist() == sorted(some.column("at").to_pylist()) for _, some in cut)
    in_bucket = {(dev, number) for number, some in cut for dev in some.column("dev").to_pylist()}
    assert len(in_bucket) == 50
    assert len(cut) == count


def test_a_single_producer_fills_several_buckets():
    rows = pa.table({"dev": ["d"] * 64, "seq": pa.array([number << 18 for number in range(64)])})
    buckets = Buckets(count=4, named_by=(parse_column("dev", "text"),), sequence="seq")

    assert len(list(buckets.split(rows))) == 4
