"""Rows in a file of this machine whose records name their producer.

The session that reads the records looks up the ids of their producers, and counts the sequence ids that they consume.
Publishing then only copies the rows. This works only if all ids are new. If an id might be repeated or already
consumed, the rows go to the table of the stage, where the server decides about each row.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Engine

from onceload_core.errors import LimitReached, PipelineBusy
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import statements
from onceload_jobs.batch.stage import Stage
from onceload_jobs.pipeline.columns import Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import RecordProducer
from onceload_jobs.write.binary_copy import copy_in
from onceload_jobs.write.sql import filled

SQL = statements("named_file.sql", package=__package__)
#: Producers that records name have no later generations.
GENERATION = 1
Numbers: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"
#: The column with the producer's id. No other column has this name, because names have no such character.
_ID = "\0id"
_NEW_NAMES = (
    Column(name="number", type=ColumnType(kind=Kind.BIGINT)),
    Column(name="name", type=ColumnType(kind=Kind.TEXT)),
)
#: A limit for the memory of names: each counts as its own bytes and about 200 more.
_BYTES_MAX = 400 * 2**20
_BYTES_PER_NAME = 200


class NeedsTable(Exception):
    """The server has to decide about each row.

    An id might be repeated or already consumed, a name is that of a file, there are too many names, or some rows are
    already in the table.
    """


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Contiguous sequence ids: of which producer, the first one, and the end."""

    producers: Numbers
    firsts: Numbers
    ends: Numbers

    @classmethod
    def of_ids(cls, producers: Numbers, ids: Numbers) -> "Runs":
        """The runs of ids, each of which may occur once."""
        return _joined(cls(producers=producers, firsts=ids, ends=ids + 1))

    @classmethod
    def of_all(cls, several: Sequence["Runs"]) -> "Runs":
        return _joined(
            cls(
                producers=np.concatenate([each.producers for each in several]),
                firsts=np.concatenate([each.firsts for each in several]),
                ends=np.concatenate([each.ends for each in several]),
            )
        )

    def __len__(self) -> int:
        return len(self.producers)


def _joined(runs: Runs) -> Runs:
    """In order, and with one run instead of several that follow each other directly."""
    order = np.lexsort((runs.firsts, runs.producers))
    producers, firsts, ends = runs.producers[order], runs.firsts[order], runs.ends[order]
    goes_on = producers[1:] == producers[:-1]
    if np.any(goes_on & (firsts[1:] < ends[:-1])):
        raise NeedsTable
    follows = goes_on & (firsts[1:] == ends[:-1])
    are_first, are_last = np.append(True, ~follows)[: len(runs)], np.append(~follows, True)[: len(runs)]
    return Runs(producers=producers[are_first], firsts=firsts[are_first], ends=ends[are_last])


@dataclass(frozen=True, kw_only=True)
class NamedFile:
    """The content of a file."""

    rows: pa.Table
    #: The producer of each row.
    ids: pa.ChunkedArray
    runs: Runs

    @classmethod
    def of(cls, rows: pa.Table, known: "KnownProducers") -> "NamedFile":
        # All chunks have the same dictionary.
        named = rows.column(known.producer.name).dictionary_encode()
        numbers = np.concatenate([each.indices.to_numpy() for each in named.chunks])
        sequence = rows.column(known.producer.sequence).cast(pa.int64()).to_numpy()
        runs = Runs.of_ids(numbers, sequence)
        ids, ends = known.look_up(named.chunk(0).dictionary)
        if np.any(runs.firsts < ends[runs.producers]):
            raise NeedsTable
        runs = Runs(producers=ids[runs.producers], firsts=runs.firsts, ends=runs.ends)
        return cls(rows=rows, ids=pa.chunked_array([ids[numbers]]), runs=runs)

    def encoded(self) -> Iterator[bytes]:
        """Two streams in Arrow's format, which `read_named_file` reads."""
        runs = {"producers": self.runs.producers, "firsts": self.runs.firsts, "ends": self.runs.ends}
        for table in (self.rows.append_column(_ID, self.ids), pa.table(runs)):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            yield sink.getvalue()


