"""Find the brackets and commas of JSON outside of its strings, block by block."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onceload_jobs.formats.records import Indices, Mask

_QUOTE, _COMMA = ord('"'), ord(",")
#: By how much each byte changes the depth.
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_IS_SPECIAL = np.zeros(256, np.bool_)
_IS_SPECIAL[list(b'"[]{},')] = True
_IS_BLANK = np.zeros(256, np.bool_)
_IS_BLANK[list(b" \t\r\n")] = True


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The brackets and commas of a block, each with the depth after it."""

    positions: Indices
    octets: npt.NDArray[np.uint8]
    depths: Indices

    def commas(self, *, depth: int) -> Indices:
        found: Indices = self.positions[(self.octets == _COMMA) & (self.depths == depth)]
        return found


@dataclass
class Tokens:
    """The state between two blocks, which may be cut anywhere, even behind a backslash."""

    depth: int = 0
    in_string: bool = False
    _is_escaped: bool = False

    def feed(self, block: bytes) -> Structure:
        octets = np.frombuffer(self._without_escapes(block), np.uint8)
        positions = np.flatnonzero(_IS_SPECIAL[octets])
        found = octets[positions]
        is_quote = found == _QUOTE
        is_inside: Mask = (np.cumsum(is_quote) + self.in_string) % 2 == 1
        self.in_string = bool(is_inside[-1]) if len(is_inside) else self.in_string
        is_outside = ~is_inside & ~is_quote
        positions, found = positions[is_outside], found[is_outside]
        depths = np.cumsum(_STEPS[found]) + self.depth
        self.depth = int(depths[-1]) if len(depths) else self.depth
        return Structure(positions=positions, octets=found, depths=depths)

    def _without_escapes(self, block: bytes) -> bytes:
        """The block with other bytes for escaped quotes."""
        if self._is_escaped:
            block = b"x" + block[1:]
        if b"\\" not in block:
            self._is_escaped = False
            return block
        # From left to right, as a parser reads them: a quote behind an escaped backslash ends the string.
        block = block.replace(rb"\\", b"xx").replace(rb"\"", b"xx")
        self._is_escaped = block.endswith(b"\\")
        return block


def not_blank(block: bytes) -> Indices:
    """The positions of all bytes but blanks."""
    found: Indices = np.flatnonzero(~_IS_BLANK[np.frombuffer(block, np.uint8)])
    return found
