"""The core on Postgres: the ledger, snapshots and recovery."""

from onceload_core.postgres.commit import BulkCommit, BulkSettlement
from onceload_core.postgres.connection import LedgerSettings, connect
from onceload_core.postgres.ledger import PostgresLedger
from onceload_core.postgres.recovery import Recovery, recover_state
from onceload_core.postgres.snapshots import PostgresSnapshots

__all__ = [
    "BulkCommit",
    "BulkSettlement",
    "LedgerSettings",
    "PostgresLedger",
    "PostgresSnapshots",
    "Recovery",
    "connect",
    "recover_state",
]
