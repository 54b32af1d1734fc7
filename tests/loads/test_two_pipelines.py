"""Any sequence of what two pipelines do with one folder and one table leaves each record there at most once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from onceload_core.declaration import LoadedByAnother
from onceload_core.errors import CallAgain
from onceload_core.names import Position
from onceload_jobs.pipeline.declared import Declared, Identity, OnRewrite, Publish
from onceload_jobs.recover.rewind import rewind
from tests.loads.conftest import Loads
from tests.loads.test_versions import edited, lines, load_now, renamed

FILES = ("a1", "a2", "b1", "b2")
STEPS = 9


class Sequence:
    """One random sequence, and what must be true after each of its steps."""

    def __init__(self, loads: Loads, seed: int) -> None:
        self._loads, self._rng = loads, Random(seed)
        self._folder, self._moved_from = "in", ""
        self._records = dict.fromkeys(FILES, 0)
        self._identity = self._rng.choice(tuple(Identity))
        self._history: list[str] = [f"seed {seed}, {self._identity}"]

    def run(self) -> None:
        self._write()
        for _ in range(STEPS):
            step = self._rng.choice(
                [self._write, self._load, self._load, self._both, self._both, self._rewind, self._move]
            )
            step()
            self._check()
        self._end()

    def _write(self) -> None:
        """Files grow. Each record has an id of its own."""
        for number, name in enumerate(FILES):
            if self._rng.random() < 0.6:
                self._records[name] += self._rng.randint(1, 3)
            ids = range(1000 * number, 1000 * number + self._records[name])
            self._loads.write(f"{self._folder}/{name}.jsonl", lines(*ids))
        self._history.append(f"write {self._records}")

    def _declared(self, name: str) -> Declared:
        pattern = self._rng.choice(["*", "a*", "b*", "[ab]1*"])
        folder = self._rng.choice([self._folder, f"./{self._folder}", f"{self._folder}/../{self._folder}"])
        source = {"path": f"{self._loads.folder}/{folder}/{pattern}.jsonl", "identity": self._identity}
        if self._moved_from:
            source["moved_from"] = f"{self._loads.folder}/{self._moved_from}"
        publish = self._rng.choice(tuple(Publish))
        declared = edited(self._loads, source=source, publish=publish, on_rewrite=OnRewrite.NEW_GENERATION)
        self._history.append(f"{name} {folder}/{pattern} {publish}")
        return declared if name == "events" else renamed(declared)

    def _outcome(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (LoadedByAnother, CallAgain) as error:
            self._history.append(type(error).__name__)

    def _load(self) -> None:
        declared = self._declared(self._rng.choice(["events", "events2"]))
        self._outcome(partial(load_now, self._loads, declared))

    def _both(self) -> None:
        both = [self._declared("events"), self._declared("events2")]
        with ThreadPoolExecutor(2) as pool:
            for each in [pool.submit(load_now, self._loads, declared) for declared in both]:
                self._outcome(each.result)

    def _rewind(self) -> None:
        if self._loads.ask("SELECT count(*) FROM onceload.ledger WHERE kind = 'load'") == [(0,)]:
            return
        pipelines = [name for (name,) in self._loads.ask("SELECT name FROM onceload.pipeline WHERE position > 0")]
        name = self._rng.choice(sorted(pipelines))
        declared = replace(self._loads.declared, pipeline=replace(self._loads.declared.pipeline, name=name))
        self._history.append(f"rewind {name}")
        rewind(declared, self._loads.engine, to=Position(0), dry_run=False)

    def _move(self) -> None:
        """Once only. The first load after it is one of a pipeline that has loaded before, if there is one."""
        if self._moved_from:
            return
        loaded = [name for (name,) in self._loads.ask("SELECT name FROM onceload.pipeline WHERE position > 0")]
        self._moved_from, self._folder = self._folder, "out"
        (self._loads.folder / self._moved_from).rename(self._loads.folder / self._folder)
        self._history.append("move")
        if loaded:
            self._outcome(partial(load_now, self._loads, self._declared(self._rng.choice(sorted(loaded)))))

    def _check(self) -> None:
        rows = self._loads.rows_or_none()
        assert len(rows) == len(set(rows)), self._history
        assert set(rows) <= self._expected(), self._history

    def _expected(self) -> set[int]:
        return {1000 * number + each for number, name in enumerate(FILES) for each in range(self._records[name])}

    def _end(self) -> None:
        """Each file is loaded by the pipeline that it belongs to, and new ones by any."""
        for name in FILES:
            for pipeline in (lambda each: each, renamed):
                source = {"path": f"{self._loads.folder}/{self._folder}/{name}.jsonl", "identity": self._identity}
                if self._moved_from:
                    source["moved_from"] = f"{self._loads.folder}/{self._moved_from}"
                declared = pipeline(edited(self._loads, source=source))
                self._outcome(partial(load_now, self._loads, declared))
        assert sorted(self._loads.rows()) == sorted(self._expected()), self._history


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("seed", range(4))
def test_two_pipelines_on_one_folder_and_one_table_load_each_record_once(loads, seed):
    Sequence(loads, seed).run()


@pytest.mark.long
@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("seed", range(4, 40))
def test_many_sequences_of_two_pipelines_load_each_record_once(loads, seed):
    Sequence(loads, seed).run()
