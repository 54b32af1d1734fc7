"""A suite's file: what it says, and what is wrong with it."""

import pytest

from onceload_jobs.pipeline.declared import Expectation, Severity
from tests.unit.pipeline_file.files import plain, problems_of, read

GOOD = """\
expectations:
  - type: expect_column_values_to_be_between
    kwargs: {column: amount, min_value: 0, max_value: 1.5, strict_max: true, parse_strings_as_datetimes: null}
  - type: expect_column_values_to_be_in_set
    kwargs:
      column: device
      value_set: [a, "1", 2]
    severity: warning
"""


def with_suite(tmp_path, content, **named):
    (tmp_path / "quality").mkdir(exist_ok=True)
    (tmp_path / "quality" / "events.yaml").write_text(content)
    added = named.get("added", "quality: {suite: quality/events.yaml, keep: 2h}")
    return plain(*named.get("changed", ()), added=added)


def test_a_suite_is_beside_its_pipeline_file(tmp_path):
    suite = read(tmp_path, with_suite(tmp_path, GOOD)).suite

    assert suite is not None
    assert (suite.name, suite.kept_s) == ("events", 7200)
    assert suite.expectations == (
        Expectation(
            type="expect_column_values_to_be_between",
            kwargs={
                "column": "amount",
                "min_value": 0,
                "max_value": 1.5,
                "strict_max": True,
                "parse_strings_as_datetimes": None,
            },
        ),
        Expectation(
            type="expect_column_values_to_be_in_set",
            kwargs={"column": "device", "value_set": ["a", "1", 2]},
            severity=Severity.WARNING,
        ),
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "quality/events.yaml:1: the file is empty"),
        ("expectations:\n", "quality/events.yaml:1: expectations: expected at least one"),
        ("expectations: some\n", "quality/events.yaml:1: expectations: expected a list"),
        ("expectations:\n  - expect_x\n", "quality/events.yaml:2: expectations.1: expected keys with values"),
        ("expectations:\n  - kwargs: {}\n", "quality/events.yaml:2: expectations.1.type: is missing"),
        ("expectations:\n  - type: unique\n", "quality/events.yaml:2: expectations.1.type: expected the name of an"),
        (GOOD.replace("warning", "bad"), "quality/events.yaml:8: expectations.2.severity: expected one of critical"),
        (GOOD.replace("severity", "severty"), "quality/events.yaml:8: expectations.2.severty: unknown key; did you"),
        (GOOD.replace("column: device", "column: devise"), "no column is called 'devise'; did you mean device?"),
    ],
)
def test_a_wrong_suite_is_reported_with_its_own_line(tmp_path, content, said):
    problems = problems_of(tmp_path, with_suite(tmp_path, content))

    assert any(said in problem for problem in problems), problems
    assert all(problem.startswith("17: quality.suite: ") for problem in problems)


def test_a_pipeline_that_commits_chunk_by_chunk_has_no_batch_to_audit(tmp_path):
    content = with_suite(tmp_path, GOOD, changed=[("publish: staged", "publish: direct")])

    (problem,) = problems_of(tmp_path, content)

    assert "quality.suite: a suite audits the whole batch before it is published, but publish: direct" in problem


def test_a_suite_that_is_not_there_is_missed_before_anything_starts(tmp_path):
    (problem,) = problems_of(tmp_path, plain(added="quality: {suite: none.yaml}"))

    assert problem == (
        f"17: quality.suite: {tmp_path}/none.yaml:1: the file cannot be read: No such file or directory; check the path"
    )
