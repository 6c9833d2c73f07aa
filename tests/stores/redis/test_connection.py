"""A question and its answer on a socket: the same in C and in Python."""

import contextlib
import gc
import os
import socket
import threading
from time import monotonic

import pytest

from ratekeeper import native
from ratekeeper.stores.redis import connection as link
from ratekeeper.stores.redis.url import RedisSettings
from tests.interruption import signalled


@pytest.fixture(params=["pure", "native"])
def pair(request):
    """A connection, and the other end of it."""
    if request.param == "native" and native.core is None:
        pytest.skip("there is no C core")
    near, far = socket.socketpair()
    near.settimeout(5)
    connection = link.RedisConnection.__new__(link.RedisConnection)
    connection.socket, connection.patience = near, 5.0
    connection.reader = link.ReplyReader()
    if request.param == "native":
        connection.line = native.core.Line(os.dup(near.fileno()), b"")
    yield connection, far
    near.close()
    far.close()


def soon(seconds=10.0):
    return monotonic() + seconds


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{port}", "rediss://127.0.0.1:{port}", "unix://{folder}/none"])
@pytest.mark.parametrize("seconds", [-1.0, 0.01])
def test_a_socket_that_is_not_connected_in_time_is_no_mistake_and_not_left_open(tmp_path, url, seconds):
    """A pause in the wrong place made it one: the caller of a store in a cluster saw a ValueError."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        settings = RedisSettings(url.format(port=deaf.getsockname()[1], folder=tmp_path))
        with contextlib.suppress(OSError):  # the system itself may have been in time
            link.RedisConnection(settings.addresses[0], settings, soon(seconds)).close()
    gc.collect()  # what is left open now is a warning


def test_what_is_asked_is_sent_and_what_is_answered_is_read(pair):
    connection, far = pair
    far.sendall(b"+one\r\n+two\r\n:3\r\n")
    assert connection.exchange(b"asked", 3, soon()) == [b"one", b"two", 3]
    assert far.recv(100) == b"asked"


def test_a_long_question_and_a_long_answer_arrive_whole(pair):
    connection, far = pair
    question, heard = bytes(range(256)) * 20_000, bytearray()

    def answer():
        while len(heard) < len(question):
            heard.extend(far.recv(65_536))
        far.sendall(b"$5000000\r\n" + b"x" * 5_000_000 + b"\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    assert connection.exchange(question, 1, soon(50)) == [b"x" * 5_000_000]
    thread.join()
    assert heard == question


@pytest.mark.parametrize("payload", [b"asked", b"x" * 10_000_000], ids=["no answer", "no room"])
def test_no_answer_and_no_room_end_with_the_deadline(pair, payload):
    connection, far = pair
    far.sendall(b"$10\r\nhalf")
    with pytest.raises(TimeoutError):
        connection.exchange(payload, 1, soon(0.02))


def test_an_end_that_was_closed_is_told(pair):
    connection, far = pair
    far.close()
    with pytest.raises(OSError, match=r"Broken pipe|closed"):
        connection.exchange(b"asked", 1, soon())
    with pytest.raises(ConnectionError):
        connection.exchange(b"", 1, soon())
    connection.close()
    with pytest.raises(OSError, match=r"Bad file descriptor|closed"):
        connection.exchange(b"asked", 1, soon())


@pytest.mark.parametrize("raises", [KeyboardInterrupt, None])
def test_a_signal_is_handled_while_one_waits(pair, raises):
    connection, far = pair
    heard = []
    with signalled(lambda: far.recv(100), lambda: far.sendall(b"+told\r\n"), raises):
        heard += connection.exchange(b"asked", 1, soon())
    assert heard == ([] if raises else [b"told"])
