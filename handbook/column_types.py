"""The page of the types of columns, with an example of each from docs/values.md."""

import re
from collections.abc import Mapping

from handbook.code import ROOT
from handbook.markdown import page
from onceload_jobs.pipeline.columns import _OTHER_NAMES, PRECISION_MAX, Kind, arrow_type, parse_type

VALUES = ROOT / "docs" / "values.md"


def types_page() -> str:
    rows = [f"| `{kind}` | {_other_names(kind)} | {_examples(kind)} | `{_stored_as(kind)}` |" for kind in Kind]
    return page(
        "Types of columns",
        "A column is declared with its Postgres type, and `not null` if every record must have a value. "
        "`varchar` may have a length (`varchar(20)`). `numeric` needs a precision, of at most "
        f"{PRECISION_MAX} digits, and a scale (`numeric(12,2)`). With `[]` after it, each type is an array of one "
        "dimension (`text[]`).",
        "Which values each type accepts, and what they become: [Values and types](../values.md).",
        "| type | other names | accepts, for example | read from Parquet as |\n| --- | --- | --- | --- |\n"
        + "\n".join(rows),
    )


def _other_names(kind: Kind) -> str:
    return ", ".join(f"`{name}`" for name, meant in _OTHER_NAMES.items() if meant is kind)


def _stored_as(kind: Kind) -> str:
    return str(arrow_type(parse_type("", _with_digits(kind))))


def _with_digits(kind: Kind) -> str:
    return "numeric(12,2)" if kind is Kind.NUMERIC else kind.value


def _examples(kind: Kind) -> str:
    return accepted_examples().get(kind.value, "")


def accepted_examples() -> Mapping[str, str]:
    """For each type, a JSON value and a text that the tables of the page say are accepted."""
    found: dict[str, dict[str, str]] = {}
    for line in VALUES.read_text("utf-8").splitlines():
        match = re.fullmatch(r"\| `([a-z ]+)(?:\([\d,]+\))?` \| (JSON|text|CSV) \| (`[^|]+`) \| (.*?) \| .* \|", line)
        if match and not match[4].startswith("refused"):
            found.setdefault(match[1], {}).setdefault("text" if match[2] != "JSON" else "JSON", match[3])
    return {name: ", ".join(dict.fromkeys(each.values())) for name, each in found.items()}
