"""The gRPC interceptors, through real servers and channels on loopback, plain and async.

The shared cases run as calls: a GET or POST of theirs is a call of that path, headers are metadata, and a status is
its code.  What is only HTTP (bodies of refusals, CORS, HEAD) is left out.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Event

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from ratekeeper import Policy, Request
from ratekeeper.adapters.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor, peer_of
from ratekeeper.testing import FakeClock
from tests.adapters.cases import CASES, Answer, rules, run

STATUS = {"OK": 200, "RESOURCE_EXHAUSTED": 429, "UNAVAILABLE": 503, "PERMISSION_DENIED": 403, "INVALID_ARGUMENT": 400}
HTTP_ONLY = {
    "preflights do not count and pass an exhausted limit",
    "a browser may read a refusal",
    "method overrides are ignored",
    "a stream passes untouched",
    "clients are apart",  # all calls come from one loopback address
    "an address outside allow_from is forbidden, and learns nothing else",
    "a client that does not stop is blocked",
    "an exempt client is not counted",
    "the route is a template, never the path",  # a method is called by its name
}
SENT = ("ratelimit", "x-ratelimit", "retry-after")


def plain_behaviour(request, context):
    return b"ok"


def plain_stream(request, context):
    yield from (b"one", b"two", b"three")


def plain_sum(requests, context):
    return b"".join(requests)


def plain_echo(requests, context):
    yield from requests


async def async_behaviour(request, context):
    return b"ok"


async def async_stream(request, context):
    for part in (b"one", b"two", b"three"):
        yield part


async def async_writer(request, context):
    for part in (b"one", b"two", b"three"):
        await context.write(part)


async def async_sum(requests, context):
    return b"".join([request async for request in requests])


async def async_echo(requests, context):
    async for request in requests:
        yield request


class Service(grpc.GenericRpcHandler):
    def __init__(self, **behaviours):
        self.behaviours = behaviours

    def service(self, details):
        name = details.method.rpartition("/")[2]
        if name == "missing":
            return None
        if name in ("stream", "writer"):
            return grpc.unary_stream_rpc_method_handler(self.behaviours[name])
        if name == "sum":
            return grpc.stream_unary_rpc_method_handler(self.behaviours[name])
        if name == "echo":
            return grpc.stream_stream_rpc_method_handler(self.behaviours[name])
        return grpc.unary_unary_rpc_method_handler(self.behaviours["unary"])


PLAIN = {"unary": plain_behaviour, "stream": plain_stream, "sum": plain_sum, "echo": plain_echo}
ASYNC = {
    "unary": async_behaviour,
    "stream": async_stream,
    "writer": async_writer,
    "sum": async_sum,
    "echo": async_echo,
}


class PlainServer:
    def __init__(self, policy, facts=None, behaviours=PLAIN):
        self.server = grpc.server(ThreadPoolExecutor(4), interceptors=[RateLimitInterceptor(policy, facts)])
        self.server.add_generic_rpc_handlers([Service(**behaviours)])
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    def __enter__(self):
        self.server.start()
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        return self

    def __exit__(self, *error):
        self.channel.close()
        self.server.stop(None).wait()

    def call(self, path, headers=()):
        try:
            body, call = self.channel.unary_unary(path).with_call(b"", metadata=metadata(headers), timeout=20)
        except grpc.RpcError as error:
            body, call = b"", error
        return body, call.code(), call.details(), list(call.trailing_metadata())

    def stream(self, path, messages=None):
        call = (
            self.channel.unary_stream(path)(b"")
            if messages is None
            else self.channel.stream_stream(path)(iter(messages))
        )
        return gather(call)

    def send(self, path, messages):
        try:
            return self.channel.stream_unary(path)(iter(messages))
        except grpc.RpcError as error:
            return error.code()


class AsyncServer:
    """The same on an event loop: each call runs it until the answer is there."""

    def __init__(self, policy, facts=None, behaviours=ASYNC):
        self.policy, self.facts, self.behaviours = policy, facts, behaviours

    def __enter__(self):
        self.runner = asyncio.Runner()
        self.runner.run(self.start())
        return self

    async def start(self):
        self.server = grpc.aio.server(
            ThreadPoolExecutor(2), interceptors=[AsyncRateLimitInterceptor(self.policy, self.facts)]
        )
        self.server.add_generic_rpc_handlers([Service(**self.behaviours)])
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    def __exit__(self, *error):
        async def stop():
            await self.channel.close()
            await self.server.stop(None)

        self.runner.run(stop())
        self.runner.close()

    def call(self, path, headers=()):
        async def main():
            call = self.channel.unary_unary(path)(b"", metadata=metadata(headers), timeout=20)
            try:
                body = await call
            except grpc.RpcError:
                body = b""
            return body, await call.code(), await call.details(), list(await call.trailing_metadata())

        return self.runner.run(main())

    def stream(self, path, messages=None):
        async def main():
            stream = (
                self.channel.unary_stream(path)(b"")
                if messages is None
                else self.channel.stream_stream(path)(iter(messages))
            )
            parts = []
            with suppress(grpc.RpcError):
                async for part in stream:
                    parts.append(part)  # noqa: PERF401 - what came before an error counts
            return parts, await stream.code()

        return self.runner.run(main())

    def send(self, path, messages):
        async def main():
            try:
                return await self.channel.stream_unary(path)(iter(messages))
            except grpc.RpcError as error:
                return error.code()

        return self.runner.run(main())


def gather(call):
    parts = []
    with suppress(grpc.RpcError):
        parts.extend(call)
    return parts, call.code()


def metadata(headers):
    return tuple([(name.lower(), value) for name, value in headers])


SERVERS = [PlainServer, AsyncServer]


def as_calls(case):
    """The case with its GETs as calls, from the loopback address of a channel."""
    text = json.dumps(case.rules).replace("GET /", "POST /").replace("203.0.113.0/24", "127.0.0.0/8")
    steps = [
        replace(step, method="POST", expected={k: v for k, v in step.expected.items() if k.startswith(SENT)},
                body=step.body if step.body == b"ok" else None)
        for step in case.steps
        if step.method == "GET" and step.path.isalnum() | step.path.replace("/", "").isalnum() | (step.path == "/")
    ]  # fmt: skip
    return replace(case, rules=json.loads(text), steps=steps)


@pytest.mark.parametrize("make", SERVERS)
@pytest.mark.parametrize(
    "case", [as_calls(case) for case in CASES if case.name not in HTTP_ONLY], ids=lambda case: case.name
)
def test_cases(case, make):
    opened = []

    def client(policy):
        server = make(policy).__enter__()
        opened.append(server)

        def send(step):
            body, code, _, trailing = server.call(step.path, step.headers)
            return Answer(STATUS[code.name], trailing, body)

        return send

    try:
        run(case, client)
    finally:
        for server in opened:
            server.__exit__()


@pytest.mark.parametrize("make", SERVERS)
def test_a_refusal_says_when_to_come_back(make):
    policy = Policy.parse(rules({"limit": "7/minute burst 1"}), clock=FakeClock(1000.0))
    with make(policy) as server:
        server.call("/shop.Orders/Create")
        _, code, details, trailing = server.call("/shop.Orders/Create")
    metadata = dict(trailing)
    assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many requests. Try again in 9 seconds.")
    assert (metadata["retry-after"], metadata["grpc-retry-pushback-ms"]) == ("9", "8572")
    status = Status.FromString(metadata["grpc-status-details-bin"])
    assert (status.code, status.message) == (code.value[0], details)
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    assert (info.retry_delay.seconds, info.retry_delay.nanos) == (8, 571_429_000)


@pytest.mark.parametrize("make", SERVERS)
def test_what_time_does_not_help_says_not_to_retry(make):
    policy = rules({"limit": "2/minute", "cost": "header:x-cost"})
    with make(policy) as server:
        _, code, _, never = server.call("/a", [("x-cost", "3")])
        _, wrong, _, trailing = server.call("/a", [("x-cost", "-3")])
    assert (code, dict(never)["grpc-retry-pushback-ms"]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "-1")
    assert not Status.FromString(dict(never)["grpc-status-details-bin"]).details
    assert (wrong, dict(trailing)["grpc-retry-pushback-ms"]) == (grpc.StatusCode.INVALID_ARGUMENT, "-1")


@pytest.mark.parametrize("make", SERVERS)
def test_streams_are_counted_as_calls_and_pass(make):
    with make(rules({"limit": "2/minute", "by": ["route", "ip"]})) as server:
        parts = [b"one", b"two", b"three"]
        assert [server.stream("/stream") for _ in range(3)] == [
            (parts, grpc.StatusCode.OK),
            (parts, grpc.StatusCode.OK),
            ([], grpc.StatusCode.RESOURCE_EXHAUSTED),
        ]
        assert server.send("/sum", [b"a", b"b"]) == b"ab"
        assert server.stream("/echo", [b"a", b"b"]) == ([b"a", b"b"], grpc.StatusCode.OK)


@pytest.mark.parametrize("make", SERVERS)
def test_messages_of_request_streams(make):
    with make(rules({"limit": "3/minute", "counts": "messages", "by": ["route", "ip"]})) as server:
        assert server.stream("/echo", [b"a", b"b", b"c", b"d"]) == (
            [b"a", b"b", b"c"],
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
        assert server.send("/sum", [b"a"] * 3) == b"aaa"
        assert server.send("/sum", [b"a"]) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.call("/unary")[1] == grpc.StatusCode.OK


def test_handlers_that_write_and_plain_handlers_on_a_loop():
    with AsyncServer(rules({"limit": "1/minute"})) as server:
        assert server.stream("/writer") == ([b"one", b"two", b"three"], grpc.StatusCode.OK)
        assert server.stream("/writer") == ([], grpc.StatusCode.RESOURCE_EXHAUSTED)
    with AsyncServer(rules({"limit": "1/minute"}), behaviours=PLAIN) as server:
        assert [server.call("/x")[1].name for _ in range(2)] == ["OK", "RESOURCE_EXHAUSTED"]


@pytest.mark.parametrize("make", SERVERS)
def test_facts_and_unknown_methods(make):
    def facts(context):
        return {"user": dict(context.invocation_metadata())["who"]}

    with make(rules({"by": "app:user", "limit": "1/minute"}), facts) as server:
        sent = [server.call("/x", [("who", who)])[1].name for who in "aab"]
        assert sent == ["OK", "RESOURCE_EXHAUSTED", "OK"]
        assert server.call("/missing", [("who", "c")])[1] == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("make", SERVERS)
@pytest.mark.parametrize("odd", [{"user": object()}, {"user": 4.2}, ["ann"], "ann"])
def test_facts_that_name_nobody_are_an_error_of_ours(make, odd, caplog):
    with make(rules({"by": "app:user", "limit": "1/minute"}), lambda context: odd) as server:
        calls = [server.call("/x") for _ in range(3)]
    assert {code.name for _, code, _, _ in calls} == {"INTERNAL"}
    assert {details for _, _, details, _ in calls} == {"The limits of this server are misconfigured."}
    assert "facts" in caplog.text


@pytest.mark.parametrize("make", SERVERS)
def test_a_leaky_bucket_delays(make):
    clock = FakeClock(100.0)
    with make(Policy.parse(rules({"limit": "2/second burst 3 leaky_bucket"}), clock=clock)) as server:
        assert [server.call("/x")[1].name for _ in range(3)] == ["OK"] * 3
    assert clock.now == 100.0 + 0.5 + 0.5


def test_a_caller_that_left_the_queue_gives_its_place_back(caplog):
    asleep, gone, called = Event(), Event(), []

    class Clock(FakeClock):
        def sleep(self, micros):
            asleep.set()
            super().sleep(micros)

    def facts(context):
        context.add_callback(gone.set)

    def unary(request, context):
        called.append(clock.now)
        return b""

    clock = Clock(100.0, auto=False)
    policy = Policy.parse(rules({"limit": "1/second burst 2 leaky_bucket"}), clock=clock)
    back, give_back = Event(), policy.give_back
    policy.give_back = lambda verdict: (give_back(verdict), back.set())
    with PlainServer(policy, facts, behaviours={"unary": unary}) as server:
        server.call("/x")
        gone.wait()
        gone.clear()
        leaving = server.channel.unary_unary("/x").future(b"")
        asleep.wait()
        leaving.cancel()
        gone.wait()
        clock.advance(1)
        back.wait(10)  # a thread of the server gives the place back
    assert called == [100.0]
    assert policy.check(Request("POST", "/x", "127.0.0.1")).remaining == 1
    assert not caplog.records  # it is not an error


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("ipv4:203.0.113.9:443", "203.0.113.9"),
        ("ipv6:[2001:db8::1]:443", "2001:db8::1"),
        ("ipv6:%5B2001:db8::1%5D:443", "2001:db8::1"),
        ("unix:/tmp/socket", None),
        ("unix:", None),
        ("", None),
    ],
)
def test_peers(text, peer):
    assert peer_of(text) == peer
