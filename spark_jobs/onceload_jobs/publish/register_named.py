"""Register the producers that staged rows name, before their ids are compared with what each consumed."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from onceload_core.errors import SettingRefused
from onceload_core.ports import NAME_BYTES_MAX, Advance
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import array, statements
from onceload_core.spans import SEQUENCE_END
from onceload_jobs.batch.job import Job, TransformRefused
from onceload_jobs.batch.named_file import GENERATION
from onceload_jobs.pipeline.declared import RecordProducer
from onceload_jobs.publish.source import WORK_MEMORY
from onceload_jobs.write.sql import filled, literal, quoted, run

SQL = statements("register_named.sql", package=__package__)
#: A column of the target may have a collation in which different texts are equal.
_BY_BYTES = 'COLLATE pg_catalog."C"'


@dataclass(frozen=True, kw_only=True)
class Naming:
    """How the rows of a table, which is called `staged`, name their producer and their sequence id, as SQL."""

    rows: str
    producer: RecordProducer

    @property
    def called(self) -> str:
        return f"CAST(staged.{quoted(self.producer.name)} AS text) {_BY_BYTES}"

    @property
    def sequence(self) -> str:
        return f"CAST(staged.{quoted(self.producer.sequence)} AS bigint)"


def register_named(
    engine: Engine, ledger: PostgresLedger, job: Job, naming: Naming, advances: Sequence[Advance], *, named: str
) -> None:
    """Register all producers that the rows name, and gather them in the table `named`; or refuse their names."""
    if job.declared.transform is not None:
        _refuse_strange(engine, job, naming)
    _gather(engine, naming, named)
    ledger.register_all(job.declared.name, named, generation=GENERATION)
    _refuse_files(engine, job, advances, named)


def _refuse_strange(engine: Engine, job: Job, naming: Naming) -> None:
    """Refuse invalid names and ids made by a transform; those of files were checked when read."""
    full_name = f"{literal(naming.producer.prefix)} || {naming.called}"
    find = filled(SQL["find_strange"], rows=naming.rows, full_name=full_name, sequence=naming.sequence)
    with engine.begin() as connection:
        found = connection.execute(find, {"name_bytes_max": NAME_BYTES_MAX, "sequence_end": SEQUENCE_END}).first()
    if found is not None:
        raise TransformRefused(
            job.declared.name,
            f"a row has producer {_shown(found[0])} and {naming.producer.sequence} {_shown(found[1])}. A row needs a "
            f"producer name of at most {NAME_BYTES_MAX} bytes, and a sequence id from 0 to {SEQUENCE_END - 1}",
        )


def _shown(value: object) -> str:
    return "null" if value is None else f"{value!s:.80}"


def _gather(engine: Engine, naming: Naming, named: str) -> None:
    gather = filled(SQL["gather"], named=named, rows=naming.rows, called=naming.called, sequence=naming.sequence)
    with engine.begin() as connection:
        run(connection, WORK_MEMORY)
        connection.execute(gather, {"prefix": naming.producer.prefix})


def _refuse_files(engine: Engine, job: Job, advances: Sequence[Advance], named: str) -> None:
    """Refuse a record producer with the name of a file: each would count as consumed by the other."""
    binds = {
        "pipeline": job.declared.name,
        "generation": GENERATION,
        "read": array(each.producer_id for each in advances),
    }
    with engine.begin() as connection:
        taken = connection.execute(filled(SQL["find_file"], named=named), binds).scalar_one_or_none()
    if taken is not None:
        found = f"{taken}, which is also the name of a file"
        raise SettingRefused("producer", found, "other names for files (rename it)")
