"""The Redis listener: redis-py talks to it as to a server with redis-cell, and no bytes bring it down."""

import asyncio
import shutil
import socket
import subprocess

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.backoff import NoBackoff
from redis.retry import Retry

from ratekeeper import Policy
from ratekeeper.errors import InvalidInput
from ratekeeper.service.decider import Decider
from ratekeeper.service.options import Bounds, Options
from ratekeeper.service.resp import RespListener
from ratekeeper.testing import FakeClock
from tests import tier
from tests.service.running import ANY, running


@pytest.fixture(scope="module")
def service():
    with running(resp=ANY, still=True) as found:
        yield found


@pytest.fixture(params=[2, 3])
def client(service, request):
    with redis.Redis(port=service.addresses["resp"][1], protocol=request.param, socket_timeout=60) as found:
        yield found


def talk(service, sent):
    with socket.create_connection(service.addresses["resp"], 60) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        found = b""
        while part := sock.recv(65536):
            found += part
        return found


def test_throttle_answers_as_redis_cell_does(client):
    key = f"cell{client.connection_pool.connection_kwargs['protocol']}"
    answers = [client.execute_command("CL.THROTTLE", key, 2, 3, 3600) for _ in range(4)]
    assert answers == [[0, 3, 2, -1, 1200], [0, 3, 1, -1, 2400], [0, 3, 0, -1, 3600], [1, 3, 0, 1200, 3600]]


def test_throttle_answers_as_redis_cell_does_at_every_instant():
    """The cases that redis-cell tests itself with: milliseconds, quantity, and the whole answer."""
    cases = [
        (0, 6, [1, 5, 5, -1, 0]),  # more than there ever is
        *[(0, 1, [0, 5, 5 - number, -1, number]) for number in (1, 2, 3, 4, 5)],
        (0, 1, [1, 5, 0, 1, 5]),
        (0, 0, [0, 5, 0, -1, 5]),  # only looks, so nothing is refused
        (3000, 1, [0, 5, 2, -1, 3]),
        (3100, 1, [0, 5, 1, -1, 4]),
        (4000, 1, [0, 5, 1, -1, 4]),
        (8000, 1, [0, 5, 4, -1, 1]),
        (9500, 1, [0, 5, 4, -1, 1]),
        (9500, 0, [0, 5, 4, -1, 1]),
        (9500, 2, [0, 5, 2, -1, 3]),
        (9500, 5, [1, 5, 2, 3, 3]),
    ]

    async def run():
        clock = FakeClock()
        options = Options()
        listener = RespListener(Decider(Policy.parse({"rules": []}, clock=clock), options), options.bounds)
        at = 0
        for instant, quantity, expected in cases:
            clock.advance((instant - at) / 1000)
            at = instant
            answer = listener.throttle([b"CL.THROTTLE", b"foo", b"4", b"1", b"1", b"%d" % quantity])
            assert [int(word) for word in answer.split(b":")[1:]] == expected, instant

    asyncio.run(run())


def test_a_key_may_be_any_bytes(client):
    key = b"\xff\x00%d" % client.connection_pool.connection_kwargs["protocol"]
    assert [client.execute_command("CL.THROTTLE", key, 3, 4, 3600)[2] for _ in range(3)] == [3, 2, 1]


def test_the_fallback_answers_for_a_dead_store():
    with running(resp=ANY, store="redis://127.0.0.1:1/0") as service:
        with redis.Redis(port=service.addresses["resp"][1], socket_timeout=60) as client:
            answers = [client.execute_command("CL.THROTTLE", "k", 7, 8, 86400) for _ in range(6)]
        assert [answer[:3] for answer in answers] == [[0, 4, 3], [0, 4, 2], [0, 4, 1], [0, 4, 0], [1, 4, 0], [1, 4, 0]]
        assert service.worker.decider.counters.store_errors == 6


