"""Where the elements of a JSON array begin and end, however its bytes are cut into blocks."""

import json
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_jobs.files.fingerprints import fingerprint_of
from onceload_jobs.formats.chunks import FileRefused, RowGroup
from onceload_jobs.formats.json import documents
from onceload_jobs.formats.json.documents import elements_of, read_documents
from onceload_jobs.formats.json.tokens import Tokens

_TEXTS = st.text(alphabet='ab"\\[]{},:é \n', max_size=8)
_VALUES = st.recursive(
    st.none() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_RECORDS = st.lists(st.dictionaries(_TEXTS, _VALUES, max_size=3), max_size=12)


def groups_of(tmp_path, raw: bytes, *, step: int = 2**20, group: int = 2**20) -> tuple[RowGroup, ...]:
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    read_documents.cache_clear()
    with patch.object(documents, "_STEP_BYTES", step), patch.object(documents, "GROUP_BYTES", group):
        return read_documents(str(path), fingerprint_of(str(path), end=len(raw)), None)


def elements(raw: bytes, groups: tuple[RowGroup, ...]) -> list[object]:
    found = list[object]()
    for group in groups:
        bounds = elements_of(raw[group.first_byte : group.end_byte])
        assert bounds is not None
        read = [json.loads(raw[group.first_byte :][first:end]) for first, end in zip(*bounds, strict=True)]
        assert (group.first, group.end) == (len(found), len(found) + len(read))
        found += read
    return found


@given(records=_RECORDS, step=st.integers(1, 40), group=st.integers(1, 60), indent=st.none() | st.integers(0, 2))
def test_every_element_is_in_one_group_and_no_block_moves_it(tmp_path_factory, records, step, group, indent):
    folder = tmp_path_factory.mktemp("json")
    raw = json.dumps(records, indent=indent, ensure_ascii=False).encode()

    found = groups_of(folder, raw, step=step, group=group)

    assert elements(raw, found) == records
    assert found == groups_of(folder, raw, group=group)


@given(records=_RECORDS, cut=st.integers(1, 200), step=st.integers(1, 40))
def test_no_beginning_of_an_array_passes_for_a_whole_one(tmp_path_factory, records, cut, step):
    raw = json.dumps(records, ensure_ascii=False).encode()
    begun = raw[: -min(cut, len(raw))]

    with pytest.raises(FileRefused, match=r"not closed|holds no JSON"):
        groups_of(tmp_path_factory.mktemp("json"), begun, step=step)


def test_a_large_record_has_a_group_of_its_own(tmp_path):
    raw = b"[1,22," + b"3" * 20 + b",4,5]"

    groups = groups_of(tmp_path, raw, group=10)

    assert [raw[each.first_byte : each.end_byte] for each in groups] == [b"1,22", b"3" * 20, b"4,5"]
    assert [(each.first, each.end) for each in groups] == [(0, 2), (2, 3), (3, 5)]


def test_a_backslash_at_the_end_of_a_block_escapes_the_next_byte():
    for raw, is_open in ((rb'"a\"', True), (rb'"a\\"', False), (rb'"a\\\"', True), (rb'"\\\\"', False)):
        for cut in range(1, len(raw)):
            tokens = Tokens()
            tokens.feed(raw[:cut])
            tokens.feed(raw[cut:])
            assert tokens.in_string is is_open


def test_brackets_that_are_left_open_are_of_another_content():
    assert elements_of(b'{"a":1},{"b"') is None
    assert elements_of(b'"b":1},{"b":2}') is None
    assert [each.tolist() for each in elements_of(b"{},{}") or ()] == [[0, 3], [2, 5]]
