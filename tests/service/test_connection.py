"""Connections on a live Redis: what arrives together is asked together, and answers keep their order."""

import asyncio
import json
import re
import socket
import threading
from contextlib import contextmanager

import pytest

from ratekeeper import Policy
from ratekeeper.service.decider import Decider
from ratekeeper.service.options import Bounds, Options
from ratekeeper.service.resp import RespListener
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


# Clients that send no more, or nothing, or too much: with a transport that only notes what is written.


class Transport:
    def __init__(self):
        self.written = b""
        self.is_closed = self.is_paused = False

    def write(self, part):
        self.written += part

    def close(self):
        self.is_closed = True

    abort = close

    def is_closing(self):
        return self.is_closed

    def write_eof(self):
        pass

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def set_write_buffer_limits(self, high):
        pass

    def get_extra_info(self, name):
        return None


def connected(listener):
    connection = type(listener).connection_class(listener)
    connection.connection_made(Transport())
    return connection


def with_listener(test, **bounds):
    async def run():
        options = Options(bounds=Bounds(**bounds))
        return await test(RespListener(Decider(Policy.parse({"rules": []}), options), options.bounds))

    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["http", "resp"])
def test_a_client_that_sends_no_more_gets_its_answers(redis_server, protocol):
    """Also those that still wait for the store when the end arrives."""
    with serving(redis_server, protocol) as (_, sock):
        is_http = protocol == "http"
        check = post({"key": "half", "limit": LIMIT}) if is_http else command("CL.THROTTLE", "half", 9, 9, 99)
        sock.sendall(check * 5)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while part := sock.recv(65536):
            answer += part
        assert answer.count(b'"allowed":true' if is_http else b"*5\r\n:0") == 5


@pytest.mark.parametrize("sent", [b"*2\r\n$4\r\nECHO\r\n", b"*2\r\n$4\r\nEC", b"*"])
def test_a_command_must_be_complete_in_time_however_slowly_it_arrives(sent):
    async def test(listener):
        connection = connected(listener)
        connection.data_received(command("PING") + sent)
        began_at = connection.active_at
        connection.enforce_timeouts(began_at + 9)
        assert not connection.transport.is_closed
        connection.data_received(command("ECHO", "x")[len(sent) : len(sent) + 1])
        connection.enforce_timeouts(began_at + 11)
        assert connection.transport.is_closed

    with_listener(test)


def test_an_idle_redis_client_is_closed():
    async def test(listener):
        connection = connected(listener)
        connection.data_received(command("PING"))
        connection.enforce_timeouts(connection.active_at + 30)
        assert not connection.transport.is_closed
        connection.enforce_timeouts(connection.active_at + 31.5)
        assert connection.transport.is_closed

    with_listener(test, resp_idle_for=31)


def test_an_idle_redis_client_may_stay_for_ever():
    async def test(listener):
        connection = connected(listener)
        connection.enforce_timeouts(connection.active_at + 1e9)
        assert not connection.transport.is_closed

    with_listener(test, resp_idle_for=0)


def test_the_longest_idle_client_makes_room_for_a_new_one():
    async def test(listener):
        clients = [connected(listener) for _ in range(4)]
        now = listener.loop.time()
        for client, idle_for in zip(clients, (5, 100, 0, 50), strict=True):
            client.active_at = now - idle_for
        listener.sweep()
        listener.timer.cancel()
        new = [connected(listener) for _ in range(4)]
        assert [client.transport.is_closed for client in clients] == [True, True, False, True]
        assert [client.transport.is_closed for client in new] == [False, False, False, True]  # all others are active
        assert new[3].transport.written == b"-ERR max number of clients reached\r\n"
        assert len(listener.connections) == 4

    with_listener(test, connections=4)


def test_a_large_pipeline_takes_turns_with_other_clients():
    async def test(listener):
        greedy, modest = connected(listener), connected(listener)
        greedy.data_received(command("PING") * 20_000)
        assert 0 < greedy.transport.written.count(b"PONG") < 1000
        assert greedy.transport.is_paused
        modest.data_received(command("PING"))
        assert modest.transport.written == b"+PONG\r\n"
        while greedy.unparsed:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
        assert greedy.transport.written == b"+PONG\r\n" * 20_000
        assert not greedy.transport.is_paused

    with_listener(test)


def test_a_client_that_does_not_read_gets_no_more_than_it_may_leave_unread():
    """A hundred pages of metrics for one client were joined and kept."""

    async def test(listener):
        connection = connected(listener)
        transport = connection.transport
        page = b"x" * 300_000

        def writelines(parts):
            transport.written += b"".join(parts)
            connection.pause_writing()

        transport.writelines = writelines
        for _ in range(10):
            connection.queue.append(page)
        connection.send_queued()
        assert len(transport.written) == 300_000
        assert len(connection.queue) == 9
        for number in range(2, 11):
            connection.resume_writing()
            assert len(transport.written) == number * 300_000
        assert not connection.queue

    with_listener(test)
