"""A Redis that is broken or hostile is an outage like any other: a decision, at once, in bounded memory, and no error.

The same for threads (with and without the C core) and for event loops.
"""

import asyncio
import contextlib
import itertools
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratekeeper import AsyncLimiter, Limiter, native
from ratekeeper.stores.redis import aio_connection, connection, reader
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.redis.topology import MOST_NODES
from tests import tier
from tests.attacks.hostile_redis import HostileRedis, bulk

KINDS = ["pure", "tasks", *(["native"] if native.core is not None else [])]
BUFFERED = 16 << 20  # bytes that sockets may hold on the way


@pytest.fixture(scope="module")
def server():
    server = HostileRedis()
    yield server
    server.close()


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch, server):
    server.reset()
    if request.param == "pure":
        monkeypatch.setattr(connection, "core", None)
        monkeypatch.setattr(reader, "ReplyFrames", reader.PureReplyFrames)
    return request.param


def decide(kind, url, limits="5/minute", checks=1):
    """The reasons of some checks, and what the event loop complained about."""
    url += "?deadline=20"
    if kind != "tasks":
        with contextlib.closing(Limiter(limits, store=url)) as limiter:
            return [shown(limiter.check(f"k{number}")) for number in range(checks)]

    async def main():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        async with AsyncLimiter(limits, store=url) as limiter:
            reasons = [shown(await limiter.check(f"k{number}")) for number in range(checks)]
        assert complaints == []
        return reasons

    return asyncio.run(main())


def shown(decision):
    """Every figure of a decision can be read, whatever the server said."""
    assert isinstance(decision.allowed, bool)
    assert decision.remaining >= 0
    assert decision.retry_after is None or decision.retry_after >= 0
    assert decision.reset_after >= 0
    return decision.reason


REDIRECTIONS = [
    "MOVED", "MOVED 7", "MOVED 7 ", "MOVED 7 here", "MOVED x 127.0.0.1:1", "MOVED 7 127.0.0.1:x",
    "MOVED 7 127.0.0.1:99999", "MOVED 7 127.0.0.1:0", "MOVED 7 127.0.0.1:-1", "MOVED 99999 127.0.0.1:6379",
    "MOVED -1 127.0.0.1:6379", "MOVED ² 127.0.0.1:²", "MOVED 7 \0:1", "MOVED 7 a..b\t:1", f"MOVED 7 {'a' * 300}:1",
    f"MOVED 7 127.0.0.1:{'9' * 5000}", f"MOVED {'9' * 5000} 127.0.0.1:1", "ASK", "ASK 7", "ASK 7 127.0.0.1:99999",
]  # fmt: skip


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
@pytest.mark.parametrize("text", REDIRECTIONS)
def test_a_redirection_to_nowhere(server, kind, scheme, text):
    server.replies[b"EVALSHA"] = b"-%b\r\n" % text.encode()
    server.last = ()
    (reason,) = decide(kind, f"{scheme}://127.0.0.1:{server.port}")
    assert reason.startswith(f"local: answered {text[:3]}")
    assert len(reason) < 250
    assert reason.isprintable()


