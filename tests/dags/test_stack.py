"""Parts that are ended, with all that they have started."""

import socket
import subprocess
import sys
import threading

import psutil

from onceload import stack

#: A part whose child, in a group of its own, has a child that listens to nobody.
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
    monkeypatch.setattr(stack, "_ENDS_IN_S", 1.0)
    part = subprocess.Popen([sys.executable, "-c", _PART], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert part.stdout
        started = [psutil.Process(int(part.stdout.readline())) for _ in range(2)]
        part.stdout.close()
    finally:
        # Nobody is above them any more.
        part.kill()

        stack._end([part])

    assert [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


def test_an_answer_that_breaks_off_is_none():
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_break_off, args=(server,))
        thread.start()

        well = stack._well(f"http://127.0.0.1:{server.getsockname()[1]}")

        thread.join()
    assert well == set()


def _break_off(server):
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"')
