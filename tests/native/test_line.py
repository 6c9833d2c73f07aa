"""Threads on one connection, in C: each gets its own answer, whatever the server says and whoever leaves early.

The laws that need no interpreter, with deadlines and signals at random, are in tests/native/line.c.
"""

import os
import random
import socket
import threading
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limit, native
from ratekeeper.stores.redis.layout import RecordLayout
from ratekeeper.stores.redis.request import CheckRequest, PlanRequest, command, evaluation
from ratekeeper.stores.redis.resp import MOST_REQUESTS
from tests.interruption import signalled

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no C core")

SHA = b"0" * 40
LONG = 60.0


class Far:
    """A line, and the other end of it."""

    def __init__(self, *functions):
        near, self.socket = socket.socketpair()
        self.socket.settimeout(LONG)
        self.line = native.core.Line(near.detach(), evaluation(SHA), *functions)
        self.told, self.threads = {}, []

    def start(self, name, call):
        """``call`` in a thread of its own; what it returned or raised is told by its name."""

        def run():
            try:
                self.told[name] = call()
            except BaseException as error:
                self.told[name] = error

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def exchange(self, name, payload, seconds=LONG):
        self.start(name, lambda: self.line.exchange(payload, 1, seconds))

    def hear(self, payload):
        """Wait for exactly that."""
        heard = b""
        while len(heard) < len(payload):
            heard += self.socket.recv(len(payload) - len(heard))
        assert heard == payload

    def awaits(self, many):
        """Wait until so many are in line."""
        while self.line.waiting < many:
            pass

    def echo(self, name):
        """Hear what is asked under that name, and answer the same."""
        self.hear(name.encode())
        self.socket.sendall(b"+%b\r\n" % name.encode())

    def ends(self):
        for thread in self.threads:
            thread.join(LONG)
        assert not any(thread.is_alive() for thread in self.threads)
        self.socket.close()
        return self.told


@pytest.fixture
def far():
    far = Far()
    yield far
    far.line.close()
    far.ends()


def held(far):
    """One has asked, so all who come now line up."""
    far.exchange("first", b"first")
    far.hear(b"first")


LAYOUTS = [RecordLayout("a", Limit.parse("5/second")), RecordLayout("b", Limit.parse("9/hour sliding_log"))]
SEVERAL = RecordLayout("c", Limit.parse("7/minute fixed_window"))


def plan(keys):
    return PlanRequest("check", [(SEVERAL, key, 2) for key in keys])


class Prepared:
    """A request of a prepared plan: all requests of one plan have the very same words."""

    def __init__(self, template, keys):
        self.keys = b"".join([layout.keys(key) for (layout, _, _), key in zip(template.checks, keys, strict=False)])
        self.keys_count, self.words, self.words_count = template.keys_count, template.words, template.words_count


TEMPLATES = [
    PlanRequest("check", [(LAYOUTS[0], "x", 1), (SEVERAL, "y", 3)]),  # all or nothing: plans that are alike are joined
    PlanRequest("check", [(LAYOUTS[1], "x", 1), (SEVERAL, "y", 1)]),  # with a log: each is written by itself
]
requests = st.one_of(
    st.builds(Prepared, st.sampled_from(TEMPLATES), st.sampled_from(["xy", "zw", "uv"])),
    st.builds(CheckRequest, st.sampled_from(LAYOUTS), st.sampled_from("xyz"), st.sampled_from([1, 1, 1, 2])),
    st.builds(plan, st.lists(st.sampled_from("uvw"), min_size=2, max_size=3, unique=True)),
)


@given(st.lists(requests, min_size=1, max_size=12))
def test_what_is_gathered_is_written_as_python_writes_it(asked):
    far = Far()
    held(far)
    for number, request in enumerate(asked):
        before = sum(thread.is_alive() for thread in far.threads)
        words = request.keys, request.keys_count, request.words, request.words_count
        far.start(number, lambda words=words: far.line.ask(*words, LONG))
        far.awaits(before)  # in this order
    far.socket.sendall(b"+ok\r\n")
    far.hear(command(asked, b"EVALSHA", SHA, None))
    answers = [b"%d" % number for number in range(len(asked))]
    bulks = b"".join([b"$%d\r\n%b\r\n" % (len(answer), answer) for answer in answers])
    far.socket.sendall(bulks if len(asked) == 1 else b"*%d\r\n" % len(asked) + bulks)
    told = far.ends()
    assert [told[number] for number in range(len(asked))] == answers


