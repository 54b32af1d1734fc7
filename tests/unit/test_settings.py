"""The settings: what is read, what is refused, and that no password is ever shown."""

from pathlib import Path

import pytest

from onceload.settings import Settings, database, read_settings
from onceload_core.errors import SettingRefused

SECRET = "s3cr3t"


def test_an_empty_environment_means_the_embedded_database():
    assert read_settings({}) == Settings(dsn=None, home=Path(".onceload"))


def test_an_empty_setting_counts_as_left_out():
    assert read_settings({"ONCELOAD_DSN": "", "ONCELOAD_HOME": ""}) == read_settings({})


@pytest.mark.parametrize(("given", "seconds"), [("", None), ("0s", 0), ("90 s", 90), ("10m", 600), ("1d", 86_400)])
def test_the_embedded_database_is_kept_for_a_time_with_its_unit(given, seconds):
    assert read_settings({"ONCELOAD_EMBEDDED_KEEP": given}).keep_s == seconds


@pytest.mark.parametrize("given", ["10", "-1s", "forever", "1w", "9999999s"])
def test_another_time_to_keep_the_embedded_database_is_refused(given):
    with pytest.raises(SettingRefused, match=r"ONCELOAD_EMBEDDED_KEEP: .* Expected a time with its unit"):
        read_settings({"ONCELOAD_EMBEDDED_KEEP": given})


@pytest.mark.parametrize(
    ("given", "stage"),
    [
        ("", None),
        ("/mnt/shared", "/mnt/shared"),
        ("/mnt/a b/", "/mnt/a b"),
        ("s3://waiting", "s3://waiting"),
        ("s3://waiting/rows/", "s3://waiting/rows"),
    ],
)
def test_rows_may_wait_in_a_folder_or_in_a_store(given, stage):
    assert read_settings({"ONCELOAD_STAGE": given}).stage == stage


@pytest.mark.parametrize(
    "given", ["stage", "./stage", "s3://", f"s3://key:{SECRET}@waiting", "gs://waiting", "s3:/waiting"]
)
def test_another_place_for_waiting_rows_is_refused(given):
    with pytest.raises(
        SettingRefused, match=r"ONCELOAD_STAGE: .* Expected the absolute path of a folder, or"
    ) as refused:
        read_settings({"ONCELOAD_STAGE": given})

    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_names_of_the_scheme_are_taken(scheme):
    dsn = f"{scheme}://ann:{SECRET}@db:5433/sales?sslmode=require"

    assert read_settings({"ONCELOAD_DSN": dsn}).dsn == dsn


def test_a_socket_s_address_reaches_libpq_as_it_is():
    dsn = "postgresql:///sales?host=/run/pg&user=ann"

    assert read_settings({"ONCELOAD_DSN": dsn}).dsn == dsn


def test_several_hosts_are_left_to_libpq():
    dsn = "postgresql://ann@one:5432,two:5433/sales"

    assert read_settings({"ONCELOAD_DSN": dsn}).dsn == dsn


@pytest.mark.parametrize(
    "dsn",
    [
        f"host=db password={SECRET}",
        f"mysql://ann:{SECRET}@db/sales",
        f"postgresql+psycopg2://ann:{SECRET}@db/sales",
        f"postgresql://ann:{SECRET}@db:port/sales",
        f"postgresql://ann:{SECRET}@[db/sales",
        f"postgresql://ann:a/{SECRET}@db/sales",
        f"postgresql://ann:a#{SECRET}@db/sales",
        f"postgresql://ann:a?{SECRET}@db/sales",
        f"postgresql://ann:a%00{SECRET}@db/sales",
        f"postgresql://db/sales?password=abc&{SECRET}",
        SECRET,
    ],
)
def test_another_address_is_refused_without_showing_it(dsn):
    with pytest.raises(SettingRefused, match=r"ONCELOAD_DSN: .*Expected postgresql://") as refused:
        read_settings({"ONCELOAD_DSN": dsn})

    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_settings_do_not_show_the_address():
    assert SECRET not in repr(read_settings({"ONCELOAD_DSN": f"postgresql://ann:{SECRET}@db/sales"}))


def test_a_given_database_is_used_as_it_is(tmp_path):
    settings = Settings(dsn="postgresql://ann@db/sales", home=tmp_path / "home")

    with database(settings) as dsn:
        assert dsn == settings.dsn

    assert not settings.home.exists()
