"""What was damaged or lost comes back, after somebody has seen what that would delete: an airflow DAG."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param
from onceload_airflow.by_hand import DEFAULTS, PIPELINES, pipeline_param
from onceload_airflow.recovery import REBUILD, REWIND, STATE, Apply, Approve, Conclude, Look, Rebuild, runs_of
from onceload_airflow.upkeep import Verify

_ABOUT = """| what | when | what it does |
| --- | --- | --- |
| state | the producer table was damaged | the whole ledger is compared with the live state; what differs is repaired |
| rewind | rows were damaged, or loaded wrongly | rows and state after a position go, and are loaded again |
| rebuild | the database is gone | in a new one, all is loaded, and compared with an exported snapshot |

It begins with a dry run, and asks for approval where rows would be deleted. What it changes is one transaction, which
fences whoever is at work on the pipeline. In the end it verifies the rows.
"""
_WAYS = {STATE: "set producers right", REWIND: "take back and load again", REBUILD: "load all into a new database"}
_SOME = "none_failed"

with DAG(
    "recover",
    description="Bring back what was damaged or lost",
    doc_md=_ABOUT,
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    params={
        "pipeline": pipeline_param(),
        "what": Param(
            STATE,
            type="string",
            enum=list(_WAYS),
            values_display={way: f"{way}: {meaning}" for way, meaning in _WAYS.items()},
            description="Which recovery; see the page of this DAG.",
        ),
        "position": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            description="state: empty replays the whole ledger. A snapshot's position starts from that snapshot: "
            "faster, but older damage is not found. rewind: the position to go back to. Empty: the latest "
            "snapshot's. 0: before everything.",
        ),
        "accept_differences": Param(
            default=False,
            type="boolean",
            description="rewind: also where rows are lost or doubled already, so that other rows go than receipts say.",
        ),
        "snapshot_file": Param(
            None,
            type=["null", "string"],
            description="rebuild: an exported snapshot, on the disk of the worker, to compare with what was loaded.",
        ),
        "deep": Param(default=False, type="boolean", description="Verify every value as well, not only counts."),
    },
    tags=["onceload", "recovery"],
):
    of_pipeline = {"pipelines": PIPELINES}
    look = Look(
        task_id="look",
        doc_md="What would be done, and what would go; nothing to do: the rest is skipped.",
        **of_pipeline,
    )
    approve = Approve(
        task_id="approve",
        subject="Recover {{ params.pipeline }}: {{ params.what }}",
        body="{{ ti.xcom_pull(task_ids='look') }}",
        ignore_downstream_trigger_rules=True,
        execution_timeout=None,
        # Answered within a second, Airflow may not have noticed yet that it asked, and asks again.
        retry_delay=timedelta(seconds=2),
        response_timeout=timedelta(days=1),
        doc_md="Waits a day for a person, where rows would be deleted. Rejected, nothing is changed.",
    )
    apply = Apply(task_id="apply", doc_md="One transaction: fence, take back, write it into the ledger.", **of_pipeline)
    rebuild = Rebuild(task_id="rebuild", doc_md="rebuild alone: Spark loads all of it.", **of_pipeline)
    reload = runs_of(
        apply,
        task_id="reload",
        doc_md="rewind alone: runs of the pipeline's own DAG, for each day of which something went.",
    )
    verify = Verify(task_id="verify", trigger_rule=_SOME, doc_md="Files and rows as the ledger says.", **of_pipeline)
    conclude = Conclude(task_id="conclude", trigger_rule=_SOME, doc_md="What has come of it.", **of_pipeline)
    look >> approve >> apply >> rebuild >> reload >> verify >> conclude