def test_a_dead_store_that_denies_is_an_error_and_no_refusal():
    with running(resp=ANY, store="redis://127.0.0.1:1/0?on_store_error=deny") as service:
        with redis.Redis(port=service.addresses["resp"][1], socket_timeout=60, retry=Retry(NoBackoff(), 0)) as client:
            for words in [("CL.THROTTLE", "k", 7, 8, 86400)] * 3 + [("RK.CHECK", "k", "8/day")]:
                with pytest.raises(redis.exceptions.TryAgainError, match="the store does not answer"):
                    client.execute_command(*words)
        assert service.worker.decider.counters.store_errors == 4
        assert not any(service.worker.decider.counters.by_rule().values())


def test_a_whole_pipeline_is_answered_while_the_store_is_dead():
    """Keys of text, of any bytes and too long ones, and mistakes between them, each in its place."""
    with running(resp=ANY, store="redis://127.0.0.1:1/0") as service:
        decider = service.worker.decider
        with redis.Redis(port=service.addresses["resp"][1], socket_timeout=60) as client:
            client.execute_command("CL.THROTTLE", "first", 7, 8, 86400)  # from now on the store is known to be away
            pipe = client.pipeline(transaction=False)
            keys = ["k", b"\xff\x00", "long" * 200]
            for _ in range(6):
                for key in keys:
                    pipe.execute_command("CL.THROTTLE", key, 7, 8, 86400)
                pipe.execute_command("CL.THROTTLE", "", 7, 8, 86400)
                pipe.execute_command("PING")
            answers = pipe.execute(raise_on_error=False)
            rows = [answers[start : start + 5] for start in range(0, 30, 5)]
            left = [3, 2, 1, 0, 0, 0]
            assert [[one[2] for one in row[:3]] for row in rows] == [[number] * 3 for number in left]
            assert all("names the caller" in str(row[3]) and row[4] is True for row in rows)
            for key in keys:  # the long way knows the same counter
                assert client.execute_command("CL.THROTTLE", key, 7, 8, 86400, 0)[2] == 0
            assert decider.counters.store_errors == 1 + 18 + 3
        service.loop.call_soon_threadsafe(service.worker.listeners[1].sweep)
        service.run(asyncio.sleep(0))
        assert decider.counters.by_rule()["CL.THROTTLE"] == {"allowed": 13, "refused": 6}


def test_quantity_0_only_looks_and_more_than_the_burst_never_passes(client):
    assert client.execute_command("CL.THROTTLE", "looked", 4, 5, 3600, 0)[:3] == [0, 5, 5]
    assert client.execute_command("CL.THROTTLE", "looked", 4, 5, 3600, 6)[:4] == [1, 5, 5, -1]


def test_sent_ahead_it_answers_in_order(client):
    key = f"ahead{client.connection_pool.connection_kwargs['protocol']}"
    pipe = client.pipeline(transaction=False)
    for _ in range(300):
        pipe.execute_command("CL.THROTTLE", key, 199, 200, 36000)
    assert [answer[2] for answer in pipe.execute()] == [*range(199, -1, -1), *[0] * 100]


def test_our_own_command_is_exact(client):
    key = f"own{client.connection_pool.connection_kwargs['protocol']}"
    assert client.execute_command("RK.CHECK", key, "3/hour", "COST", 2) == [1, 3, 1, 0, 2_400_000_000, 0]
    allowed, limit, remaining, retry, reset, delay = client.execute_command("RK.CHECK", key, "3/hour", "COST", 2)
    assert (allowed, limit, remaining, delay) == (0, 3, 1, 0)
    assert (retry, reset) == (1_200_000_000, 2_400_000_000)
    assert client.execute_command("RK.CHECK", key, "3/hour", "PEEK")[2] == 1
    assert client.execute_command("RK.CHECK", key, "3/hour", "COST", 9)[3] == -1


def test_text_is_the_same_key_at_every_listener(service, client):
    key = f"listener{client.connection_pool.connection_kwargs['protocol']}"
    service.post("/v1/check", {"key": key, "limit": "5/hour", "cost": 4})
    assert client.execute_command("RK.CHECK", key, "5/hour")[2] == 0


