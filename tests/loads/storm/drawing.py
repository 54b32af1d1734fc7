"""Sequences drawn by chance: each from a kind of pipeline, and from some of all that may happen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum, StrEnum
from random import Random

from onceload.contradictions import contradictions
from onceload_core.delivery import Mode
from onceload_core.pipeline import Guarantee
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.declared import Identity, OnRewrite, Publish, Write
from tests.loads.storm.operations import (
    Append,
    Complete,
    Consume,
    Copy,
    Cut,
    Damage,
    Edit,
    Fault,
    GrowAlike,
    Jump,
    Lack,
    Left,
    Load,
    Look,
    Maintain,
    Misplace,
    Move,
    Operation,
    Pack,
    Publishing,
    Recover,
    Redrive,
    Remove,
    Retry,
    Rewind,
    Rewrite,
    Rotate,
    Transform,
    Words,
)
from tests.loads.storm.records import TYPED, Form


@dataclass(frozen=True)
class Drawn:
    """A pipeline file, and what happens from then on."""

    words: Words
    operations: tuple[Operation, ...]

    def as_code(self) -> str:
        """As it is pasted into a test."""
        each = "".join(f"        {as_code(operation)},\n" for operation in self.operations)
        return f"Drawn(\n    {as_code(self.words)},\n    (\n{each}    ),\n)"


def as_code(value: object) -> str:
    """A value as Python writes it, without what it is in any case."""
    match value:
        case Enum():
            return f"{type(value).__name__}.{value.name}"
        case tuple():
            return f"({', '.join(map(as_code, value))}{',' if len(value) == 1 else ''})"
        case _ if is_dataclass(value) and not isinstance(value, type):
            said = ((each, getattr(value, each.name)) for each in fields(value))
            given = (f"{each.name}={as_code(found)}" for each, found in said if found != each.default)
            return f"{type(value).__name__}({', '.join(given)})"
        case _:
            return repr(value)


_FORMS = (*3 * [Form.JSONL], Form.CSV, Form.JSONL, Form.CSV, Form.PARQUET, Form.JSON, Form.FIXED)
_CHUNK_BYTES = (1, 60, 200, 400, 400, 700, 700, 1500, 1500, 4000, 2**20)
Maker = Callable[[], Operation]
#: The commits of a publisher in which it decides what is new.
_DECIDED_BEHIND = (7, 12)
#: What a pipeline may do with what is rewritten, besides taking its rows back.
_LIVING_ON = (OnRewrite.STOP, OnRewrite.NEW_GENERATION)


class Theme(StrEnum):
    """What a sequence is mostly about; beside it, anything may happen."""

    ANYTHING = "anything"
    TRIES = "several tries of one delivery"
    RENAMED = "an edit that gives files other names"
    REPLACED = "rows that others take the place of"
    NAMED = "an edit of what names records"
    KEPT = "batches that are staged and published later"
    ALIKE = "typed files of equal edges"
    COPIES = "copies that grow"
    TURNS = "records in their order"
    MADE = "records that a transform makes"
    ROTATED = "a merge of files that are rotated"
    LATE = "a merge of records that come late"
    TOGETHER = "two publishers of one batch"
    CASES = "producers whose names differ only in case"
    LACKING = "a table that lacks a declared column"
    CLOCK = "a clock that jumps"
    LAYOUTS = "an edit of where fields are"
    CUT = "files of rows that are cut or gone"
    RESIDENT = "loads over a resident Spark"


#: Without a server of Spark, loads over it are as all others are.
_DRAWN = tuple(theme for theme in Theme if theme is not Theme.RESIDENT)


def draw(seed: int, theme: Theme | None = None) -> Drawn:
    """The sequence of this seed."""
    rng = Random(seed)
    # Drawn apart, so that a sequence is the same in each typed form.
    typed = Random(f"{seed} typed").choice(TYPED)
    return _Drawing(rng, theme or rng.choice(_DRAWN), typed=typed).sequence()


def _is_refused(words: Words) -> bool:
    return any(contradictions(words.declared(pipeline="drawn", folder="/", target="drawn")))


class _Drawing:
    def __init__(self, rng: Random, theme: Theme, *, typed: Form) -> None:
        self._rng, self._typed = rng, typed
        #: How many operations there are at most behind those that begin, of which one may load what is there.
        self._most = 8 if theme is Theme.ANYTHING else 5
        self._share_loaded = 0.5
        self._brings_new = theme is Theme.TRIES
        self._most = 3 if self._brings_new else self._most
        self._keeps = theme in (Theme.KEPT, Theme.NAMED)
        self._publishes_twice = theme is Theme.TOGETHER
        self._sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 20)
        self._words = self._kind()
        of_theme: list[Maker] = self._begin(theme)
        while _is_refused(self._words):
            self._words = self._kind()
            of_theme = self._begin(theme)
        self._names = self._some_names()
        self._makers = [*self._some_makers(), *(of_theme * (60 // max(1, len(of_theme))))]

    def sequence(self) -> Drawn:
        rng = self._rng
        begin: list[Operation] = [self._append(name) for name in rng.sample(self._names, rng.randint(1, 3))]
        if rng.random() < self._share_loaded:
            begin.append(self._load())
        rest = [each for _ in range(rng.randint(1, self._most)) for each in self._operations()]
        return Drawn(self._words, (*begin, *rest))

    def _begin(self, theme: Theme) -> list[Maker]:
        """Declare what a theme needs, and say what happens in it more often than elsewhere."""
        words = self._words
        text = Form.JSONL if words.form.is_whole else words.form
        bare = Words(form=text, chunk_bytes=words.chunk_bytes, deliveries_max=words.deliveries_max)
        ways: Mapping[Theme, Callable[[Words], list[Maker]]] = {
            Theme.ANYTHING: lambda _: [],
            Theme.TRIES: self._of_tries,
            Theme.RENAMED: self._of_names,
            Theme.REPLACED: self._of_replacements,
            Theme.NAMED: self._of_named_records,
            Theme.KEPT: self._of_kept_batches,
            Theme.ALIKE: self._of_equal_edges,
            Theme.COPIES: self._of_copies,
            Theme.TURNS: self._of_turns,
            Theme.MADE: self._of_transforms,
            Theme.ROTATED: self._of_rotations,
            Theme.LATE: self._of_late_records,
            Theme.TOGETHER: self._of_two_publishers,
            Theme.CASES: self._of_cases,
            Theme.LACKING: self._of_lacking_columns,
            Theme.CLOCK: self._of_jumps,
            Theme.LAYOUTS: self._of_layouts,
            Theme.CUT: self._of_cut_files,
            Theme.RESIDENT: self._of_resident_spark,
        }
        return ways[theme](bare)

    def _of_tries(self, bare: Words) -> list[Maker]:
        chunk_bytes = self._rng.choice((400, 700, 1500, 1500))
        self._words = self._plain(replace(bare, chunk_bytes=chunk_bytes))
        self._is_packed, self._share_loaded, self._sizes = True, 0.1, (12, 20, 30)
        return [self._recut_load, self._changed_load, self._changed_load, self._killed, self._rewrite]

    def _of_lacking_columns(self, bare: Words) -> list[Maker]:
        direct, staged = replace(bare, publish=Publish.DIRECT), replace(bare, publish=Publish.STAGED)
        self._words = replace(self._rng.choice((direct, staged, replace(staged, write=Write.MERGE))), adds_columns=True)

        def while_it_loads() -> Operation:
            return replace(self._struck(Fault.STOPPED), then=(Lack(), self._append(), Load()))

        return [Lack, Lack, while_it_loads, self._killed, self._append, self._kept, self._retry]

    def _of_names(self, bare: Words) -> list[Maker]:
        rng = self._rng
        chunk_bytes, deliveries_max = rng.choice((700, 4000, 2**20)), rng.choice((1, 1, 5))
        self._words = replace(self._plain(bare), deliveries_max=deliveries_max, chunk_bytes=chunk_bytes)
        self._share_loaded = 0.0
        return [*(3 * [self._edit_of_names]), self._kept, self._killed, self._dying, Redrive, Load]

    def _of_replacements(self, bare: Words) -> list[Maker]:
        rewrite, lineage = self._rng.choice(
            ((OnRewrite.REPLACE, True), (OnRewrite.REPLACE, True), (OnRewrite.STOP, False))
        )
        self._words = replace(bare, on_rewrite=rewrite, lineage=lineage)

        def with_lineage() -> Operation:
            return Edit("lineage", value=True)

        def table() -> Operation:
            return Edit("table", 1)

        return [self._rewrite, self._rewrite, self._retried_replacement, with_lineage, table, Misplace, self._again]

    def _of_named_records(self, bare: Words) -> list[Maker]:
        declare: Callable[[Words], Words] = self._rng.choice((self._of_producers, self._of_messages))
        self._words = replace(declare(bare), transform=None, order=Order.ANY)
        self._sizes = (8, 12, 20)
        return [self._edit_of_identity, self._edit_of_identity, self._kept, self._append, self._edited_load]

    def _of_kept_batches(self, bare: Words) -> list[Maker]:
        self._words = replace(bare, on_rewrite=self._rng.choice(tuple(OnRewrite)))
        if self._rng.random() < 0.4:
            self._words = replace(bare, message_id="oid")
        return [*(3 * [self._kept]), self._edit_of_rewrites, self._rewrite, self._rewrite]

    def _of_equal_edges(self, bare: Words) -> list[Maker]:
        identity, rewrite = self._rng.choice(tuple(Identity)), self._rng.choice(_LIVING_ON)
        self._words = replace(bare, form=self._typed, identity=identity, on_rewrite=rewrite)
        return [self._rewrite_alike, self._rewrite_alike, self._append]

    def _of_copies(self, bare: Words) -> list[Maker]:
        self._words = self._by_content(bare)
        return [self._copy, self._copy, self._grow_alike, self._append, self._rewound, self._overtaken]

    def _of_turns(self, bare: Words) -> list[Maker]:
        self._words = replace(bare, producer=("dev", "seq"), order=Order.ORDERED)
        self._is_packed = self._rng.random() < 0.8
        return [*(3 * [self._append]), self._damage, self._complete]

    def _of_transforms(self, bare: Words) -> list[Maker]:
        made = self._rng.choice((self._transformed, self._of_producers))
        self._words = replace(made(bare), transform=self._rng.choice((Transform.SOME, Transform.ONE)))
        if self._rng.random() < 0.3:
            self._words = replace(bare, write=Write.MERGE, transform=Transform.NULLS)
        self._words = replace(self._words, in_postgres=self._rng.random() < 0.5)
        return [self._changed_load, self._append]

    def _of_rotations(self, bare: Words) -> list[Maker]:
        by, rewrite = Identity.CONTENT, OnRewrite.NEW_GENERATION
        self._words = replace(bare, write=Write.MERGE, identity=by, on_rewrite=rewrite)
        return [self._rotate, self._append, self._append]

    def _of_late_records(self, bare: Words) -> list[Maker]:
        self._words = replace(bare, write=Write.MERGE, producer=("dev", "seq"))
        return [self._append, self._load]

    def _of_two_publishers(self, bare: Words) -> list[Maker]:
        declare: Callable[[Words], Words] = self._rng.choice(
            (self._of_producers, self._of_producers, self._of_messages)
        )
        self._words = replace(declare(bare), order=Order.ANY)
        self._sizes, self._most = (4, 5, 8), 3
        return [self._append, self._load]

    def _of_cases(self, bare: Words) -> list[Maker]:
        write = self._rng.choice((Write.APPEND, Write.APPEND, Write.MERGE))
        words = self._of_producers(bare)
        transform = None if write is Write.MERGE else words.transform
        self._words = replace(words, write=write, transform=transform, ignores_case=True)
        return [self._append, self._load, self._kept]

    def _of_jumps(self, bare: Words) -> list[Maker]:
        declare: Callable[[Words], Words] = self._rng.choice((self._plain, self._by_content, self._of_messages))
        self._words = declare(bare)

        def while_it_loads() -> Operation:
            stopped = self._struck(self._rng.choice((Fault.STOPPED, Fault.TASK_KILLED)))
            return replace(stopped, then=(self._jump(), Load()), keeps_lease=stopped.fault is Fault.STOPPED)

        return [self._jump, while_it_loads, while_it_loads, self._killed, self._kept, self._append, self._retry]

    def _of_layouts(self, bare: Words) -> list[Maker]:
        rng = self._rng
        self._words = replace(bare, form=rng.choice((Form.CSV, Form.FIXED)), publish=rng.choice(tuple(Publish)))
        self._sizes = (3, 5, 8)

        def edit() -> Operation:
            return Edit("layout", rng.choice((0, 1)))

        def some_bad() -> Operation:
            return replace(self._append(), bad=rng.choice((1, 2)), percent=100)

        def while_it_loads() -> Operation:
            return replace(self._struck(rng.choice((Fault.STOPPED, Fault.TASK_KILLED))), then=(edit(), Load()))

        return [edit, edit, some_bad, some_bad, some_bad, self._load, self._load, self._retry, Retry, while_it_loads]

    def _of_cut_files(self, bare: Words) -> list[Maker]:
        rng = self._rng
        declare: Callable[[Words], Words] = rng.choice((self._plain, self._by_content, self._of_producers))
        self._words = replace(declare(bare), publish=Publish.STAGED, transform=None, order=Order.ANY)
        self._sizes = (8, 12, 20)

        def while_it_publishes() -> Operation:
            stopped = Load(fault=Fault.STOPPED, at=rng.randint(60, 140), in_task=False, keeps_lease=True)
            return replace(stopped, then=(Cut(rng.choice(tuple(Left))),), seed=rng.choice((0, 1)))

        def while_it_stages() -> Operation:
            stopped = replace(self._struck(Fault.STOPPED), in_task=True, keeps_lease=True, forks=False)
            return replace(stopped, then=(Cut(rng.choice(tuple(Left))),))

        return [while_it_publishes, while_it_publishes, while_it_stages, self._append, self._append, self._rewrite]

    def _of_resident_spark(self, bare: Words) -> list[Maker]:
        """No load has a board, whose sessions would wait as long as those of real loads."""
        rng = self._rng
        kinds = (self._plain, self._by_content, self._merged, self._of_producers, self._of_messages, self._transformed)
        declare: Callable[[Words], Words] = rng.choice(kinds)
        self._words = replace(declare(bare), in_postgres=rng.random() < 0.2)
        if self._words.transform is Transform.NULLS:
            # Spark's rows without a key are refused.
            self._words = replace(self._words, transform=Transform.ONE)
        self._sizes = (3, 8, 12, 20)

        def struck() -> Operation:
            return self._struck(rng.choice((Fault.TASK_KILLED, *Fault)))

        return [struck, struck, self._append, self._rewrite, self._load, self._kept]

    # The pipeline file.

    def _kind(self) -> Words:
        rng = self._rng
        words = Words(chunk_bytes=rng.choice(_CHUNK_BYTES), deliveries_max=rng.choice((1, 2, 2, 5)))
        words = replace(words, form=rng.choice(_FORMS))
        if words.form.is_typed:
            words = replace(words, form=self._typed)
        if rng.random() < 0.2:
            words = replace(words, mode=rng.choice((Mode.KEY_SHARED, Mode.ORDERED)))
        kinds: tuple[Callable[[Words], Words], ...] = (
            self._plain,
            self._plain,
            self._by_content,
            self._merged,
            self._of_producers,
            self._of_messages,
            self._transformed,
        )
        return rng.choice(kinds)(words)

    def _plain(self, words: Words) -> Words:
        rng = self._rng
        rewrite = rng.choice(tuple(OnRewrite))
        publish = Publish.STAGED if rewrite is OnRewrite.REPLACE else rng.choice(tuple(Publish))
        multiline = words.form is Form.CSV and rng.random() < 0.4
        return replace(words, on_rewrite=rewrite, publish=publish, multiline=multiline, lineage=rng.random() < 0.85)

    def _by_content(self, words: Words) -> Words:
        rng = self._rng
        rewrite = rng.choice(_LIVING_ON)
        return replace(words, identity=Identity.CONTENT, on_rewrite=rewrite, publish=rng.choice(tuple(Publish)))

    def _merged(self, words: Words) -> Words:
        rng = self._rng
        words = replace(words, write=Write.MERGE)
        match rng.randrange(4):
            case 0:
                return replace(words, producer=("dev", "seq"), order=rng.choice(tuple(Order)))
            case 1:
                return replace(words, transform=rng.choice((Transform.NULLS, Transform.ONE)))
            case _:
                return replace(words, identity=Identity.CONTENT, on_rewrite=OnRewrite.NEW_GENERATION)

    def _of_producers(self, words: Words) -> Words:
        rng = self._rng
        words = replace(words, producer=("dev", "seq"), order=rng.choice(tuple(Order)))
        rewrite = rng.choice(_LIVING_ON)
        return replace(words, on_rewrite=rewrite, transform=rng.choice((None, None, Transform.SOME)))

    def _of_messages(self, words: Words) -> Words:
        return replace(words, message_id="oid", on_rewrite=self._rng.choice(_LIVING_ON))

    def _transformed(self, words: Words) -> Words:
        rng = self._rng
        return replace(
            words, transform=rng.choice((Transform.ONE, Transform.SOME)), on_rewrite=rng.choice(tuple(OnRewrite))
        )

    # Files.

    #: Whether all files are.
    _is_packed = False

    def _some_names(self) -> list[str]:
        rng, form = self._rng, self._words.form
        stems = ("day/a", "day/b", "day/c")
        if form.is_typed:
            return [f"{stem}.{form}" for stem in stems]
        suffixes = rng.choice((("",), (".gz",), ("", ".gz"), ("", ".gz", ".zst")))
        if self._is_packed:
            suffixes = (".gz", ".gz", ".zst")
        return [f"{stem}.{form}{rng.choice(suffixes)}" for stem in stems]

    def _name(self) -> str:
        return self._rng.choice(self._names)

    def _other(self, name: str) -> str:
        stem, dot, suffix = name.partition(".")
        return self._rng.choice((f"{stem}.1{dot}{suffix}", f"day/z{dot}{suffix}"))

    def _append(self, name: str | None = None) -> Append:
        rng, words = self._rng, self._words
        named = words.producer or words.message_id
        is_packed = (name or "").endswith((".gz", ".zst"))
        is_ordered = words.producer is not None and words.order is Order.ORDERED
        return Append(
            name or self._name(),
            rng.choice(self._sizes),
            # If none is good, the file is refused until a good one comes.
            bad=rng.choice((0, 0, 1, 2, 20)) if not (named or words.transform or words.form.is_typed) else 0,
            again=rng.choice((0, 0, 1, 2)) if named and not is_ordered else 0,
            late=rng.choice((0, 0, 2)) if words.producer and not is_ordered else 0,
            percent=rng.choice((100, 100, 100, 50)) if is_packed or not is_ordered else 100,
        )

    def _rewrite(self) -> Rewrite:
        return Rewrite(self._name(), self._rng.choice((1, 3, 8, 12, 20)), kept=self._rng.choice((0, 0, 2, 5)))

    def _grow_alike(self) -> GrowAlike:
        name = self._name()
        return GrowAlike((name, self._other(name)), self._rng.choice((2, 5, 10)))

    def _file_change(self) -> Operation:
        return self._rng.choice((self._append, self._rewrite, lambda: Remove(self._name()), self._append))()

    # What happens.

    def _some_makers(self) -> list[Callable[[], Operation]]:
        rng, words = self._rng, self._words
        name, other = self._name, self._other
        #: Where names tell records, or keys belong to one line of files, a second name makes another record of it.
        may_be_copied = words.write is Write.APPEND or words.identity is Identity.CONTENT or words.producer is not None

        def to_other(of: Callable[[str, str], Operation]) -> Callable[[], Operation]:
            def make() -> Operation:
                found = name()
                return of(found, other(found))

            return make

        makers: list[tuple[int, Callable[[], Operation]]] = [
            (3, self._rewrite),
            (1, lambda: Remove(name())),
            (1, self._damage),
            (2, self._edit),
            (3, self._edited_load),
            (1, Look),
            (3, self._consume),
            (1, Maintain),
            (2, self._kept),
            (3, lambda: Load(replaces=True, only=rng.choice(((), (name().removeprefix("day/"),))))),
            (2, self._retry),
            (2, lambda: Rewind(rng.randint(1, 6))),
            (2, lambda: Redrive(abandons=rng.random() < 0.3)),
            (1, Misplace),
            (1, self._jump),
            (2, lambda: Recover(damages=rng.random() < 0.5, from_snapshot=rng.random() < 0.5)),
        ]
        if may_be_copied:
            makers += [
                (3, to_other(Copy)),
                (1, to_other(Move)),
                (1, lambda: Pack(name(), rng.choice((".gz", ".zst")))),
                (2, lambda: Rotate(found := name(), other(found), rng.choice((1, 3, 8)))),
                (3, self._grow_alike),
            ]
        some = rng.sample(makers, rng.randint(2, 5))
        weighed = [make for weight, make in some for _ in range(weight)]
        return [*weighed, *(self._append for _ in range(4)), self._complete, *(self._load for _ in range(6))]

    def _complete(self) -> Operation:
        return Complete(self._name())

    def _operations(self) -> tuple[Operation, ...]:
        if self._keeps and self._rng.random() < 0.5:
            return self._kept_meanwhile()
        if self._publishes_twice and self._rng.random() < 0.5:
            return self._published_twice()
        made = self._rng.choice(self._makers)()
        # Loaded records cannot differ in a second try.
        return (self._append(), made) if self._brings_new else (made,)

    def _kept_meanwhile(self) -> tuple[Operation, ...]:
        """A batch is staged, and much may come between that and its publication."""
        rng = self._rng
        between: list[Maker] = [
            self._edit_of_rewrites,
            self._edit_of_names,
            self._edit,
            self._append,
            self._rewrite,
            Load,
        ]
        if self._words.message_id or self._words.producer:
            between += [self._edit_of_identity, self._edit_of_identity]
        some = [rng.choice(between)() for _ in range(rng.randint(1, 3))]
        return (Load(batch="kept 1", publishes=False), *some, Publishing("kept 1"))

    def _published_twice(self) -> tuple[Operation, ...]:
        """A publisher stops and loses its lock; another load brings a part of its batch, and a second one publishes."""
        rng = self._rng
        at = rng.randint(*_DECIDED_BEHIND)
        of_second = rng.choice((at, at, at, rng.randint(0, _DECIDED_BEHIND[1])))
        stopped = Publishing("kept 1", fault=Fault.STOPPED, counts_commits=True, keeps_lease=True)
        second = replace(stopped, at=of_second, gives_way=True)
        first = replace(stopped, at=at, loses_lock=True, then=(Load(), second))
        # All of the batch is new at first.
        new = replace(self._append(), again=0, late=0, percent=100)
        again = replace(self._append(), again=rng.choice((1, 2, 4)), percent=100)
        return (new, Load(batch="kept 1", publishes=False), again, first)

    def _edit(self) -> Edit:
        rng, words = self._rng, self._words
        edits: list[Edit] = [
            Edit("chunk_bytes", rng.choice(_CHUNK_BYTES)),
            Edit("chunk_bytes", rng.choice(_CHUNK_BYTES)),
            Edit("on_rewrite", rng.choice(tuple(OnRewrite))),
            Edit("pattern", rng.choice(("*/*", "day/*"))),
            Edit("pattern", rng.choice(("*/*", "day/*"))),
            Edit("lineage", rng.choice((True, False))),
            Edit("table", rng.choice((0, 1))),
            Edit("publish", rng.choice(tuple(Publish))),
            Edit("deliveries_max", rng.choice((1, 5))),
            Edit("mode", rng.choice((Mode.SHARED, Mode.KEY_SHARED, Mode.ORDERED))),
            Edit("sealed", rng.choice((True, False))),
            Edit("identity", rng.choice(tuple(Identity))),
            Edit("write", rng.choice(tuple(Write))),
            Edit("without", rng.choice(("", "eid", "pos", "device"))),
            Edit("guarantee", rng.choice((None, None, *Guarantee))),
        ]
        if not words.form.is_whole:
            edits.append(Edit("form", rng.choice((Form.JSONL, Form.CSV))))
        if words.write is Write.APPEND and words.transform in (None, Transform.ONE):
            edits.append(Edit("transform", rng.choice((None, Transform.ONE))))
            edits.append(Edit("in_postgres", rng.random() < 0.5))
        if words.producer:
            edits.append(Edit("order", Order.ANY))
            edits += 4 * [Edit("producer", rng.choice((("dev", "pos"), ("device", "seq"), ("dev", "seq"))))]
        if words.message_id:
            edits += 6 * [Edit("message_id", rng.choice(("eid", "oid", None)))]
        if words.form is Form.CSV:
            edits.append(Edit("multiline", rng.choice((True, False))))
        return rng.choice(edits)

    def _edited_load(self) -> Operation:
        """A load that is struck while another load edits the file and runs by it."""
        rng = self._rng
        helps = (self._edit(), Load(seed=rng.choice((0, 1))))
        return replace(self._struck(rng.choice((Fault.TASK_KILLED, Fault.STOPPED))), then=helps)

    def _edit_of_names(self) -> Edit:
        return Edit("pattern", self._rng.choice(("*/*", "day/*")))

    def _edit_of_rewrites(self) -> Edit:
        return Edit("on_rewrite", self._rng.choice(tuple(OnRewrite)))

    def _overtaken(self) -> Load:
        """A worker stops for less than its lease, and others load all but what it has."""
        at = self._rng.randint(2, 8)
        return Load(fault=Fault.STOPPED, at=at, counts_commits=True, then=(Load(),), keeps_lease=True)

    def _damage(self) -> Damage:
        return Damage(self._name())

    def _edit_of_identity(self) -> Edit:
        if self._words.message_id:
            return Edit("message_id", self._rng.choice(("eid", "oid", None)))
        return Edit("producer", self._rng.choice((("dev", "pos"), ("device", "seq"), ("dev", "seq"))))

    def _recut_load(self) -> Load:
        """A worker dies, and another load takes what it had, by a file that cuts it otherwise."""
        cut = Edit("chunk_bytes", self._rng.choice(_CHUNK_BYTES))
        return replace(self._struck(Fault.TASK_KILLED), then=(cut, Load()))

    def _changed_load(self) -> Load:
        """A worker dies, and what it had is not what it was when the next one takes it."""
        return replace(self._struck(Fault.TASK_KILLED), then=(self._file_change(),))

    def _killed(self) -> Load:
        return self._struck(Fault.KILLED)

    def _dying(self) -> Load:
        return self._struck(Fault.TASK_KILLED)

    def _again(self) -> Load:
        """All of it is reloaded."""
        return Load(replaces=True)

    def _retried_replacement(self) -> Load:
        """A retry of quarantined records while their file is replaced."""
        at, stopped = self._rng.randint(50, 100), Load(fault=Fault.STOPPED, in_task=False, then=(Retry(),))
        return replace(stopped, at=at, replaces=self._rng.random() < 0.5)

    def _rewrite_alike(self) -> Rewrite:
        return Rewrite(self._name(), -1)

    def _copy(self) -> Copy:
        name = self._name()
        return Copy(name, self._other(name))

    def _rotate(self) -> Rotate:
        name = self._name()
        return Rotate(name, self._other(name), self._rng.choice((1, 3, 8)))

    def _jump(self) -> Jump:
        return Jump(self._rng.choice((-72, -1, 1, 72)))

    def _rewound(self) -> Rewind:
        return Rewind(self._rng.randint(1, 3))

    def _load(self) -> Load:
        rng = self._rng
        if rng.random() < 0.4:
            return Load(seed=rng.choice((0, 0, 1, 2)))
        load = self._struck(rng.choice(tuple(Fault)))
        if load.fault in (Fault.TASK_KILLED, Fault.STOPPED):
            load = replace(load, then=tuple(self._meanwhile() for _ in range(rng.choice((0, 1, 1, 2)))))
        return load

    def _struck(self, fault: Fault) -> Load:
        rng = self._rng
        counts, in_task = rng.random() < 0.7, fault is Fault.TASK_KILLED or rng.random() < 0.7
        if fault is Fault.KILLED:
            at = rng.randint(4, 40) if counts else rng.randint(0, 150)
        elif in_task:
            # Behind two of them, a delivery is held.
            at = rng.choice((0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 7)) if counts else rng.randint(0, 40)
        else:
            at = rng.randint(0, 12) if counts else rng.randint(0, 110)
        return Load(
            fault=fault,
            at=at,
            counts_commits=counts,
            in_task=in_task,
            forks=in_task and fault in (Fault.TASK_KILLED, Fault.STOPPED) and rng.random() < 0.1,
            keeps_lease=fault is Fault.STOPPED and rng.random() < 0.5,
            seed=rng.choice((0, 0, 1, 2)),
        )

    def _meanwhile(self) -> Operation:
        rng = self._rng
        return rng.choice(
            (
                self._file_change,
                self._file_change,
                self._file_change,
                self._edit,
                Load,
                Load,
                Retry,
                Look,
                Maintain,
                Recover,
                Consume,
                self._jump,
                lambda: Remove(self._name()),
                lambda: Publishing("kept 1"),
            )
        )()

    def _kept(self) -> Operation:
        rng = self._rng
        batch = "kept 1"
        if rng.random() < 0.5:
            return Load(batch=batch, publishes=False)
        if rng.random() < 0.3:
            return replace(
                Publishing(
                    batch, fault=rng.choice((Fault.KILLED, Fault.UNANSWERED, Fault.STOPPED)), at=rng.randint(0, 20)
                ),
                then=(self._meanwhile(),),
            )
        return Publishing(batch, gives_up=rng.random() < 0.1)

    def _consume(self) -> Operation:
        rng = self._rng
        then = tuple(self._meanwhile() for _ in range(rng.choice((0, 1, 2))))
        fault = rng.choice((None, None, Fault.KILLED, Fault.CUT, Fault.UNANSWERED))
        return Consume(fault=fault, at=rng.randint(0, 60) if fault is Fault.CUT else rng.randint(0, 150), then=then)

    def _retry(self) -> Operation:
        rng = self._rng
        if rng.random() < 0.5:
            return Retry()
        fault = rng.choice((Fault.KILLED, Fault.UNANSWERED, Fault.STOPPED))
        return Retry(fault=fault, at=rng.randint(0, 12), then=(self._meanwhile(),))


def shrunk(found: Drawn, fails: Callable[[Drawn], bool]) -> Drawn:
    """A shorter sequence that still fails: one without an operation, or without what happens beside one."""
    is_shorter = True
    while is_shorter:
        is_shorter = False
        for shorter in _shorter(found):
            if fails(shorter):
                found, is_shorter = shorter, True
                break
    return found


def _shorter(found: Drawn) -> Sequence[Drawn]:
    operations = found.operations
    without = [(*operations[:at], *operations[at + 1 :]) for at in range(len(operations) - 1, -1, -1)]
    simpler = [
        (*operations[:at], each, *operations[at + 1 :])
        for at, operation in enumerate(operations)
        for each in _simpler(operation)
    ]
    return [replace(found, operations=tuple(each)) for each in (*without, *simpler)]


def _simpler(operation: Operation) -> list[Operation]:
    match operation:
        case Load():
            then = operation.then
            fewer = [replace(operation, then=(*then[:at], *then[at + 1 :])) for at in range(len(then))]
            plain = [Load(batch=operation.batch, publishes=operation.publishes)] if operation.fault else []
            return [*plain, *fewer, *([replace(operation, seed=0)] if operation.seed else [])]
        case _:
            return []
