"""Standard output and standard error that cannot fail a command.

A command goes on to its own end and its own exit code when the reader of its output has gone (`onceload verify p.yaml |
head`), the disk is full, or the streams were closed before it began. What can no longer be written is dropped.
"""

import os
import select
import sys
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Output(FileIO):
    """Writes to a file descriptor up to the first failure, and drops the rest."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            while self.failure is None:
                if (written := super().write(data)) is not None:
                    return written
                # Another process has set the pipe or the terminal to not block.
                select.select((), (self,), ())
        except OSError as error:
            self.failure = error
        return memoryview(data).nbytes


class StandardStreams:
    """Replace both streams of this process."""

    def __init__(self) -> None:
        _fill_closed_descriptors()
        self._outputs = [_Output(1), _Output(2)]
        self._texts = [_text(*each) for each in zip(self._outputs, (sys.stdout, sys.stderr), strict=True)]
        sys.stdout, sys.stderr = self._texts

    def find_failure(self) -> OSError | None:
        """Write what is buffered; return why the output is incomplete, unless its reader has gone."""
        for text in self._texts:
            text.flush()
        failures = [each.failure for each in self._outputs if each.failure]
        return next((each for each in failures if not isinstance(each, BrokenPipeError)), None)


def _fill_closed_descriptors() -> None:
    # The next file or connection would get the number of a closed stream, and what is printed would go into it.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - it takes no keyword.
    os.close(descriptor)


def _text(output: _Output, before: TextIO | None) -> TextIOWrapper:
    encoding, is_shown_by_line = "utf-8", False
    if isinstance(before, TextIOWrapper):
        encoding, is_shown_by_line = before.encoding, before.line_buffering or before.write_through
    # A name that this terminal cannot show must not fail a command that has done its work.
    return TextIOWrapper(
        BufferedWriter(output), encoding=encoding, errors="backslashreplace", line_buffering=is_shown_by_line
    )