WRONG = [
    (("CL.THROTTLE", "k", 1, 1), "wrong number of arguments for 'cl.throttle' command"),
    (("CL.THROTTLE", "k", 1, "x", 1), "expected a whole number, got 'x'."),
    (("CL.THROTTLE", "", 1, 1, 1), "key: expected something that names the caller, got ''."),
    (("RK.CHECK", "k", "3/minut"), "limit '3/minut': expected"),
    (("RK.CHECK", "k", "3/minute", "CST", 1), "RK.CHECK: expected COST n, NAME name or PEEK, got 'CST'."),
    (("FLUSHALL",), "unknown command 'FLUSHALL'"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_a_mistake_is_an_error(client, words, message):
    with pytest.raises(redis.ResponseError) as error:
        client.execute_command(*words)
    assert str(error.value).startswith(message)


def test_a_password_is_asked_for():
    with running(resp=ANY, token="secret") as service:
        port = service.addresses["resp"][1]
        once = Retry(NoBackoff(), 0)  # the client's own patience would take seconds
        for client in (redis.Redis(port=port, retry=once), redis.Redis(port=port, password="wrong", retry=once)):
            with client, pytest.raises((redis.AuthenticationError, redis.ResponseError)):
                client.ping()
        with redis.Redis(port=port, password="secret", protocol=3) as client:
            assert client.ping()


def test_redis_cli_is_understood(service):
    binary = shutil.which("redis-cli")
    if binary is None:
        pytest.skip("no redis-cli here")
    words = [binary, "-p", str(service.addresses["resp"][1]), "CL.THROTTLE", "cli", "15", "30", "60"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == [
        "0",
        "16",
        "15",
        "-1",
        "2",
    ]


def test_what_is_typed_is_understood(service):
    assert talk(service, b"PING\r\nECHO hello\r\n") == b"+PONG\r\n$5\r\nhello\r\n"


KNOWN = [b"CL.THROTTLE", b"RK.CHECK", b"AUTH", b"HELLO", b"CONFIG", b"1", b"9" * 30, b"3/s"]
HARM = [
    b"*4294967295\r\n",
    b"*100000000\r\n",
    b"*1\r\n$99999999999\r\n",
    b"*-5\r\n",
    b"*1\r\n*1\r\n*1\r\n*1\r\n",
]


@pytest.mark.parametrize("sent", HARM)
def test_harm_is_refused(service, sent):
    found = talk(service, sent)
    assert found == b"" or found.startswith(b"-ERR Protocol error: ")


def test_a_long_list_is_refused_in_two_parts_as_well(service):
    with socket.create_connection(service.addresses["resp"], 60) as sock:
        sock.sendall(b"*1")
        assert service.call("GET", "/healthz")[0] == 200  # by now the first part has been read
        sock.sendall(b"00000000\r\n")
        assert sock.recv(100).startswith(b"-ERR Protocol error: expected a command of at most 64 words")


def test_a_command_without_end_is_refused():
    with running(resp=ANY, bounds=Bounds(body=1000)) as service:
        assert talk(service, b"*2\r\n$4\r\nPING\r\n$99999\r\n" + b"a" * 5000).startswith(b"-ERR Protocol error")


@settings(max_examples=tier.examples(200))
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.one_of(st.sampled_from(KNOWN), st.binary(max_size=30)), min_size=1, max_size=8,
        ).map(lambda words: b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(w), w) for w in words])),
    )
)  # fmt: skip
def test_no_bytes_bring_the_listener_down(service, sent):
    talk(service, sent)
    assert talk(service, b"*1\r\n$4\r\nPING\r\n") == b"+PONG\r\n"


def test_the_same_answers_from_redis(redis_server):
    with running(resp=ANY, store=f"{redis_server.url}/4?deadline=10") as service:
        with redis.Redis(port=service.addresses["resp"][1]) as client:
            pipe = client.pipeline(transaction=False)
            for _ in range(20):
                pipe.execute_command("CL.THROTTLE", "far", 9, 10, 3600)
            assert [answer[2] for answer in pipe.execute()] == [*range(9, -1, -1), *[0] * 10]
        redis_server.client(db=4).flushdb()


