"""Digests of consecutive records, for receipts."""

import hashlib
from struct import Struct

from onceload_core.spans import Span
from onceload_jobs.formats.chunks import KEPT_BYTES

#: Sixteen bytes of SHA-256, for which processors have instructions.
_DIGEST = Struct(">QQ16s")


def digest_of(span: Span, raw: bytes | memoryview) -> bytes:
    """Encode a span and the digest of its bytes."""
    return _DIGEST.pack(span.first, span.end, shortened(hashlib.sha256(raw)))


class Digests:
    """The digests that a receipt may hold for a span: for an oversized record, that of its beginning."""

    def __init__(self) -> None:
        self._seen = hashlib.sha256()
        self._fed = 0
        self._beginning: tuple[bytes, ...] = ()

    def feed(self, block: bytes | memoryview) -> None:
        head = block[: max(0, KEPT_BYTES - self._fed)]
        self._seen.update(head)
        if self._fed + len(head) == KEPT_BYTES and len(head):
            self._beginning = (shortened(self._seen),)
        self._seen.update(block[len(head) :])
        self._fed += len(block)

    def possible(self) -> tuple[bytes, ...]:
        return shortened(self._seen), *self._beginning

    def of(self, span: Span) -> bytes:
        """Encode a span and the digest of everything that was fed."""
        return _DIGEST.pack(span.first, span.end, shortened(self._seen))


def possible_digests(raw: bytes | memoryview) -> tuple[bytes, ...]:
    """The digests that a receipt may hold for these bytes."""
    digests = Digests()
    digests.feed(raw)
    return digests.possible()


def shortened(digest: "hashlib._Hash") -> bytes:
    """Shorten a digest as receipts store it."""
    return digest.digest()[:16]


def digests_in(stored: bytes) -> tuple[tuple[Span, bytes], ...]:
    """Decode the spans and digests of a receipt."""
    return tuple((Span(first, end), digest) for first, end, digest in _DIGEST.iter_unpack(stored))


def digests_up_to(stored: bytes, *, end: int) -> bytes:
    """The digests of a receipt with spans that end before a sequence id."""
    return b"".join(_DIGEST.pack(span.first, span.end, each) for span, each in digests_in(stored) if span.end <= end)
