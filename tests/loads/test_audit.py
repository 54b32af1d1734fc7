"""Audits: what a suite says of staged rows, and what comes of it. Great Expectations itself is asked."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
from sqlalchemy import text

from onceload.upkeep import delete_unused
from onceload_core.errors import SettingRefused
from onceload_core.names import Batch
from onceload_jobs.load.load import load
from onceload_jobs.load.staged.kept_batch import NotAudited, NothingKept, audit_batch, give_up
from onceload_jobs.pipeline.declared import Expectation, Publish, RecordProducer, Severity, Suite
from onceload_jobs.quality.audit import AuditFailed
from tests.loads.conftest import InThisProcess, line
from tests.loads.test_kept import STAGES, publish_now, settings_of, stage
from tests.servers import execute

POSITIVE = Expectation(
    type="expect_column_values_to_be_between", kwargs={"column": "amount", "min_value": 0, "max_value": 100}
)
UNIQUE = Expectation(type="expect_column_values_to_be_unique", kwargs={"column": "id"})
FEW = Expectation(
    type="expect_table_row_count_to_be_between", kwargs={"min_value": 1, "max_value": 3}, severity=Severity.WARNING
)
RESULTS = (
    "SELECT audit.passed, result.expectation, result.about, result.severity, result.success, result.unexpected,"
    " result.checked FROM onceload.audit JOIN onceload.quality_result AS result USING (audit_id)"
    " ORDER BY audit_id, number"
)


@pytest.fixture
def publish():
    return Publish.STAGED


@pytest.fixture
def audited(loads):
    suite = Suite(name="events", path="quality/events.yaml", expectations=(POSITIVE, UNIQUE, FEW))
    loads.declared = replace(loads.declared, suite=suite)
    return loads


def audit_now(loads, batch="one", docs=None):
    return audit_batch(loads.declared, replace(settings_of(loads), docs=docs), batch=Batch(batch))


def test_a_batch_that_meets_its_suite_is_published(audited):
    audited.write("a.jsonl", "".join(line(number) for number in range(5)))

    stage(audited)
    audit = audit_now(audited)
    report = publish_now(audited)

    assert audit.passed
    assert audit.rows == report.loaded == 5
    assert audited.ask(RESULTS) == [
        (True, POSITIVE.type, "amount", "critical", True, 0, 5),
        (True, UNIQUE.type, "id", "critical", True, 0, 5),
        (True, FEW.type, None, "warning", False, None, None),
    ]


@pytest.mark.parametrize(("note", "passes"), [pytest.param("x", True, marks=pytest.mark.long), ("z", False)])
def test_an_expectation_may_query_another_table_by_its_bare_name(audited, note, passes):
    execute(audited.admin_dsn, "CREATE TABLE allowed AS SELECT 'x' AS note; GRANT SELECT ON allowed TO PUBLIC")
    query = "SELECT * FROM {batch} WHERE note NOT IN (SELECT note FROM allowed)"
    listed = Expectation(type="unexpected_rows_expectation", kwargs={"unexpected_rows_query": query})
    audited.declared = replace(audited.declared, suite=replace(audited.declared.suite, expectations=(listed,)))
    audited.write("a.jsonl", line(1) + line(2, note=note))
    stage(audited)

    with nullcontext() if passes else pytest.raises(AuditFailed, match="unexpected_rows_expectation"):
        audit_now(audited)

    assert audited.ask("SELECT success FROM onceload.quality_result") == [(passes,)]


def test_nothing_is_published_of_a_batch_that_fails_and_its_rows_stay_to_be_looked_at(audited):
    audited.write("a.jsonl", line(1) + line(2, amount="-3.00") + line(3))
    stage(audited)

    with pytest.raises(AuditFailed) as failed:
        audit_now(audited)
    with pytest.raises(NothingKept):
        publish_now(audited)

    assert audited.rows() == []
    message = str(failed.value)
    assert (
        f"expect_column_values_to_be_between amount: 1 of 3 are unexpected; such as a.jsonl {len(line(1))}: -3.0"
        in message
    )
    assert audited.ask(f"SELECT id, amount FROM {failed.value.stage} WHERE amount < 0")[0][0] == 2
    # It is no longer held, so that the next load plans it again: here, once it is fixed.
    audited.write("a.jsonl", line(1) + line(2, amount="+3.00") + line(3))
    assert audited.load().loaded == 3
    assert audited.rows() == [1, 2, 3]


def test_a_pipeline_that_goes_on_failing_keeps_one_stage_and_only_for_a_while(audited):
    audited.write("a.jsonl", line(1, amount="-3.00"))
    for batch in ("one", "two"):
        stage(audited, batch)
        with pytest.raises(AuditFailed):
            audit_now(audited, batch)
    audited.write("other.jsonl", line(2))
    stage(audited, "three")
    kept = audited.ask(STAGES)
    give_up(audited.declared, settings_of(audited), batch=Batch("three"))
    with audited.engine.begin() as connection:
        connection.execute(text("UPDATE onceload.audit SET kept_until = clock_timestamp() WHERE NOT passed"))
    stage(audited, "four")

    # Two tables each: of the last that failed, and of the one that waits; then of that alone.
    assert kept == [(4,)]
    assert audited.ask(STAGES) == [(2,)]


def test_a_person_who_has_looked_at_what_failed_may_release_its_rows(audited):
    audited.write("a.jsonl", line(1, amount="-3.00"))
    stage(audited)
    with pytest.raises(AuditFailed):
        audit_now(audited)
    kept = audited.ask(STAGES)

    gone = [give_up(audited.declared, settings_of(audited), batch=Batch("one")) for _ in range(2)]

    assert (kept, gone) == ([(2,)], [True, False])
    assert audited.ask(STAGES) == [(0,)]
    assert audited.ask("SELECT passed FROM onceload.audit") == [(False,)]


def test_a_load_audits_before_it_publishes(audited):
    audited.write("a.jsonl", line(1, amount="-3.00"))

    with pytest.raises(AuditFailed):
        audited.load()

    assert audited.rows() == []
    audited.write("a.jsonl", line(1, amount="+3.00"))
    assert audited.load().loaded == 1


def test_a_batch_without_an_audit_is_not_published(audited):
    audited.write("a.jsonl", line(1))
    stage(audited)

    with pytest.raises(NotAudited, match="First run `onceload audit"):
        publish_now(audited)
    audit_now(audited)
    assert publish_now(audited).loaded == 1


def test_an_audit_of_an_earlier_stage_does_not_count_for_a_later_one(audited):
    audited.write("a.jsonl", line(1))
    stage(audited)
    audit_now(audited)
    audited.write("b.jsonl", line(2, amount="-3.00"))
    stage(audited)

    with pytest.raises(NotAudited):
        publish_now(audited)


def test_an_audit_by_another_suite_does_not_count_for_this_one(audited):
    audited.write("a.jsonl", line(1, amount="50.00"))
    stage(audited)
    audit_now(audited)
    stricter = replace(POSITIVE, kwargs={"column": "amount", "max_value": 10})
    audited.declared = replace(audited.declared, suite=replace(audited.declared.suite, expectations=(stricter,)))

    with pytest.raises(NotAudited):
        publish_now(audited)
    with pytest.raises(AuditFailed):
        audit_now(audited)


def test_two_that_audit_at_once_say_the_same(audited, tmp_path):
    audited.write("a.jsonl", line(1))
    stage(audited)

    with ThreadPoolExecutor(2) as pool:
        audits = list(pool.map(lambda _: audit_now(audited, docs=tmp_path / "docs"), range(2)))

    assert [each.passed for each in audits] == [True, True]
    assert publish_now(audited).loaded == 1


def test_audited_is_what_would_be_published(audited):
    """Records that took effect before, or are twice in the batch, are not twins of anything."""
    declared = replace(audited.declared, producer=RecordProducer(name="note", sequence="id"))
    audited.write("a.jsonl", line(1) + line(1) + line(2))
    settings = settings_of(audited)

    first = load(declared, settings, batch=Batch("first"), executor=InThisProcess())
    audited.write("b.jsonl", line(2) + line(3))
    again = load(declared, settings, batch=Batch("again"), executor=InThisProcess())

    assert (first.loaded, again.loaded, again.duplicates) == (2, 1, 1)
    assert audited.ask("SELECT rows FROM onceload.audit ORDER BY audit_id") == [(2,), (1,)]


def test_nothing_new_meets_every_suite(audited):
    declared = replace(audited.declared, producer=RecordProducer(name="note", sequence="id"))
    audited.write("a.jsonl", line(1, amount="3.00"))
    load(declared, settings_of(audited), batch=Batch("first"), executor=InThisProcess())
    audited.write("b.jsonl", line(1, amount="-3.00"))

    assert load(declared, settings_of(audited), batch=Batch("again"), executor=InThisProcess()).duplicates == 1


@pytest.mark.parametrize(
    "wrong",
    [
        Expectation(type="expect_column_values_to_be_nonsense", kwargs={"column": "id"}),
        Expectation(type="expect_column_values_to_be_between", kwargs={"column": "id", "least": 1}),
    ],
    ids=["no such expectation", "no such kwarg"],
)
def test_a_suite_that_cannot_be_asked_is_refused_with_its_file(audited, wrong):
    audited.declared = replace(audited.declared, suite=replace(audited.declared.suite, expectations=(wrong,)))
    audited.write("a.jsonl", line(1))
    stage(audited)

    with pytest.raises(SettingRefused, match=r"suite quality/events.yaml, expectation 1 \(expect_column_values_to_be"):
        audit_now(audited)
    assert audited.rows() == []


def test_an_expectation_that_cannot_be_looked_at_is_not_met(audited):
    wrong = replace(POSITIVE, kwargs={"column": "note", "min_value": 0})
    audited.declared = replace(audited.declared, suite=replace(audited.declared.suite, expectations=(wrong,)))
    audited.write("a.jsonl", line(1))
    stage(audited)

    with pytest.raises(AuditFailed, match="it could not be evaluated"):
        audit_now(audited)


def test_the_pages_show_each_audit(audited, tmp_path):
    docs = tmp_path / "docs"
    for number in range(2):
        audited.write(f"{number}.jsonl", line(number))
        stage(audited, f"batch {number}")
        audit_now(audited, f"batch {number}", docs=docs)
        publish_now(audited, f"batch {number}")

    shown = [path for path in docs.glob("validations/**/*.html") if "amount" in path.read_text()]
    assert (docs / "index.html").exists()
    assert len(shown) == 2


def test_an_audit_writes_its_own_page_and_leaves_those_of_others_alone(audited, tmp_path):
    docs, other = tmp_path / "docs", replace(audited.declared.suite, name="others")
    for number, suite in enumerate((audited.declared.suite, other)):
        audited.declared = replace(audited.declared, suite=suite)
        audited.write(f"{number}.jsonl", line(number))
        stage(audited, f"batch {number}")
        audit_now(audited, f"batch {number}", docs=docs)
        publish_now(audited, f"batch {number}")
        if not number:
            (first,) = docs.glob("validations/**/*.html")
            os.utime(first, (1e9, 1e9))

    assert first.stat().st_mtime == 1e9
    assert {path.name for path in docs.glob("expectations/*.html")} == {"events.html", "others.html"}
    index = (docs / "index.html").read_text()
    assert all(f"batch%20{number}/" in index for number in range(2))


@pytest.mark.long
def test_pipelines_that_audit_at_once_find_all_their_pages(audited, tmp_path):
    docs = tmp_path / "docs"
    for number in range(6):
        audited.write(f"{number}.jsonl", line(number))
        stage(audited, f"batch{number}")

    def audit(number):
        suite = replace(audited.declared.suite, name=f"suite{number % 2}")
        settings = replace(settings_of(audited), docs=docs)
        return audit_batch(replace(audited.declared, suite=suite), settings, batch=Batch(f"batch{number}"))

    with ThreadPoolExecutor(3) as pool:
        assert all(each.passed for each in pool.map(audit, range(6)))

    assert len(list(docs.glob("validations/**/*.html"))) == 6
    index = (docs / "index.html").read_text()
    assert [number for number in range(6) if f"/batch{number}/" not in index] == []


def test_upkeep_removes_pages_that_are_old_and_what_they_were_made_of(audited, tmp_path):
    docs = tmp_path / "quality"
    for number in range(2):
        audited.write(f"{number}.jsonl", line(number))
        stage(audited, f"batch{number}")
        audit_now(audited, f"batch{number}", docs=docs)
        publish_now(audited, f"batch{number}")
    for path in (*docs.rglob("batch0/*/*.html"), *docs.rglob("batch0/*/*.json")):
        os.utime(path, (1e9, 1e9))

    assert delete_unused(audited.engine, home=tmp_path)["old_pages_of_audits"] == 1

    left = [str(path.relative_to(docs)) for path in docs.rglob("batch*")]
    assert sorted(left) == ["results/events/batch1", "validations/events/batch1"]
    assert (docs / "index.html").exists()
    assert delete_unused(audited.engine, home=tmp_path / "not there")["old_pages_of_audits"] == 0
    # The next audit goes on, and its index shows what is left.
    audited.write("2.jsonl", line(2))
    stage(audited, "batch2")
    audit_now(audited, "batch2", docs=docs)
    index = (docs / "index.html").read_text()
    assert [number for number in range(3) if f"/batch{number}/" in index] == [1, 2]


def test_no_password_of_the_database_is_in_the_pages(audited, tmp_path):
    audited.write("a.jsonl", line(1))
    audited.dsn = audited.dsn.replace("@", ":very-secret@")
    assert "very-secret" in audited.dsn
    stage(audited)
    audit_now(audited, docs=tmp_path / "docs")

    pages = [path for path in (tmp_path / "docs").rglob("*") if path.is_file()]
    assert any(path.name == "index.html" for path in pages)
    assert [path for path in pages if b"very-secret" in path.read_bytes()] == []
