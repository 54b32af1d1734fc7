"""The producer states that the ledger proves, replayed from its beginning or from a snapshot."""

from sqlalchemy import Connection, TextClause, text

from onceload_core.errors import SettingRefused, SnapshotDamaged, StateDiffers
from onceload_core.names import Position
from onceload_core.postgres.connection import Record, statements

SQL = statements("proven.sql")
#: No snapshot: the whole ledger.
BEGINNING = Position(0)


def get_reach(connection: Connection, pipeline: str, *, pipeline_id: int, after: Position) -> Record:
    """The last position of the ledger. It must have no gap after the snapshot."""
    reach = connection.execute(SQL["ledger_reach"], {"pipeline_id": pipeline_id, "after": after}).one()
    if after > reach.position:
        # Such a state counts rows as consumed that this database never had, or lost in a restore.
        raise SettingRefused("the snapshot", f"position {after}", f"at most {reach.position}, the ledger's last")
    if reach.entries != reach.position - after:
        raise StateDiffers(pipeline, reach.position, ("the ledger itself: positions are missing",))
    return reach


def rebuild_states(connection: Connection, pipeline: str, *, pipeline_id: int, after: Position, up_to: Position) -> int:
    """Put the states that the ledger proves at a position into `rebuilt`, and return their number."""
    binds = {"pipeline_id": pipeline_id, "after": after}
    if after:
        _hold_snapshot(connection, pipeline, binds)
    rebuild = _with_proven("rebuild_states", SQL["proven_states"].text)
    producers = connection.execute(rebuild, {**binds, "up_to": up_to}).rowcount
    connection.execute(SQL["index_rebuilt"])
    return producers


def add_copies(connection: Connection, pipeline_id: int) -> None:
    """Add the copies that the whole ledger proves to the states in `rebuilt`. No snapshot has them."""
    connection.execute(SQL["add_copies"], {"pipeline_id": pipeline_id})


def _hold_snapshot(connection: Connection, pipeline: str, binds: dict[str, int]) -> None:
    """Lock the snapshot against deletion, and refuse it if a part of it is missing."""
    expected = connection.execute(SQL["hold_snapshot"], binds).scalar_one_or_none()
    found = connection.execute(SQL["snapshot_size"], binds).scalar_one()
    if expected != found:
        whole = f"{expected} producers" if expected is not None else "a snapshot that is still kept"
        raise SnapshotDamaged(f"of {pipeline} at position {binds['after']}", whole, f"{found} producers")


def differing_from_rebuilt(connection: Connection, pipeline_id: int) -> tuple[str, ...]:
    """The producers whose live state differs from the one in `rebuilt`."""
    differing = _with_proven("differing_producers", "rebuilt")
    return tuple(connection.execute(differing, {"pipeline_id": pipeline_id}).scalars())


def differing_from_ledger(
    connection: Connection, *, pipeline_id: int, after: Position, up_to: Position
) -> tuple[str, ...]:
    """The same in one read-only statement."""
    differing = _with_proven("differing_producers", f"({SQL['proven_states'].text})")
    binds = {"pipeline_id": pipeline_id, "after": after, "up_to": up_to}
    return tuple(connection.execute(differing, binds).scalars())


def use_memory(connection: Connection) -> None:
    """Allow this transaction to sort and join a million states in memory."""
    connection.exec_driver_sql("SET LOCAL work_mem = '256MB'")


def _with_proven(statement: str, proven: str) -> TextClause:
    return text(SQL[statement].text.replace("{proven}", proven))
