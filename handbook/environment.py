"""The page of environment variables."""

import re
from collections.abc import Iterator

from handbook.code import PACKAGES, ROOT
from handbook.markdown import page

EXAMPLE = ROOT / ".env.example"
#: A test compares these with the names in the code.
VARIABLES = {
    "ONCELOAD_DSN": "The address of the database: `postgresql://user:password@host:port/database`, with special "
    "characters percent-encoded. Default: an embedded Postgres below `ONCELOAD_HOME`. Under Airflow it replaces the "
    "connection `onceload`.",
    "ONCELOAD_HOME": "The folder for the embedded Postgres, the pages of audits and the files of `make run`. Default: "
    "`.onceload` in the working directory.",
    "ONCELOAD_SPARK": "The address of a Spark Connect server, `sc://host:port`, on which loads run "
    "([what runs a load](../how-to/parallel-loading.md#what-runs-a-load)). Default: loads run in processes of this "
    "machine. Under Airflow it replaces the connection `onceload_spark`.",
    "ONCELOAD_SPARK_UI": "The address of the pages of this server, such as `http://host:4040`. The report of a load, "
    "its entry in the ledger and its task in Airflow link to it. Default: no link, except to a server that `onceload "
    "spark start` has started.",
    "ONCELOAD_STAGE": "Where rows of a staged batch wait until they are copied: the absolute path of a folder, or "
    "`s3://bucket/folder`, that the load and its workers share ([cluster](../how-to/cluster.md#where-rows-wait)). "
    "Default: a folder of the load's machine, below `TMPDIR`.",
    "ONCELOAD_EMBEDDED_KEEP": "How long the embedded Postgres runs on after a command, such as `30s`, `10m` or `1h`, "
    "so that psql can connect ([look at rows](../how-to/look.md)). Default: 10 minutes after a command on a terminal.",
    "ONCELOAD_LOG": "The level of the events on stderr: `warning` (the default), `info` or `debug`. `debug` also "
    "prints the traceback of an error. Under Airflow, the default is `info`.",
    "ONCELOAD_LOG_FORMAT": "The format of these events: `text` (the default) or `json`, one document per line. "
    "`--log-format` replaces it.",
    "ONCELOAD_PIPELINES": "The folder of pipeline files, for the DAGs that are started by hand and for workers. "
    "Default: `pipelines` in the working directory.",
    "ONCELOAD_ALERTS": "A JSON list of Airflow notifiers, which send alerts of failed tasks "
    "([alerts](../how-to/alerts.md)). Default: no alerts.",
    "ONCELOAD_LATE_AFTER_S": "Seconds after which an alert is sent for a run that has not ended. Default: no such "
    "alerts.",
    "ONCELOAD_OUTCOME_FILE": "A file into which a command writes its exit code and its error as JSON. Airflow's tasks "
    "set it for the loads that they submit to Spark.",
}


def environment_page() -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    compose = [f"| `{name}` | {default} | {meaning} |" for name, default, meaning in compose_variables()]
    return page(
        "Environment variables",
        "An empty variable counts as unset. Stores, Spark and Airflow read variables of their own "
        "([connections](../how-to/connections.md)).",
        "\n".join(["| variable | meaning |", "| --- | --- |", *rows]),
        "## The compose file\n\n`docker-compose.yml` reads these from `.env` ([deploy](../how-to/deploy.md)).",
        "\n".join(["| variable | value in `.env.example` | meaning |", "| --- | --- | --- |", *compose]),
    )


def variables_in_code() -> set[str]:
    """Every variable of Onceload that the code names."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {name for path in paths for name in re.findall(r"\bONCELOAD_[A-Z_]+\b", path.read_text("utf-8"))}


def compose_variables() -> Iterator[tuple[str, str, str]]:
    """Name, value and comment of each variable; a comment counts for all variables below it."""
    comment: list[str] = []
    was_comment = False
    for line in EXAMPLE.read_text("utf-8").splitlines():
        is_comment = line.startswith("# ") and not line.startswith("# --")
        if is_comment:
            comment = [*(comment if was_comment else []), line.removeprefix("# ")]
        elif "=" in line:
            name, _, value = line.partition("=")
            yield name, f"`{value}`" if value else "", " ".join(comment)
        elif line.startswith("# --"):
            comment = [line.strip("# -").rstrip()]
        was_comment = is_comment