ANSWERS = {
    "wrong types": [b"+OK\r\n", b":7\r\n", b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"$0\r\n\r\n", b"*1\r\n$1\r\nx\r\n"],
    "nested": [b"*1\r\n" * 8 + b"*0\r\n", b"*1\r\n" * 9 + b"+a\r\n", b"*1\r\n" * 100_000],
    "absurd lengths": [
        b"$99999999999999999999\r\n", b"*99999999999999999999\r\n", b"$4294967296\r\n", b"*4294967295\r\n",
        b"$67108865\r\n", b"*1048577\r\n", b"$-2\r\n", b"*-7\r\n", b"$+3\r\nabc\r\n", b"$ 3\r\nabc\r\n", b"$\r\n",
        b"*\r\n", b"$1e3\r\n", b"*2\r\n*1048576\r\n" + b":1\r\n" * 10,
    ],
    "no length that holds": [b"$3\r\nabcdef\r\n", b"$3\r\nabc\n\r"],
    "numbers": [b":\r\n", b":x\r\n", b":99999999999999999999\r\n", b":007\r\n", b":+5\r\n", b":--5\r\n"],
    "other protocols": [
        b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0" * 100, b"\r\n", b"\n", b"+\n",
        b"%1\r\n*0\r\n+a\r\n", b"~1\r\n*0\r\n", b"_\r\n", b",inf\r\n", b"#t\r\n", b"(99\r\n", b"=3\r\nabc\r\n",
        b">1\r\n+a\r\n",
        b"|1\r\n+a\r\n+b\r\n", b"!3\r\nabc\r\n",
    ],
    "more than was asked": [b"+OK\r\n" * 2],
    "truncated": [b"", b"$20\r\n\1\1\1", b"*2\r\n$20\r\n", b"-ERR", b"$2", b"$20\r\n" + b"\1" * 20],
    "long errors": [b"-ERR " + b"\x1b[2J\x07" * 1000 + b"\r\n", b"-" + b"\xff" * 65_000 + b"\r\n"],
}  # fmt: skip


@pytest.mark.parametrize("part", ["EVALSHA", "INFO", "TRIAL", "CLIENT"])
@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_that_is_none(server, kind, part, what):
    for answer in ANSWERS[what]:
        server.reset()
        server.replies[part.encode()] = answer
        server.replies[b"EVALSHA"] = server.replies[b"EVALSHA"] if part == "EVALSHA" else b"-ERR no\r\n"
        server.last = (part.encode(), b"EVALSHA")
        (reason,) = decide(kind, f"redis://127.0.0.1:{server.port}")
        assert reason.startswith("local: "), answer
        assert reason.isprintable()
        assert len(reason) < 300


@pytest.mark.full  # many connections
@pytest.mark.parametrize("part", ["CLUSTER", "SENTINEL"])
@pytest.mark.parametrize("what", [*ANSWERS, "maps"])
def test_a_map_that_is_none(server, kind, part, what):
    share = b"*1\r\n*3\r\n:%b\r\n:%b\r\n*2\r\n%b:%b\r\n"
    maps = [
        share % (b"0", b"999999999999999", bulk(b"127.0.0.1"), b"1"),
        share % (b"-5", b"16383", bulk(b"127.0.0.1"), b"1"),
        share % (b"9", b"3", bulk(b"127.0.0.1"), b"1"),
        share % (b"0", b"16383", bulk(b"127.0.0.1"), b"99999"),
        share % (b"0", b"16383", bulk(b"127.0.0.1"), b"-1"),
        share % (b"0", b"16383", bulk(b"\xff\0"), b"1"),
        share % (b"0", b"16383", b":7\r\n", b"1"),
        share % (b"0", b"16383", b"*0\r\n", b"1"),
        b"*1\r\n*2\r\n:0\r\n:16383\r\n",
        b"*1\r\n*3\r\n:0\r\n:16383\r\n*0\r\n",
        b"*2\r\n" + bulk(b"127.0.0.1") + bulk(b"99999"),
        b"*2\r\n" + bulk(b"\0") + bulk(b"1"),
        b"*2\r\n" + bulk(b"127.0.0.1") + bulk("²".encode()),
    ]
    for answer in maps if what == "maps" else ANSWERS[what]:
        server.reset()
        server.replies[part.encode()] = answer
        server.last = (part.encode(),)
        tail = "/main" if part == "SENTINEL" else ""
        (reason,) = decide(kind, f"redis+{part.lower()}://127.0.0.1:{server.port}{tail}")
        assert reason.startswith("local: "), answer


@pytest.mark.parametrize(
    "opening", [b"HTTP/1.1 400\r\n\r\n", b"+OK\r\n", b"\x15\x03\x01\x00\x02\x02\x28", b"\0" * 70_000]
)
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster"])
def test_a_server_that_speaks_first(server, kind, scheme, opening):
    server.opening = opening
    (reason,) = decide(kind, f"{scheme}://127.0.0.1:{server.port}")
    assert reason.startswith("local: ")


