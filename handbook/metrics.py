"""The page of the metrics that `onceload metrics` serves."""

from prometheus_client.metrics_core import Metric

from handbook.markdown import page
from onceload.metrics import families


def metrics_page() -> str:
    rows = [f"| `{name_of(each)}` | {each.type} | {_labels_of(each)} | {each.documentation} |" for each in families()]
    return page(
        "Metrics",
        "`onceload metrics` prints or serves these in the text format of Prometheus. "
        "How to set it up: [Monitor the loads](../how-to/monitoring.md).",
        "\n".join(["| metric | type | labels | meaning |", "| --- | --- | --- | --- |", *rows]),
    )


def name_of(metric: Metric) -> str:
    """The name as Prometheus shows it."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def _labels_of(metric: Metric) -> str:
    names: tuple[str, ...] = vars(metric).get("_labelnames", ())
    return ", ".join(names) or "none"
