"""Arrow reads ORC files in a process of its own.

Arrow's ORC library crashes its process on some damaged files. Such a file is refused as damaged. The process starts
with the first file, ends with its parent, and is restarted after a crash.
"""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO

import pyarrow as pa
from pyarrow import orc

_SIZE_BYTES = 8
#: What the process says once it can read.
_READY = b"+"
#: A few bytes of a file may stand for any number of values.
_MEMORY_BYTES_MAX = 8 * 2**30
#: Unpacked. The process that asks has no limit of its memory.
_TAIL_BYTES_MAX = 2**24
#: A stripe of gigabytes takes a minute. A damaged one might never end, even after the load was killed.
_CPU_S_MAX = 600
#: How long a process that closed its pipe may take to end.
_END_S = 5


class _Ask(StrEnum):
    TAIL = "tail"
    SCHEMA = "schema"
    ROWS = "rows"


class _Answer(StrEnum):
    FOUND = "found"
    DAMAGED = "damaged"
    UNSUPPORTED = "unsupported"


def read_tail(content: bytes) -> bytes:
    """The unpacked footer of a file with its postscript, as Arrow hands it out."""
    return _reader.ask(_Ask.TAIL, [], content)


def read_schema(content: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(_reader.ask(_Ask.SCHEMA, [], content)))


def read_columns(content: bytes, names: list[str]) -> pa.RecordBatch:
    """These columns of a file of one stripe."""
    with pa.ipc.open_stream(pa.py_buffer(_reader.ask(_Ask.ROWS, names, content))) as stream:
        return stream.read_next_batch()


@dataclass
class _Reader:
    """The process that reads for this one. A fork of this process starts its own."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: subprocess.Popen[bytes] | None = None
    _asked_by: int = 0

    def ask(self, ask: _Ask, names: list[str], content: bytes) -> bytes:
        with self._lock:
            process = self._started()
            try:
                kind, found = _answer_of(process, json.dumps([ask, names]).encode(), content)
            except (EOFError, BrokenPipeError):
                self._process = None
                raise _why(_end(process)) from None
            except BaseException:
                # What it still answers must not be taken for the answer to another question.
                self._process = None
                process.kill()
                _end(process)
                raise
        return _result(kind, found)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._asked_by != os.getpid():
            path = os.pathsep.join(filter(None, sys.path))
            command = [sys.executable, "-P", "-c", f"from {__name__} import serve; serve({_CPU_S_MAX})"]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
            )
            if process.stdout is None or process.stdout.read(1) != _READY:
                ended = _end(process)
                raise OSError(
                    errno.ECHILD, f"the process in which Arrow reads ORC did not start (it ended with {ended})"
                )
            # Only now: after an interruption, its first byte would be taken for that of an answer.
            self._process, self._asked_by = process, os.getpid()
        return self._process


_reader = _Reader()


def _why(ended: int) -> Exception:
    """Whether the file crashed the process, or something else killed it, such as the kernel when memory is short."""
    if -ended == signal.SIGXCPU:
        endless: Exception = pa.ArrowNotImplementedError(f"a stripe that takes over {_CPU_S_MAX} s of CPU time to read")
        return endless
    name = signal.Signals(-ended).name if ended < 0 else f"exit code {ended}"
    if ended < 0 and -ended not in _BY_FILES:
        killed = f"Arrow's process was killed ({name}) while it read the file, perhaps because memory was short"
        return InterruptedError(errno.EINTR, killed)
    damaged: Exception = pa.ArrowInvalid(f"Arrow crashed ({name}) while it read the file")
    return damaged


_BY_FILES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP)


def _end(process: subprocess.Popen[bytes]) -> int:
    with suppress(subprocess.TimeoutExpired):
        # It has ended, or is about to.
        process.wait(_END_S)
    process.kill()
    for pipe in filter(None, (process.stdin, process.stdout)):
        # What it did not read is lost with it.
        with suppress(BrokenPipeError):
            pipe.close()
    return process.wait()


def _answer_of(process: subprocess.Popen[bytes], asked: bytes, content: bytes) -> tuple[str, bytes]:
    if process.stdin is None or process.stdout is None:
        raise BrokenPipeError
    for part in (asked, content):
        _write(process.stdin, part)
    process.stdin.flush()
    return _read(process.stdout).decode(), _read(process.stdout)


def _result(kind: str, found: bytes) -> bytes:
    match _Answer(kind):
        case _Answer.FOUND:
            return found
        case _Answer.UNSUPPORTED:
            raise pa.ArrowNotImplementedError(found.decode())
        case _Answer.DAMAGED:
            raise pa.ArrowInvalid(found.decode())


def _write(stream: IO[bytes], part: bytes) -> None:
    stream.write(len(part).to_bytes(_SIZE_BYTES, "little"))
    stream.write(part)


def _read(stream: IO[bytes]) -> bytes:
    size = int.from_bytes(_exactly(stream, _SIZE_BYTES), "little")
    return _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    octets = stream.read(size)
    if len(octets) < size:
        raise EOFError
    return octets


def serve(cpu_s_max: int) -> None:
    """Read files from stdin until it is closed. The CPU time is for each question."""
    # Ctrl-C ends the process that asks, and then this one has no more to read.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit(resource.RLIMIT_AS, _MEMORY_BYTES_MAX)
    asked_in, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(_READY)
    answers.flush()
    with suppress(EOFError, BrokenPipeError):
        while True:
            ask, names = json.loads(_read(asked_in))
            content = _read(asked_in)
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + cpu_s_max)
            kind, found = _found(_Ask(ask), names, content)
            _write(answers, kind.encode())
            _write(answers, found)
            answers.flush()


def _limit(resource_of: int, wanted: int) -> None:
    hard = resource.getrlimit(resource_of)[1]
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource_of, (most, hard))


def _found(ask: _Ask, names: list[str], content: bytes) -> tuple[_Answer, bytes]:
    try:
        file = orc.ORCFile(pa.BufferReader(content))
        match ask:
            case _Ask.TAIL:
                return _Answer.FOUND, _tail(file)
            case _Ask.SCHEMA:
                return _Answer.FOUND, file.schema.serialize().to_pybytes()
            case _Ask.ROWS:
                return _Answer.FOUND, _rows(file, names)
    except MemoryError:
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        return _Answer.UNSUPPORTED, f"a stripe that takes more than {most / 2**30:.2g} GiB to read".encode()
    except pa.ArrowNotImplementedError as error:
        return _Answer.UNSUPPORTED, str(error).encode()
    except (pa.ArrowException, OSError, ValueError, LookupError) as error:
        return _Answer.DAMAGED, str(error).encode()


def _tail(file: orc.ORCFile) -> bytes:
    tail = bytes(file.reader.serialized_file_tail())
    if len(tail) > _TAIL_BYTES_MAX:
        raise pa.ArrowNotImplementedError(f"a footer of {len(tail):,} bytes")
    return tail


def _rows(file: orc.ORCFile, names: list[str]) -> bytes:
    batch = file.read_stripe(0, names)
    # A name with a dot may be taken for one inside another column.
    batch = batch if batch.schema.names == names else file.read_stripe(0).select(names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        try:
            stream.write_batch(batch)
        except pa.ArrowInvalid as error:
            # Arrow reads deeper values than it hands on.
            raise pa.ArrowNotImplementedError("values that are nested too deeply") from error
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]