ERROR = "NOSCRIPT No matching script."


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"-" + ERROR.encode() + b"\r\n", [ERROR, ERROR]),
        (b"*2\r\n$1\r\na\r\n-" + ERROR.encode() + b"\r\n", [b"a", ERROR]),
        (b"*2\r\n$-1\r\n$" + b"300\r\n" + b"x" * 300 + b"\r\n", [(), b"x" * 300]),
        (b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n", [(), ()]),
        (b"*1\r\n$1\r\na\r\n", [(), ()]),
        (b"*3\r\n$1\r\na\r\n$1\r\na\r\n$1\r\na\r\n", [(), ()]),
        (b"$1\r\na\r\n", [(), ()]),
        (b"+OK\r\n", [(), ()]),
        (b"*-1\r\n", [(), ()]),
    ],
)
@pytest.mark.parametrize("pieces", [True, False])
def test_each_is_told_what_the_server_said_to_it(far, answer, expected, pieces):
    held(far)
    for number, request in enumerate([CheckRequest(LAYOUTS[0], key, 1) for key in "xy"]):
        words = request.keys, 1, request.words, 0
        far.start(number, lambda words=words: far.line.ask(*words, LONG))
        far.awaits(number + 1)
    far.socket.sendall(b"+ok\r\n")
    far.socket.recv(65536)
    for piece in [answer[at : at + 1] for at in range(len(answer))] if pieces else [answer]:
        far.socket.sendall(piece)
    told = far.ends()
    assert [told[number] for number in range(2)] == expected


@pytest.mark.parametrize(
    "answer", [b"?\r\n", b"\r\n", b"$x\r\n", b"$-2\r\n", b"*99999999999\r\n", b"$99999999999999999999\r\n", b"+a\n"]
)
def test_what_is_no_answer_ends_the_connection_for_all(far, answer):
    held(far)
    far.exchange("second", b"second")
    far.awaits(1)
    far.socket.sendall(answer)
    told = far.ends()
    assert isinstance(told["first"], OSError)
    assert told["second"] is None  # it was not sent


def test_more_than_was_asked_for_ends_the_connection_for_the_next(far):
    held(far)
    far.exchange("second", b"second")
    far.awaits(1)
    far.socket.sendall(b"+ok\r\n+what\r\n")
    assert far.ends() == {"first": b"+ok\r\n", "second": None}
    assert far.line.exchange(b"third", 1, LONG) is None


@given(st.lists(st.sampled_from([b"*2\r\n", b"$3\r\n", b"abc", b"\r\n", b"$-1\r\n", b":7\r\n", b"-E\r\n", b"*", b"$"])))
def test_no_answer_breaks_it(pieces):
    far = Far()
    held(far)
    far.exchange("second", b"second", 0.0)
    for piece in pieces:
        far.socket.sendall(piece)
    far.socket.shutdown(socket.SHUT_WR)
    told = far.ends()
    assert isinstance(told["first"], bytes | OSError)
    assert told["second"] is None or isinstance(told["second"], OSError | bytes)


def test_many_threads_get_their_own_answers(far):
    wrong = []

    def echo():
        chance, rest = random.Random(1), b""
        while heard := far.socket.recv(1000):
            *lines, rest = (rest + heard).split(b"\n")
            answer = b"".join([b"+" + line + b"\r\n" for line in lines])
            while answer:
                size = chance.randrange(1, 60)
                far.socket.sendall(answer[:size])
                answer = answer[size:]

    def ask(first):
        numbers = range(first, first + 500)
        wrong.extend([each for each in numbers if far.line.exchange(b"%d\n" % each, 1, LONG) != b"+%d\r\n" % each])

    server = threading.Thread(target=echo)
    server.start()
    for number in range(16):
        far.start(number, lambda number=number: ask(number * 1000))
    for thread in far.threads:
        thread.join()
    far.line.close()
    server.join()
    assert (wrong, set(far.told.values())) == ([], {None})


class Interruption(BaseException):
    pass


def test_what_is_queued_is_sent_before_the_answer_comes_and_answers_keep_their_order():
    """A round trip that takes more than half of the deadline left no time for whoever had to queue."""
    far = Far(None, None, 0.0)
    names = [f"call {number}" for number in range(10)]
    for name in names:
        far.exchange(name, name.encode())
        far.hear(name.encode())  # though no answer has come yet
    far.socket.sendall(b"".join([b"+%b\r\n" % name.encode() for name in names]))
    assert far.ends() == {name: b"+%b\r\n" % name.encode() for name in names}


def test_of_batches_in_flight_each_loses_its_own_callers_only():
    far = Far(None, None, 0.0)
    far.exchange("late", b"late", 0.01)
    far.hear(b"late")
    far.threads[0].join(LONG)
    far.exchange("next", b"next")
    far.hear(b"next")
    far.socket.sendall(b"+for late\r\n+for next\r\n")
    told = far.ends()
    assert isinstance(told["late"], TimeoutError)
    assert told["next"] == b"+for next\r\n"


def test_batches_in_flight_are_bounded_and_the_connection_may_end_with_all_of_them():
    far = Far(None, None, 0.0)
    for number in range(40):
        far.exchange(number, b"x")
        if number < 32:
            far.hear(b"x")
    far.awaits(8)
    far.socket.close()
    assert all(isinstance(told, OSError) or told is None for told in far.ends().values())


