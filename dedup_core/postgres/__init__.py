"""The core on Postgres: the ledger, snapshots and recovery."""

from dedup_core.postgres.commit import BulkCommit
from dedup_core.postgres.connection import LedgerSettings, connect
from dedup_core.postgres.ledger import PostgresLedger
from dedup_core.postgres.recovery import Recovery, recover_state
from dedup_core.postgres.snapshots import PostgresSnapshots

__all__ = [
    "BulkCommit",
    "LedgerSettings",
    "PostgresLedger",
    "PostgresSnapshots",
    "Recovery",
    "connect",
    "recover_state",
]
