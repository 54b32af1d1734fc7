"""What may happen to files and loads, as values that Hypothesis draws: which kinds of pipeline, and which sequences."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from hypothesis import strategies as st

from onceload_core.verdicts import Order
from onceload_jobs.pipeline.declared import OnRewrite, Publish, Write
from tests.loads.counter import Form
from tests.loads.model import Kind

_FORMS = st.sampled_from(Form)
_REWRITTEN = st.sampled_from([OnRewrite.STOP, OnRewrite.NEW_GENERATION])
_EITHER = st.one_of(
    st.builds(Kind, sealed=st.booleans(), on_rewrite=_REWRITTEN),
    st.builds(Kind, form=_FORMS, sealed=st.booleans(), on_rewrite=_REWRITTEN),
)
_STAGED = st.one_of(
    st.builds(Kind, form=_FORMS, sealed=st.booleans(), on_rewrite=st.just(OnRewrite.REPLACE)),
    st.builds(Kind, form=_FORMS, on_rewrite=_REWRITTEN, write=st.just(Write.MERGE)),
    st.builds(Kind, form=_FORMS, on_rewrite=_REWRITTEN, order=st.sampled_from(Order)),
)
#: By the ways in which they may be published.
KINDS = {
    # Inside of quotes a file that was taken as complete must not go on: where its records end would change.
    ways: kinds.filter(lambda kind: not (kind.sealed and kind.form is Form.CSV))
    for ways, kinds in (("direct or staged", _EITHER), ("staged", _STAGED))
}

_NAMES = ("a.log", "below/b.log", "a.log.gz", "c.log.gz", "c.log.zst")


class Fault(StrEnum):
    KILLED = "the loader dies"
    TASK_KILLED = "a task dies, and is tried again"
    CUT = "the server ends its connection"
    UNANSWERED = "its COMMIT takes effect without an answer"


class Piece(StrEnum):
    GOOD = "good"
    BAD = "bad"
    BLANK = "blank"
    HALF = "half"
    #: The rest of a half line, if it comes right behind one.
    REST = "rest"


_PIECES = st.lists(st.sampled_from([*Piece, Piece.GOOD, Piece.GOOD]), min_size=1, max_size=6)


@dataclass(frozen=True)
class Append:
    """Lines at the end of a file, which is made if it is not there; a compressed one gets another member."""

    file: str
    pieces: tuple[Piece, ...]
    is_crlf: bool = False


@dataclass(frozen=True)
class Truncate:
    """The end of a file goes; a compressed one breaks off."""

    file: str
    percent: int


@dataclass(frozen=True)
class Rewrite:
    """One digit of a file becomes another."""

    file: str
    percent: int


@dataclass(frozen=True)
class Move:
    """A file goes to another name, over whatever is there; or a copy of it does."""

    file: str
    to: str
    is_copy: bool


@dataclass(frozen=True)
class Pack:
    """A plain file is packed, as log files are in time."""

    file: str
    suffix: str


@dataclass(frozen=True)
class Age:
    file: str


@dataclass(frozen=True)
class Delete:
    file: str


@dataclass(frozen=True)
class PutBack:
    """A file becomes what it was when it was loaded last."""

    file: str


FileChange = Append | Truncate | Rewrite | Move | Pack | Age | Delete | PutBack


@dataclass(frozen=True)
class Load:
    publish: Publish
    chunk_bytes: int
    fault: Fault | None = None
    at: int = 0
    #: In which order tasks run, and which of them twice.
    seed: int = 0
    batch: str | None = None
    #: Which files it is about, by their names or patterns of them; none means all. Loaded ones may be replaced.
    only: tuple[str, ...] = ()
    replaces: bool = False
    #: One call stages it, and another publishes it.
    is_in_two: bool = False
    #: Comes between plan and tasks.
    meanwhile: "FileChange | None" = None

    @property
    def is_quiet(self) -> bool:
        return self.fault is None and self.meanwhile is None


@dataclass(frozen=True)
class LoadTogether:
    one: Load
    other: Load


@dataclass(frozen=True)
class TakeSnapshot:
    pass


@dataclass(frozen=True)
class Verify:
    is_deep: bool


@dataclass(frozen=True)
class Recover:
    damage: str


Operation = FileChange | Load | LoadTogether | TakeSnapshot | Verify | Recover

Drawn = TypeVar("Drawn")


def _weighed(*weighed: tuple[int, st.SearchStrategy[Drawn]]) -> st.SearchStrategy[Drawn]:
    """One of several, as often as its weight says; Hypothesis itself knows no weights."""
    choices = [strategy for weight, strategy in weighed for _ in range(weight)]
    return st.sampled_from(choices).flatmap(lambda strategy: strategy)


_FILES = st.sampled_from(_NAMES)
_PATTERNS = st.sampled_from([("*.gz",), ("below/*", "c.*"), ("a.log*",)])
_PERCENT = st.integers(0, 100)
_TRUNCATES = st.builds(Truncate, _FILES, _PERCENT)
_REWRITES = st.builds(Rewrite, _FILES, _PERCENT)
_APPENDS = st.builds(Append, _FILES, _PIECES.map(tuple), is_crlf=st.booleans())
_CHUNK_BYTES = st.sampled_from([2**20, 1000, 100, 40, 7, 1])
_BATCHES = st.none() | st.just("again")
_CHOICES = _weighed((3, st.just(())), (2, st.tuples(_FILES)), (1, _PATTERNS))
_LOADS = st.builds(
    Load,
    publish=st.sampled_from(Publish),
    chunk_bytes=_CHUNK_BYTES,
    fault=st.sampled_from([None, *Fault]),
    at=st.integers(0, 100),
    seed=st.integers(0, 3),
    batch=_BATCHES,
    only=_CHOICES,
    replaces=st.sampled_from([False, False, True]),
    is_in_two=st.booleans(),
    meanwhile=_weighed((7, st.none()), (1, _APPENDS), (1, _REWRITES), (1, _TRUNCATES)),
)
#: By loads that nothing happens to: of the others little is known but what they may do.
_QUIET_REPLACEMENTS = st.builds(
    Load,
    publish=st.just(Publish.STAGED),
    chunk_bytes=_CHUNK_BYTES,
    batch=_BATCHES,
    only=_CHOICES,
    replaces=st.just(value=True),
    is_in_two=st.booleans(),
)
_RECOVERIES = st.sampled_from(
    [
        "SELECT 1",
        "UPDATE onceload.producer SET consumed = '{}' WHERE pipeline_id = :pipeline_id",
        "UPDATE onceload.producer SET consumed = consumed + '{[1000,2000)}', fingerprint = NULL"
        " WHERE pipeline_id = :pipeline_id",
        "DELETE FROM onceload.producer WHERE pipeline_id = :pipeline_id",
        "UPDATE onceload.pipeline SET position = position + 1 WHERE pipeline_id = :pipeline_id",
    ]
)
_OPERATIONS: st.SearchStrategy[Operation] = _weighed(
    (4, _APPENDS),
    (1, _TRUNCATES),
    (2, _REWRITES),
    (1, st.builds(Move, _FILES, _FILES, st.booleans())),
    (1, st.builds(Pack, _FILES, st.sampled_from([".gz", ".zst"]))),
    (1, st.builds(Age, _FILES)),
    (1, st.builds(Delete, _FILES)),
    (2, st.builds(PutBack, _FILES)),
    (9, _LOADS),
    (3, _QUIET_REPLACEMENTS),
    (3, st.builds(LoadTogether, _LOADS, _LOADS)),
    (1, st.builds(TakeSnapshot)),
    (1, st.builds(Verify, st.booleans())),
    (1, st.builds(Recover, _RECOVERIES)),
)
#: Without a file, nothing is a test of much.
SEQUENCES = st.tuples(st.lists(_APPENDS, min_size=1, max_size=4), st.lists(_OPERATIONS, min_size=3, max_size=14)).map(
    lambda parts: [*parts[0], *parts[1]]
)
