from onceload_core.names import ProducerId
from onceload_jobs.formats.mappings import read_mappings
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import UnknownFields


def test_a_long_name_of_an_undeclared_field_is_shown_by_its_beginning():
    name = "n" * 1000

    records = read_mappings(
        [{"id": 1, name: 2}],
        producer_id=ProducerId(1),
        columns=(parse_column("id", "bigint"),),
        unknown_fields=UnknownFields.FAIL,
    )

    (bad,) = records.bad
    assert (records.rows.num_rows, bad.column) == (0, "n" * 80)
    assert bad.reason == f"the field '{'n' * 79} is not declared"
