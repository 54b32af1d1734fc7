"""Compare what rewinds rolled back with the files that should bring it again.

A file that still has it only waits: the next load reads it. What its file no longer has is a difference, and so are the
rows of a program: their rows were deleted, and no load brings them again.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property

import pyarrow as pa
from sqlalchemy import Engine

from onceload_core.errors import OnceloadError
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.rewound import Owed
from onceload_core.replay import ProducerState
from onceload_jobs.files.fingerprints import Fingerprint, Marks, Resemblance
from onceload_jobs.files.listing import Listed, url_of
from onceload_jobs.files.reading import look_at
from onceload_jobs.pipeline.declared import Declared, Identity, Source
from onceload_jobs.plan.copies import resemblance_of
from onceload_jobs.verify.findings import Difference, Findings, Kind
from onceload_jobs.verify.gaps import Gaps


class Rewound:
    """Finds what is owed, producer by producer."""

    def __init__(
        self, declared: Declared, engine: Engine, findings: Findings, gaps: Gaps, *, loaded: AbstractSet[str]
    ) -> None:
        self._lost = Lost(declared, engine)
        self._findings = findings
        self._gaps = gaps
        #: The files that are compared already, because something of them is loaded.
        self._loaded = loaded

    def compare(self, owed: Sequence[Owed]) -> set[str]:
        """Find what is lost of what is owed, and return the names that were looked at."""
        for each in owed:
            if reason := self._lost.why(each):
                self._findings.add(
                    Difference(
                        producer=each.producer,
                        kind=Kind.NOT_LOADED_AGAIN,
                        span=each.spans.shortened,
                        expected=f"loaded again after {each.cause}",
                        found=reason,
                    )
                )
            elif each.producer not in self._loaded:
                self._gaps.note_owed(each)
        return {each.producer for each in owed}


class Lost:
    """Finds out what no load can load again, as the files are now."""

    def __init__(self, declared: Declared, engine: Engine) -> None:
        self._declared = declared
        self._engine = engine

    def why(self, owed: Owed) -> str | None:
        """Why no load can load it again; None if the next one does."""
        if owed.fingerprint is None:
            return "not loaded, and only the program that gave these rows can load them"
        reason = _why_not_in_file(self._declared.source, owed, owed.fingerprint)
        return None if reason and self._is_loaded_elsewhere(owed.fingerprint) else reason

    def _is_loaded_elsewhere(self, fingerprint: bytes) -> bool:
        """Whether the same content is loaded under another name."""
        return Fingerprint.from_bytes(fingerprint).stream in self._loaded_contents

    @cached_property
    def _loaded_contents(self) -> frozenset[Marks]:
        if self._declared.source.identity is not Identity.CONTENT:
            return frozenset()
        states = PostgresLedger(self._engine).states(self._declared.name).states.values()
        return frozenset(Fingerprint.from_bytes(each.fingerprint).stream for each in states if each.fingerprint)


def _why_not_in_file(source: Source, owed: Owed, fingerprint: bytes) -> str | None:
    """Why a file no longer has what was loaded of it before the rewind."""
    url = url_of(source.path, owed.producer, root=source.root)
    state = ProducerState(name=owed.producer, consumed=owed.spans, fingerprint=fingerprint)
    try:
        stored = look_at(url)
        listed = Listed(owed.producer, url, stored.size, modified_at=None, etag=stored.etag)
        return _LOST.get(resemblance_of(source, listed, state))
    except (OnceloadError, OSError, pa.ArrowException) as error:
        return "no such file" if isinstance(error.__cause__ or error, FileNotFoundError) else str(error)


_LOST = {
    Resemblance.SHORTER: "the file is shorter than before",
    Resemblance.CHANGED: "the file has other content than before",
}