def read_named_file(folder: str, name: str) -> NamedFile:
    # Not mapped: a file that is cut meanwhile would end the process.
    with pa.OSFile(str(Path(folder) / name)) as file:
        rows, runs = (pa.ipc.open_stream(file).read_all() for _ in range(2))
    return NamedFile(
        rows=rows.drop_columns([_ID]),
        ids=rows.column(_ID),
        runs=Runs(**{name: runs.column(name).to_numpy() for name in runs.column_names}),
    )


class KnownProducers:
    """The producers that this process has looked up for a stage, and the end of what each had consumed then."""

    def __init__(self, engine: Engine, pipeline: str, stage: Stage, producer: RecordProducer) -> None:
        self._engine, self._pipeline, self.producer = engine, pipeline, producer
        self._table = stage.beside(f"names {token_hex(8)}")
        self._places: dict[str, int] = {}
        self._ids = self._ends = np.empty(0, np.int64)
        self._bytes = 0
        #: Sessions may be threads of one process.
        self._alone = Lock()

    def look_up(self, names: pa.Array) -> tuple[Numbers, Numbers]:
        """The ids of different names, which are registered if they are new, and the ends."""
        with self._alone:
            places = self._places_of(names)
            return self._ids[places], self._ends[places]

    def _places_of(self, names: pa.Array) -> Numbers:
        texts: list[str] = names.to_pylist()
        places = np.fromiter(map(self._places.get, texts, repeat(-1)), np.int64, len(texts))
        new = np.flatnonzero(places < 0)
        if len(new):
            places[new] = np.arange(len(self._ids), len(self._ids) + len(new))
            self._learn(pc.binary_join_element_wise(self.producer.prefix, names.take(pa.array(new)), ""))
            self._places.update(zip(map(texts.__getitem__, new.tolist()), places[new].tolist(), strict=True))
        return places

    def _learn(self, names: pa.Array) -> None:
        """Look names up; those that are new are registered, in a transaction of their own."""
        self._bytes += names.nbytes + _BYTES_PER_NAME * len(names)
        if self._bytes > _BYTES_MAX:
            raise NeedsTable
        self._write(names)
        ids, ends = self._find(len(names))
        if not ids.all():
            # At the limit of producers, or if another load holds the lock for too long, publishing deals with it.
            with _needing_the_table():
                PostgresLedger(self._engine).register_all(self._pipeline, self._table, generation=GENERATION)
            ids, ends = self._find(len(names))
        if not ids.all():
            # An idle producer may be deleted right after it was registered.
            raise NeedsTable
        self._ids, self._ends = np.append(self._ids, ids), np.append(self._ends, ends)

    def _write(self, names: pa.Array) -> None:
        numbered = pa.table([np.arange(len(names)), names], names=[column.name for column in _NEW_NAMES])
        with self._engine.begin() as connection:
            connection.execute(filled(SQL["empty_names"], names=self._table))
            copy_in(connection, numbered, table=self._table, names=numbered.column_names, columns=_NEW_NAMES)

    def _find(self, count: int) -> tuple[Numbers, Numbers]:
        """The id and the end of each name in the table, by its number; 0 stands for none."""
        with self._engine.begin() as connection:
            binds = {"pipeline": self._pipeline, "generation": GENERATION}
            found = connection.execute(filled(SQL["look_up"], names=self._table), binds).one()
        if found.names_of_files:
            raise NeedsTable
        ids, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
        numbers = np.array(found.numbers or (), np.int64)
        ids[numbers], ends[numbers] = found.ids or (), found.ends or ()
        return ids, ends


@contextmanager
def _needing_the_table() -> Iterator[None]:
    try:
        yield
    except (LimitReached, PipelineBusy) as error:
        raise NeedsTable from error


@lru_cache(maxsize=1)
def known_producers(engine: Engine, pipeline: str, stage: Stage, producer: RecordProducer) -> KnownProducers:
    """Those of the last stage that this process worked for."""
    return KnownProducers(engine, pipeline, stage, producer)
