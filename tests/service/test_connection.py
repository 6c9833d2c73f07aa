"""Connections on a live Redis: what arrives together is asked together, and answers keep their order."""

import json
import re
import socket
import threading
from contextlib import contextmanager

import pytest

from tests.service.running import ANY, running

LIMIT = "30/hour"


def post(body):
    text = json.dumps(body)
    return f"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode()


def command(*words):
    parts = [str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def receive(sock, mark, times):
    found = b""
    while found.count(mark) < times:
        part = sock.recv(65536)
        assert part
        found += part
    return found


def commands(server):
    stats = server.client().info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))


@contextmanager
def serving(redis_server, protocol):
    database = 5 if protocol == "http" else 6
    redis_server.client(db=database).flushdb()
    options = {"http": None, protocol: ANY, "store": f"{redis_server.url}/{database}?deadline=10"}
    with running(**options) as service, socket.create_connection(service.addresses[protocol], timeout=60) as sock:
        yield service, sock


def test_pipelined_calls_travel_in_few_commands_and_are_answered_in_order(redis_server):
    with serving(redis_server, "http") as (_, sock):
        check = {"key": "pipelined", "limit": LIMIT}
        sock.sendall(post(check))
        receive(sock, b"}", 1)  # connected, and the question is cached
        before = commands(redis_server)
        sock.sendall(b"".join([post(check)] * 40))
        text = receive(sock, b"}", 40)
        remaining = [int(number) for number in re.findall(rb'"remaining":(\d+)', text)]
        assert remaining == [*range(28, -1, -1), *[0] * 11]
        assert commands(redis_server) - before <= 4


def test_pipelined_commands_travel_in_few_commands_and_are_answered_in_order(redis_server):
    with serving(redis_server, "resp") as (_, sock):
        throttle = command("CL.THROTTLE", "pipelined", 29, 30, 3600)
        sock.sendall(throttle)
        receive(sock, b"*5", 1)
        before = commands(redis_server)
        sock.sendall(throttle * 20 + command("PING") + throttle * 20)
        text = receive(sock, b"\r\n", 40 * 6 + 1)
        assert [int(number) for number in re.findall(rb"\*5\r\n:\d\r\n:30\r\n:(\d+)", text)] == [
            *range(28, -1, -1), *[0] * 11,
        ]  # fmt: skip
        assert text.partition(b"+PONG")[0].count(b"*5") == 20
        assert commands(redis_server) - before <= 4


def test_connections_that_ask_together_travel_in_few_commands(redis_server):
    with serving(redis_server, "http") as (service, sock):
        sock.sendall(post({"key": "together", "limit": LIMIT}))
        receive(sock, b"}", 1)
        others = [socket.create_connection(service.addresses["http"], timeout=60) for _ in range(20)]
        for other in others:
            other.sendall(post({"key": "together", "limit": LIMIT}))
            receive(other, b"}", 1)
        before = commands(redis_server)
        is_asleep, may_go_on = threading.Event(), threading.Event()

        def sleep():  # so that the loop meets all requests in its next turn
            is_asleep.set()
            may_go_on.wait(60)

        service.loop.call_soon_threadsafe(sleep)
        is_asleep.wait(60)
        for other in others:
            other.sendall(post({"key": "apart", "limit": LIMIT}))
        may_go_on.set()
        texts = [receive(other, b"}", 1) for other in others]
        assert sorted(int(re.search(rb'"remaining":(\d+)', text)[1]) for text in texts) == list(range(10, 30))
        assert commands(redis_server) - before <= 3
        for other in others:
            other.close()


@pytest.mark.parametrize("key", [{"a": 1}, None, 1.5, "", [], True])
def test_a_bad_key_is_refused_on_a_live_redis_too(redis_server, key):
    with serving(redis_server, "http") as (service, _):
        for _ in range(2):
            status, _, body = service.post("/v1/check", {"key": key, "limit": LIMIT})
            assert (status, body["title"]) == (400, "Bad Request")


@pytest.mark.parametrize("cost", [0, -1, 1.5, "1", True, None, 10**16, [1]])
def test_a_bad_cost_is_refused_on_a_live_redis_too(redis_server, cost):
    with serving(redis_server, "http") as (service, _):
        for _ in range(2):
            assert service.post("/v1/check", {"key": "costs", "limit": LIMIT, "cost": cost})[0] == 400
        assert service.post("/v1/peek", {"key": "costs", "limit": LIMIT})[2]["remaining"] == 30