ENDLESS = {
    "line": lambda: itertools.chain([b"+"], itertools.repeat(b"x" * 65_536)),
    "error": lambda: itertools.chain([b"-"], itertools.repeat(b"x" * 65_536)),
    "text": lambda: itertools.chain([b"$67108864\r\n"], itertools.repeat(b"x" * 65_536)),
    "array": lambda: itertools.chain([b"*1048576\r\n"], itertools.repeat(b"$0\r\n\r\n" * 10_000)),
    "depth": lambda: itertools.repeat(b"*1\r\n" * 10_000),
    "replies": lambda: itertools.repeat(b"+OK\r\n" * 10_000),
}


@pytest.mark.parametrize("part", ["EVALSHA", "INFO"])
@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_an_end_is_not_kept(server, kind, part, what):
    if (kind, what) == ("pure", "array") and not tier.FULL:
        pytest.skip("it takes Python seconds to step over a million elements")
    server.replies[part.encode()] = ENDLESS[what]()
    (reason,) = decide(kind, f"redis://127.0.0.1:{server.port}")
    assert reason.startswith("local: ")
    most = reader.MOST_LINE if what in ("line", "error", "depth", "replies") else reader.MOST_BYTES
    assert server.sent <= most + BUFFERED


def test_a_server_that_redirects_for_ever_is_forgotten(server):
    """Each answer names another node: what is remembered of them is bounded."""
    store = RedisStore(f"redis+cluster://127.0.0.1:{server.port}", deadline=20)
    for number in range(MOST_NODES + 500):
        store.connections.server_at(("127.0.0.1", number + 1))
    assert len(store.connections.servers) <= MOST_NODES
    store.close()


def test_a_message_nobody_asked_for_ends_the_connection_only(server):
    """It was an IndexError in the caller that looked at the socket first."""

    async def main():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        async with AsyncLimiter("5/minute", store=f"redis://127.0.0.1:{server.port}?deadline=20") as limiter:
            await limiter.check("k")
            wire = aio_connection.AsyncRedisConnection(lambda reply: link.receive(reply), lambda *lost: None)
            link = limiter.store.server()
            link.in_flight.clear()
            wire.data_received(b"+unasked\r\n")
            assert wire.transport is None
        assert complaints == []

    server.reset()
    asyncio.run(main())


# Replies as they should be, damaged at random, and plain noise.
tokens = st.sampled_from(
    [b"*", b"$", b":", b"+", b"-", b"\r\n", b"\n", b"\r", b"-1", b"0", b"1", b"2", b"20", b"\1" * 20, b"OK",
     b"MOVED 7 127.0.0.1:", b"ASK 7 :", b"NOSCRIPT", b"TRYAGAIN", b"READONLY x", b"LOADING", b"OOM", b"99999", b"%",
     b"$20\r\n" + b"\1" * 20 + b"\r\n", b"$28\r\n" + b"\xff" * 28 + b"\r\n", b"*2\r\n", b"*1\r\n"]
)  # fmt: skip
streams = st.one_of(st.lists(tokens, max_size=12).map(b"".join), st.binary(max_size=60))


@given(
    stream=streams, part=st.sampled_from([b"EVALSHA", b"INFO", b"TRIAL", b"CLUSTER", b"EVAL"]), seed=st.integers(0, 99)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_bytes_end_in_a_decision(server, kind, stream, part, seed):
    server.reset()
    server.seed = seed
    server.replies[part] = stream
    if part == b"EVAL":
        server.replies[b"EVALSHA"] = b"-NOSCRIPT x\r\n"
    server.last = (part, b"EVALSHA", b"EVAL")
    scheme = "redis+cluster" if part == b"CLUSTER" else "redis"
    logging.getLogger("ratekeeper.store").setLevel(logging.CRITICAL)
    try:
        (reason,) = decide(kind, f"{scheme}://127.0.0.1:{server.port}")
    finally:
        logging.getLogger("ratekeeper.store").setLevel(logging.NOTSET)
    assert reason == "" or reason.startswith("local: ")
