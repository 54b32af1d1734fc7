"""Any query of Postgres over any records: the same rows and filtered records as the query gives over a plain table."""

from dataclasses import dataclass, replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceload_jobs.pipeline.declared import Publish, Target, TransformEngine
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads, line

#: Whole loads are slow: a twentieth of the examples of other tests.
_EXAMPLES = settings().max_examples // 20
_SOURCES = (
    "records AS r",
    "(SELECT * FROM records UNION ALL SELECT * FROM records) AS r",
    "(SELECT records.* FROM records, generate_series(1, 3)) AS r",
    "(SELECT records.* FROM generate_series(0, 3) AS g LEFT JOIN records ON id % 3 = g) AS r",
    "(SELECT DISTINCT ON (note) * FROM records ORDER BY note, id) AS r",
    "(SELECT CAST(g AS bigint) AS id, CAST(NULL AS text) AS note, CAST(NULL AS bigint) AS _producer_id, "
    "CAST(NULL AS bigint) AS _sequence FROM generate_series(0, 9) AS g WHERE g NOT IN (SELECT id FROM records)) AS r",
)
_VALUES = (
    "r.id",
    "(SELECT count(*) FROM records)",
    "(SELECT max(o.id) FROM records AS o WHERE o.note = r.note)",
    "(SELECT count(*) FROM records AS o WHERE o.id < r.id)",
    "(ARRAY(SELECT id FROM records ORDER BY id DESC))[1]",
)
_CONDITIONS = (
    "true",
    "r.id % 2 = 0",
    "EXISTS (SELECT FROM records AS o WHERE o.note = r.note AND o.id < r.id)",
    "r.id NOT IN (SELECT max(id) FROM records GROUP BY note)",
    "r.id > (SELECT avg(id) FROM records)",
)
_NUMBER = count()


@dataclass(frozen=True)
class Query:
    source: str
    value: str
    condition: str
    has_lineage: bool
    is_grouped: bool

    def __str__(self) -> str:
        of_rows = f"FROM {self.source} WHERE {self.condition}"
        if self.is_grouped:
            return f"SELECT count(*) AS value {of_rows} GROUP BY r.note"
        lineage = ", r._producer_id, r._sequence" if self.has_lineage else ""
        return f"SELECT {self.value} AS value{lineage} {of_rows}"

    @property
    def names_records(self) -> bool:
        return self.has_lineage and not self.is_grouped


_QUERIES = st.builds(
    Query,
    st.sampled_from(_SOURCES),
    st.sampled_from(_VALUES),
    st.sampled_from(_CONDITIONS),
    st.booleans(),
    st.booleans(),
)
#: The notes of the records of each file of each batch.
_BATCHES = st.lists(st.lists(st.lists(st.sampled_from("abc"), max_size=12), min_size=1, max_size=3), max_size=2)


@pytest.fixture
def publish() -> Publish:
    return Publish.STAGED


@settings(max_examples=_EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(query=_QUERIES, batches=_BATCHES)
def test_a_query_makes_the_rows_that_it_gives_over_all_records_of_a_batch(loads, query, batches):
    """The files are cut into pieces of about three records."""
    number, ids = next(_NUMBER), count()
    source = replace(loads.declared.source, path=str(loads.folder / f"{number}" / "*.jsonl"), chunk_bytes=120)
    plain = replace(_called(loads, f"plain_{number}"), source=source)
    made = replace(
        _called(loads, f"made_{number}"), source=source, transform=str(query), transform_engine=TransformEngine.POSTGRES
    )
    expected = list[int | None]()
    for batch, files in enumerate(batches):
        first = next(ids)
        for file, notes in enumerate(files):
            lines = (line(next(ids), note=note) for note in notes)
            loads.write(f"{number}/{batch}-{file}.jsonl", "".join(lines))
        loads.load(**_changes(plain))
        report = loads.load(**_changes(made))

        there = sum(map(len, files))
        records = f"WITH records AS (SELECT * FROM plain_{number} WHERE id > {first})"
        rows = loads.ask(f"{records} {query}") if there else []
        expected += [row[0] for row in rows]
        if query.names_records:
            named = {row[1:] for row in rows}
            filtered = 0 if (None, None) in named else there - len(named)
        else:
            filtered = 0 if rows else there
        assert (report.loaded, report.filtered) == (len(rows), filtered)
    # Empty files are nothing to load: no table is made.
    if any(notes for files in batches for notes in files):
        found = [row[0] for row in loads.ask(f"SELECT value FROM made_{number}")]
        assert sorted(found, key=str) == sorted(expected, key=str)
        assert verify(made, loads.engine, deep=True).differing == 0


def _called(loads: Loads, name: str):
    pipeline = replace(loads.declared.pipeline, name=name)
    return replace(loads.declared, pipeline=pipeline, target=Target(schema="public", table=name))


def _changes(declared):
    return {name: getattr(declared, name) for name in ("pipeline", "source", "target", "transform", "transform_engine")}
