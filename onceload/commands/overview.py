"""All commands, by the module that has them, in the order of the overview.

A module is imported if its command is called. All of them take longer to import than `onceload --help` may take,
because they import SQLAlchemy and the database driver.
"""

OVERVIEW: dict[str, dict[str, str]] = {
    "setup": {
        "init": "create or upgrade the schema",
        "doctor": "check Python, Java, database, schema, rights, disk and clock",
    },
    "editor": {
        "schema": "print the JSON Schema of pipeline files, or write it where editors find it",
    },
    "draft": {
        "draft": "write a pipeline file for data files, from a sample of their records",
    },
    "loads": {
        "validate": "check a pipeline file, and report every error in it",
        "plan": "show which files and bytes a load would read, and why it skips the rest",
        "load": "load new records, exactly once",
        "stage": "read new records into a staging table; the target does not change yet",
        "audit": "check a staged batch with the pipeline's suite, or draft a suite",
        "publish": "write a staged batch to the target, in one commit",
    },
    "look": {
        "show": "show the columns of a table and its rows, newest first",
        "sql": "run SQL on the database, read-only unless --write is given",
    },
    "verify": {
        "verify": "compare files and rows with the ledger, and list the differences",
        "why": "explain why a file is or is not loaded, and what the next load does with it",
    },
    "status": {
        "status": "show each pipeline with its state, what to do, its position and its last commit",
    },
    "views": {
        "producers": "show the producers of a pipeline (files or devices), and what is loaded of each",
        "ledger": "show the commits of a pipeline, newest first",
        "sessions": "show the sessions of a pipeline, their epochs and what they hold",
        "audits": "show the audit results of a pipeline, newest first",
    },
    "deliveries": {
        "consume": "load without Spark, as one of several parallel sessions",
        "deliveries": "show deliveries that wait, are in progress or are dead letters; redeliver or abandon them",
    },
    "quarantine": {
        "quarantine": "show records that could not be loaded; fix, retry or discard them",
    },
    "snapshots": {
        "snapshot": "take, list and export snapshots: the states of all producers at one position",
    },
    "pausing": {
        "pause": "stop all loads of a pipeline, for a repair or an edit, until it is resumed",
        "resume": "let loads of a paused pipeline run again",
    },
    "recover": {
        "recover": "repair producer states, reload damaged rows, or rebuild a lost database",
    },
    "maintain": {
        "maintain": "delete old sessions and audits, idle producers and unused staging tables",
    },
    "spark": {
        "spark": "run a Spark on this machine that stays, so that loads need not start one",
    },
    "services": {
        "ui": "serve pages that show the state of all loads",
        "metrics": "print or serve metrics for Prometheus",
        "run": "run Postgres, Airflow and growing sample files on this machine",
        "cluster": "run a Spark master and workers on this machine",
        "demo": "show on this machine how loads survive a kill, a broken file and deleted rows",
    },
}
