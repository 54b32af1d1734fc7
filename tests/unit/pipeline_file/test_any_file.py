"""Any file is read or refused, and nothing else ever happens."""

import timeit
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload.pipeline_file import PipelineFileRefused, read_pipeline
from tests.unit.pipeline_file.files import SAMPLES, WHOLE

CONTENTS = [WHOLE, *(path.read_text() for path in SAMPLES)]
#: What has a meaning of its own in YAML, or in a pipeline file.
WORDS = (
    """: - { } [ ] &a *a !!int !!bool !!null !!str | > ' " # % ~ <<: ? --- null no 1e3 0 -1 .inf {{ds}} \\0 \\ud800"""
)
SIGNS = st.sampled_from([*WORDS.split(), "\t", "\n", "  ", ": ", "- ", "\n---\n", "\x85"])


@pytest.fixture(scope="session")
def path(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("any")
    return folder / "p.yaml"


def read_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for problem in problems_of(path):
        assert problem.startswith(f"{path}:")
        assert problem.isprintable()


def problems_of(path: Path) -> tuple[str, ...]:
    try:
        content = path.read_bytes()
        read_pipeline(path, values={name: "a" for name in ("ds", "region") if name.encode() in content})
    except PipelineFileRefused as refused:
        return refused.problems or ("refused without a problem",)
    return ()


@given(content=st.binary(max_size=200))
def test_bytes_are_read_or_refused(path, content):
    read_or_refused(path, content)


@given(pieces=st.lists(st.one_of(SIGNS, st.text(max_size=5))))
def test_signs_are_read_or_refused(path, pieces):
    read_or_refused(path, "".join(pieces).encode(errors="replace"))


@given(data=st.data())
def test_a_damaged_pipeline_is_read_or_refused(path, data):
    content = data.draw(st.sampled_from(CONTENTS))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = start + data.draw(st.integers(0, 12))
        put = data.draw(st.one_of(SIGNS, st.text(max_size=5), st.just("")))
        content = content[:start] + put + content[end:]

    read_or_refused(path, content.encode(errors="replace"))


@given(data=st.data())
def test_a_pipeline_with_any_value_is_read_or_refused(path, data):
    lines = data.draw(st.sampled_from(CONTENTS)).splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    key = lines[number].partition(":")[0]
    lines[number] = f"{key}: {data.draw(st.one_of(SIGNS, st.text(max_size=12)))}"

    read_or_refused(path, "\n".join(lines).encode(errors="replace"))


def test_reading_takes_milliseconds():
    """Airflow parses every DAG file over and over; the quickest of several is not disturbed by a busy machine."""
    assert min(timeit.repeat(lambda: read_pipeline(SAMPLES[0]), number=1, repeat=20)) < 0.005
