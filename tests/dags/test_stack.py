"""Parts that are ended, with all that they have started; that answer by halves; and the secrets they are given."""

import resource
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil
import pytest

from onceload import parts, services, stack

#: A part whose child, in a group of its own, has a child that ignores SIGTERM.
_PART = """
import os, signal, time
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"%d\\n" % os.getpid())
time.sleep(600)
"""


def test_nothing_that_a_part_has_started_outlives_its_end(monkeypatch):
    monkeypatch.setattr(parts, "_ENDS_IN_S", 1.0)
    part = subprocess.Popen([sys.executable, "-c", _PART], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert part.stdout
        started = [psutil.Process(int(part.stdout.readline())) for _ in range(2)]
        part.stdout.close()
    finally:
        # They have no parent any more.
        part.kill()

        parts.end([part])

    assert [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", b"half\r\n", b"HTTP/1.1 200 OK\r\n\r\n[]"]
)
def test_a_part_that_dies_while_it_answers_is_not_well_and_nothing_worse(answer):
    with closing(socket.create_server(("127.0.0.1", 0))) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stack._well, f"http://127.0.0.1:{server.getsockname()[1]}")
        with closing(server.accept()[0]) as connection:
            connection.recv(10_000)
            connection.sendall(answer)

        assert asked.result() == set()


def test_a_secret_is_written_whole_or_not_at_all(tmp_path):
    _, most = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As a disk that is full.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        with pytest.raises(OSError, match="too large"):
            services.secret_in(tmp_path / "api.secret")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert len(services.secret_in(tmp_path / "api.secret")) > 30
