import pytest

from onceload_jobs.files.addresses import shown, with_login


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/a.jsonl", "/data/*.jsonl"),
        ("ftp://me:secret@host/in/a.jsonl", "ftp://me:secret@host/in/*.jsonl"),
        ("ftp://me:p@ss@host/in/a@b.jsonl", "ftp://me:p@ss@host/in/*.jsonl"),
        ("simplecache::ftp://me:secret@host/in/a.jsonl", "simplecache::ftp://me:secret@host/in/*.jsonl"),
        ("zip://a.jsonl::ftp://me:secret@host/in.zip", "zip://*.jsonl::ftp://me:secret@host/in.zip"),
        ("s3://bucket/a.jsonl", "s3://bucket/*.jsonl"),
        ("abfss://box@account.example/a.jsonl", "abfss://box@account.example/*.jsonl"),
        ("abfss://me:secret@account.example/a.jsonl", "abfss://me:secret@account.example/*.jsonl"),
    ],
)
def test_a_stored_address_holds_no_password_and_is_found_again(url, path):
    written = shown(url)

    assert "secret" not in written
    assert "p@ss" not in written
    assert with_login(written, of=path) == url


def test_a_container_is_not_a_login():
    assert shown("abfss://box@account.example/in/a.jsonl") == "abfss://box@account.example/in/a.jsonl"
