"""The text of a part: its data, the ratios with their goals, and a line for each way."""

from collections.abc import Iterable, Mapping, Sequence

from bench.measured import Figure, Measured, Taken, bars, table


def section(data: str, figures: Sequence[Figure], taken: Mapping[str, Taken], *, missing: Iterable[str] = ()) -> str:
    rows = [
        [name, str(Measured(tuple(each.seconds))), str(each.rates), mb(max(each.workers_bytes, default=0))]
        for name, each in taken.items()
    ]
    left_out = "".join(f"Left out: {each}.\n" for each in missing)
    return f"""{data}
{left_out}
{table(["figure", "must", "aim", "measured", "reached"], [each.row() for each in figures])}

{table(["way", "seconds", "rows/s", "largest Python worker, MB"], rows)}

```
{bars({f"{name}, rows/s": each.rates.median for name, each in taken.items()})}
```
"""


def mb(size: int) -> str:
    return f"{size / 1e6:,.0f}" if size else "-"
