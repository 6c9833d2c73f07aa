"""Heads that were parsed before are not parsed again: that must make no difference but time."""

import asyncio
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper.service.http import server as http
from ratekeeper.service.http.response import TEXT, response
from ratekeeper.service.http.server import HttpConnection, HttpListener
from ratekeeper.service.options import Bounds
from tests import tier

LINES = st.lists(
    st.sampled_from([
        b"host: x", b"Host: y", b"X-A:  1 ", b"x-a: 2", b"content-length: 3", b"Content-Length: 0",
        b"content-length: 03", b"content-length: 3, 3", b"transfer-encoding: chunked", b"connection: close",
        b"connection: keep-alive", b"expect: 100-continue", b"upgrade: h2c", b"", b" folded", b"bad line",
    ]),
    max_size=3,
)  # fmt: skip
STARTS = st.sampled_from([
    b"GET /a?b=1 HTTP/1.1", b"GET http://h/a HTTP/1.1", b"POST /a HTTP/1.1", b"HEAD / HTTP/1.1", b"GET / HTTP/1.0",
    b"\r\nGET / HTTP/1.1", b"BREW / HTTP/1.1",
])  # fmt: skip
BODIES = st.sampled_from([b"", b"abc", b"abcd", b"3\r\nabc\r\n0\r\n\r\n", b"\r\n\r\n", b"a\r"])
GOOD = b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
ANY = st.builds(lambda start, lines, body: b"\r\n".join([start, *lines]) + b"\r\n\r\n" + body, STARTS, LINES, BODIES)
REQUEST = st.one_of(st.just(GOOD), ANY)


class Transport:
    """Keeps what is written."""

    def __init__(self):
        self.written = b""
        self.closed = False

    def write(self, part):
        self.written += part

    def close(self):
        self.closed = True

    abort = write_eof = pause_reading = resume_reading = close

    def is_closing(self):
        return self.closed

    def get_extra_info(self, name):
        return ("192.0.2.1", 1)

    def set_write_buffer_limits(self, high):
        pass


def exchange(parts, *, taught=None, learns=True):
    """What a connection that sends ``parts`` gets back, and which calls were made; others sent ``taught`` before."""
    calls = []

    def route(call):
        calls.append((call.method, call.path, call.query, call.headers, call.body, call.peer))
        return response(200, b"%d" % len(calls), TEXT)

    async def run():
        listener = HttpListener(route, Bounds())
        if not learns:
            listener.remember = lambda part, call: None
        else:
            for part in parts if taught is None else taught:
                before = HttpConnection(listener)
                before.connection_made(Transport())
                before.data_received(part)
            calls.clear()
        connection = HttpConnection(listener)
        connection.connection_made(Transport())
        for part in parts:
            connection.data_received(part)
        return connection.transport.written, connection.transport.closed, calls, len(listener.heads)

    return asyncio.run(run())


def date_less(found):
    return [line for line in found.split(b"\r\n") if not line.startswith(b"date:")]


@settings(max_examples=tier.examples(300), deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=4), st.lists(st.integers(1, 150), max_size=3))
def test_a_head_that_is_known_makes_no_difference(requests, cuts):
    whole = b"".join(requests)
    places = sorted({0, *[cut for cut in cuts if cut < len(whole)], len(whole)})
    for parts in (requests, [whole[first:last] for first, last in pairwise(places)]):
        parsed, cached = exchange(parts, learns=False), exchange(parts, taught=requests)
        assert date_less(cached[0]) == date_less(parsed[0])
        assert cached[1:3] == parsed[1:3]


def test_a_head_is_known_after_once_and_only_whole():
    assert exchange([GOOD])[3] == 1
    assert exchange([GOOD + GOOD])[3] == 0  # a part with more than one request teaches nothing
    assert exchange([GOOD, GOOD + GOOD + GOOD])[2] == exchange([GOOD] * 4, learns=False)[2]
    assert exchange([GOOD[:50], GOOD[50:]])[3] == 0
    assert exchange([GOOD.replace(b"host: x", b"connection: close")])[3] == 0


def test_heads_are_bounded(monkeypatch):
    monkeypatch.setattr(http, "MOST_HEADS", 4)
    many = [GOOD.replace(b"host: x", b"host: %d" % number) for number in range(10)]
    assert exchange(many)[3] <= 4
    long = GOOD.replace(b"host: x", b"host: " + b"x" * http.LONGEST_HEAD)
    assert exchange([long])[3] == 0


def test_a_known_head_may_be_cut_anywhere():
    whole = GOOD + GOOD
    plain = exchange([whole], learns=False)[2]
    for place in range(1, len(whole)):
        assert exchange([whole[:place], whole[place:]], taught=[GOOD])[2] == plain, place