def test_whoever_is_interrupted_while_it_speaks_hands_on_the_lead_and_its_answer_goes_to_nobody(far):
    def when():
        far.hear(b"main")
        far.exchange("second", b"second")
        far.awaits(1)

    with signalled(when, raises=Interruption):
        far.line.exchange(b"main", 1, LONG)
    far.socket.sendall(b"+main\r\n")
    far.echo("second")
    assert far.ends() == {"second": b"+second\r\n"}


def test_an_answer_that_nobody_waited_for_is_not_the_next_one_s(far):
    with signalled(lambda: far.hear(b"main"), raises=Interruption):
        far.line.exchange(b"main", 1, LONG)
    far.socket.sendall(b"+main\r\n")
    far.exchange("next", b"next")
    far.echo("next")
    assert far.ends() == {"next": b"+next\r\n"}


def test_whoever_is_interrupted_in_line_is_not_sent(far):
    held(far)

    def when():
        far.awaits(1)
        far.exchange("third", b"third")
        far.awaits(2)

    with signalled(when, raises=Interruption):
        far.line.exchange(b"main", 1, LONG)
    far.socket.sendall(b"+first\r\n")
    far.echo("third")
    assert far.ends() == {"first": b"+first\r\n", "third": b"+third\r\n"}


def test_whoever_is_late_in_line_is_not_sent_and_whoever_speaks_may_have_been_heard(far):
    far.exchange("first", b"first", 0.3)
    far.hear(b"first")
    assert far.line.exchange(b"late", 1, 0.001) is None
    far.exchange("third", b"third")
    far.awaits(1)
    far.threads[0].join()
    far.socket.sendall(b"+first\r\n")
    far.echo("third")
    told = far.ends()
    assert isinstance(told["first"], TimeoutError)
    assert told["third"] == b"+third\r\n"


def test_a_line_that_is_closed_lets_everybody_go(far):
    held(far)
    far.exchange("second", b"second")
    far.awaits(1)
    far.line.close()
    told = far.ends()
    assert isinstance(told["first"], OSError)
    assert told["second"] is None
    assert far.line.exchange(b"third", 1, LONG) is None


def test_a_child_that_closes_its_copy_does_not_end_the_parents_conversation(far):
    child = os.fork()
    if not child:
        far.line.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    far.exchange("parent", b"parent")
    far.echo("parent")
    assert far.ends() == {"parent": b"+parent\r\n"}


def test_what_cannot_be_asked_is_told(far):
    with pytest.raises(ValueError, match="exchange: expected a command that is answered"):
        far.line.exchange(b"", 0, 1.0)
    with pytest.raises(TypeError):
        far.line.ask("keys", 1, b"", 0, 1.0)


def turned(plain):
    """As good as encrypted: each byte is another one, and turned again it is the same."""
    return bytes([255 - byte for byte in plain])


def test_what_is_sent_is_encrypted_and_what_is_read_is_decrypted_by_the_one_who_leads():
    pieces, arrived = [], SimpleQueue()

    def decrypt(read):  # a record is decrypted when all of it is there
        pieces.append(read)
        arrived.put(read)
        whole = b"".join(pieces)
        if not whole.endswith(turned(b"\r\n")):
            return b""
        pieces.clear()
        return turned(whole)

    far = Far(turned, decrypt)
    far.exchange("first", b"first")
    far.hear(turned(b"first"))
    for number, name in enumerate(("second", "third")):
        far.exchange(name, name.encode())
        far.awaits(number + 1)
    for part in (b"+fi", b"rst", b"\r\n"):
        far.socket.sendall(turned(part))
        assert arrived.get(timeout=LONG) == turned(part)  # read by itself
    far.hear(turned(b"secondthird"))
    far.socket.sendall(turned(b"+2\r\n+3\r\n"))
    assert far.ends() == {"first": b"+first\r\n", "second": b"+2\r\n", "third": b"+3\r\n"}


@pytest.mark.parametrize("broken", ["encrypt", "decrypt"])
@pytest.mark.parametrize("raised", [ConnectionResetError("over"), Interruption("by a signal"), "no bytes"])
def test_a_session_that_fails_ends_the_connection_and_says_why(broken, raised):
    def fail(plain):
        if isinstance(raised, str):
            return raised
        raise raised

    functions = {"encrypt": turned, "decrypt": turned, broken: fail}
    far = Far(functions["encrypt"], functions["decrypt"])
    if broken == "decrypt":
        far.socket.sendall(b"x")
    expected = TypeError if isinstance(raised, str) else type(raised)
    with pytest.raises(expected):
        far.line.exchange(b"asked", 1, LONG)
    assert far.line.exchange(b"again", 1, LONG) is None  # nothing is sent on it any more
    far.line.close()
    far.ends()


def test_a_session_is_both_functions_or_none():
    near, far = socket.socketpair()
    with pytest.raises(TypeError, match="Line: expected encrypt and decrypt together"):
        native.core.Line(near.fileno(), b"", turned)
    near.close()
    far.close()


def test_a_command_has_as_many_requests_as_python_s(far):
    assert far.line.most == MOST_REQUESTS
