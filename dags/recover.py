"""The DAG `recover`: repair damage or loss, after a person has approved what is deleted (airflow DAG)."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, Param

from onceload_airflow.by_hand import DEFAULTS, PIPELINES, pipeline_param
from onceload_airflow.recovery import REBUILD, REWIND, STATE, Apply, Approve, Conclude, Look, Rebuild, runs_of
from onceload_airflow.upkeep import Verify

_ABOUT = """| what | when | what it does |
| --- | --- | --- |
| state | the producer table was damaged | compares the ledger with the live state, and repairs what differs |
| rewind | rows were damaged, or loaded wrongly | deletes rows and state after a position, and loads them again |
| rebuild | the database is lost | loads everything into a new database, and compares it with an exported snapshot |

It starts with a dry run, and asks for approval before it deletes rows. It makes its change in one transaction, which
fences all running sessions of the pipeline. At the end it verifies the rows.
"""
_WAYS = {STATE: "repair producers", REWIND: "roll back and load again", REBUILD: "load all into a new database"}
_SOME = "none_failed"

with DAG(
    "recover",
    description="Repair damaged or lost data of a pipeline",
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
            description="The kind of recovery; see the docs of this DAG.",
        ),
        "position": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            description="state: empty replays the whole ledger; the position of a snapshot starts from that snapshot, "
            "which is faster but does not find older damage. rewind: the position to go back to; 0: before the first "
            "load; empty: that of the latest snapshot. If the pipeline has no snapshot yet, give a position.",
        ),
        "expected_position": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            description="rewind: the position that the pipeline should be at when the dry run begins; otherwise the "
            "run fails, and nothing is changed. Empty: not checked.",
        ),
        "accept_differences": Param(
            default=False,
            type="boolean",
            description="rewind: continue even if rows are lost or duplicated, so that the deleted rows differ from "
            "the receipts, or if business ids are no longer remembered with which rewound commits found duplicates.",
        ),
        "snapshot_file": Param(
            None,
            type=["null", "string"],
            description="rebuild: the path of an exported snapshot on the worker, to compare the result with.",
        ),
        "deep": Param(default=False, type="boolean", description="Verify every value, not only counts."),
    },
    tags=["onceload", "recovery"],
):
    of_pipeline = {"pipelines": PIPELINES}
    look = Look(
        task_id="look",
        doc_md="Dry run: shows what would be changed and deleted. If there is nothing to do, the rest is skipped.",
        **of_pipeline,
    )
    approve = Approve(
        task_id="approve",
        subject="Recover {{ params.pipeline }}: {{ params.what }}",
        body="{{ ti.xcom_pull(task_ids='look') }}",
        ignore_downstream_trigger_rules=True,
        execution_timeout=None,
        # An answer within a second may arrive before Airflow has stored the question, and then it asks again.
        retry_delay=timedelta(seconds=2),
        response_timeout=timedelta(days=1),
        doc_md="Waits up to one day for approval if rows would be deleted. If rejected, nothing is changed.",
    )
    apply = Apply(
        task_id="apply",
        doc_md="One transaction: fences sessions, deletes or repairs, and records it in the ledger.",
        **of_pipeline,
    )
    rebuild = Rebuild(task_id="rebuild", doc_md="Only for rebuild: Spark loads all files.", **of_pipeline)
    reload = runs_of(
        apply,
        task_id="reload",
        doc_md="Only for rewind: starts a run of the pipeline's own DAG for each day that was rolled back.",
    )
    verify = Verify(
        task_id="verify", trigger_rule=_SOME, doc_md="Compares files and rows with the ledger.", **of_pipeline
    )
    conclude = Conclude(
        task_id="conclude", trigger_rule=_SOME, doc_md="The result. Fails if a person must finish it.", **of_pipeline
    )
    look >> approve >> apply >> rebuild >> reload >> verify >> conclude