def test_a_transaction_is_refused_before_anything_is_charged(client):
    """redis-py sends MULTI, the commands and EXEC at once, and reads the replies afterwards."""
    key = f"tx{client.connection_pool.connection_kwargs['protocol']}"
    throttle = ("CL.THROTTLE", key, 2, 3, 3600)
    assert client.execute_command(*throttle)[2] == 2  # from now on it is recognised by its bytes
    with pytest.raises(redis.ResponseError, match="expected no MULTI before it, as each command decides at once"):
        client.pipeline(transaction=True).execute_command(*throttle).execute_command(*throttle).execute()
    assert client.execute_command(*throttle)[2] == 1
    assert client.pipeline(transaction=False).execute_command(*throttle).execute() == [[0, 3, 0, -1, 3600]]


ABORTED = "Transaction discarded because of previous errors: nothing was charged."


@pytest.mark.parametrize(
    ("sent", "reply"),
    [
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI|MULTI|DISCARD|PING", "+OK|-ERR MULTI calls can not be nested|+OK|+PONG"),
        (
            "MULTI|EXEC|PING",
            "+OK|-EXECABORT Transaction discarded because of previous errors: nothing was charged.|+PONG",
        ),
        ("MULTI|RESET|PING", "+OK|+RESET|+PONG"),
        ("MULTI|QUIT", "+OK|+OK"),
    ],
)
def test_the_frame_of_a_transaction(service, sent, reply):
    commands = b"".join([b"*1\r\n$%d\r\n%b\r\n" % (len(word), word) for word in sent.encode().split(b"|")])
    assert talk(service, commands).decode() == reply.replace("|", "\r\n") + "\r\n"


def test_del_and_ttl_of_what_throttle_counts(client):
    # Periods that no other test has: limits of one period share what a key has used.
    one, other = (f"del{n}-{client.connection_pool.connection_kwargs['protocol']}" for n in range(2))
    assert (client.ttl(one), client.delete(one)) == (-2, 0)
    for _ in range(3):
        client.execute_command("CL.THROTTLE", one, 2, 3, 7200)
    client.execute_command("CL.THROTTLE", one, 9, 10, 90)
    client.execute_command("CL.THROTTLE", other, 2, 3, 7200)
    assert (client.ttl(one), client.ttl(other)) == (7200, 2400)
    pipeline = client.pipeline(transaction=False)
    pipeline.delete(one, other, "nobody", one).execute_command("CL.THROTTLE", one, 2, 3, 7200)
    assert pipeline.execute() == [2, [0, 3, 2, -1, 2400]]
    assert client.ttl(other) == -2


def test_reset_forgets_one_limit(client):
    key = f"reset{client.connection_pool.connection_kwargs['protocol']}"
    for limit in ("2/hour", "3/hour"):
        assert client.execute_command("RK.CHECK", key, limit)[2] == int(limit[0]) - 1
    assert client.execute_command("RK.RESET", key, "2/hour") in (b"OK", True, "OK")
    assert client.execute_command("RK.CHECK", key, "2/hour", "PEEK")[2] == 2
    assert client.execute_command("RK.CHECK", key, "3/hour", "PEEK")[2] == 2
    with pytest.raises(redis.ResponseError, match=r"RK.RESET: expected NAME name, got 'COST'"):
        client.execute_command("RK.RESET", key, "2/hour", "COST", 1)


def test_del_and_ttl_on_redis(redis_server):
    with (
        running(resp=ANY, http=None, store=f"{redis_server.url}/0?prefix=resp-del&deadline=30") as service,
        redis.Redis(port=service.addresses["resp"][1], socket_timeout=60) as client,
    ):
        client.execute_command("CL.THROTTLE", "k", 2, 3, 3600)
        assert 1190 <= client.ttl("k") <= 1200
        assert (client.delete("k"), client.ttl("k"), client.delete("k")) == (1, -2, 0)


def test_del_needs_one_worker():
    async def refused():
        listener = RespListener(Decider(Policy.parse({"rules": []}), Options(workers=2)), Bounds())
        for command in ("DEL", "TTL"):
            with pytest.raises(InvalidInput, match=f"{command}: expected a service with one worker"):
                listener.throttled(b"k", command)

    asyncio.run(refused())
