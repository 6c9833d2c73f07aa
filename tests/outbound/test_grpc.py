"""The gRPC client interceptors against real servers on loopback, sync and async."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from threading import Event

import grpc
import grpc.aio
import pytest

from ratekeeper import Policy
from ratekeeper.adapters.grpc import RateLimitInterceptor
from ratekeeper.adapters.grpc_status import status_of
from ratekeeper.errors import LimitExceeded
from ratekeeper.outbound import Retry, TooLate
from ratekeeper.outbound.grpc import PacedInterceptor, PacingTimeout, paced_interceptors
from ratekeeper.outbound.response_limits import read_grpc
from ratekeeper.testing import FakeClock

STEADY = Retry(max_retries=3, first=0.0)  # no jitter: exact times


class Shop:
    """A server that follows ``script`` call by call: None answers, else (code, trailing metadata) refuses."""

    def __init__(self, clock=None):
        self.clock = clock
        self.script = []
        self.times = []
        self.timeouts = []
        self.gate = Event()
        self.gate.set()

    def answer(self, context):
        self.gate.wait()
        self.times.append(self.clock.now if self.clock is not None else None)
        self.timeouts.append(context.time_remaining())
        wanted = self.script.pop(0) if self.script else None
        if wanted is not None:
            context.set_trailing_metadata(wanted[1])
            context.abort(wanted[0], "scripted")

    def one(self, request, context):
        self.answer(context)
        return request

    def many(self, request, context):
        self.answer(context)
        yield from (b"a", b"b")

    def sum(self, requests, context):
        parts = list(requests)  # read all first: a client that still writes to an ended call sees INTERNAL
        self.answer(context)
        return b"".join(parts)

    def echo(self, requests, context):
        parts = list(requests)
        self.answer(context)
        yield from parts

    @contextmanager
    def serving(self, *interceptors):
        server = grpc.server(ThreadPoolExecutor(4), interceptors=interceptors)
        handlers = {
            "One": grpc.unary_unary_rpc_method_handler(self.one),
            "Many": grpc.unary_stream_rpc_method_handler(self.many),
            "Sum": grpc.stream_unary_rpc_method_handler(self.sum),
            "Echo": grpc.stream_stream_rpc_method_handler(self.echo),
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("shop.Orders", handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()

    @contextmanager
    def sync_channel(self, *interceptors, **options):
        interceptor = PacedInterceptor(**options)
        with self.serving(*interceptors) as target, grpc.insecure_channel(target) as channel:
            yield grpc.intercept_channel(channel, interceptor), interceptor
        interceptor.close()

    @asynccontextmanager
    async def async_channel(self, *interceptors, **options):
        with self.serving(*interceptors) as target:
            paced = paced_interceptors(**options)
            async with grpc.aio.insecure_channel(target, interceptors=paced) as channel:
                yield channel, paced[0]
            await paced[0].close()


def later(seconds):
    """A refusal with a RetryInfo."""
    return grpc.StatusCode.RESOURCE_EXHAUSTED, (
        ("grpc-status-details-bin", status_of(8, "later", int(seconds * 1_000_000))),
    )


EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED, ()
GONE = grpc.StatusCode.UNAVAILABLE, ()


def call(shop, mode, method="One", kind="unary_unary", count=1, request=b"x", interceptors=(), timeout=None, **words):
    """Make ``count`` calls; return the answer of each, or the name of its status code.

    The status of a stream is read in the background: the second call waits until that is done.
    """
    streams = kind != "unary_unary"

    def is_pending(channel):
        refused = len(shop.times) == 1 and results[0] == "RESOURCE_EXHAUSTED"
        return streams and refused and not channel.pacer.cooldowns.ends

    results = []

    def failure(error):
        return error.code().name

    def sent():
        return iter(request) if isinstance(request, list) else request

    if mode == "sync":
        with shop.sync_channel(*interceptors, clock=shop.clock, **words) as (channel, own):
            for _ in range(count):
                try:
                    got = getattr(channel, kind)(f"/shop.Orders/{method}")(sent(), timeout=timeout)
                    results.append(got if isinstance(got, bytes) else list(got))
                except grpc.RpcError as error:
                    results.append(failure(error))
                while is_pending(own._channel):
                    pass
            return results

    async def main():
        async with shop.async_channel(*interceptors, clock=shop.clock, **words) as (channel, own):
            for _ in range(count):
                try:
                    made = getattr(channel, kind)(f"/shop.Orders/{method}")(sent(), timeout=timeout)
                    results.append([part async for part in made] if kind.endswith("stream") else await made)
                except grpc.RpcError as error:
                    results.append(failure(error))
                while is_pending(own._channel) or own._channel.background:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            return results

    return asyncio.run(main())


both_modes = pytest.mark.parametrize("mode", ["sync", "async"])
KINDS = [
    ("One", "unary_unary", b"x", b"x"),
    ("Many", "unary_stream", b"x", [b"a", b"b"]),
    ("Sum", "stream_unary", [b"a", b"b"], b"ab"),
    ("Echo", "stream_stream", [b"a", b"b"], [b"a", b"b"]),
]


@both_modes
@pytest.mark.parametrize(("method", "kind", "request_", "answer"), KINDS)
def test_calls_of_every_kind_leave_at_a_pace(mode, method, kind, request_, answer):
    shop = Shop(FakeClock())
    assert call(shop, mode, method, kind, 4, request_, limit="2/second") == [answer] * 4
    assert shop.times == [0.0, 0.5, 1.0, 1.5]


@both_modes
def test_after_a_refusal_the_client_waits_as_the_server_asks_and_retries(mode):
    shop = Shop(FakeClock())
    shop.script = [later(7), (EXHAUSTED[0], (("grpc-retry-pushback-ms", "1500"),))]
    assert call(shop, mode, retry=STEADY) == [b"x"]
    assert shop.times == [0.0, 7.0, 8.5]


@both_modes
@pytest.mark.parametrize(
    "wait",
    [
        ("grpc-retry-pushback-ms", "1000"),
        ("grpc-status-details-bin", status_of(8, "later", 1_000_000)),
        ("retry-after", "1"),
    ],
)
@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
def test_the_wait_of_a_refusal_decides_where_it_has_a_reset_too(mode, wait, code):
    """Also over a quota that an earlier call learned: every answer of this server has the fields of a quota."""
    for fields in ([("ratelimit", '"p";r=0;t=30')], [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")]):
        shop = Shop(FakeClock())
        shop.script = [(code, (wait, *fields)), None, (code, (*fields, wait))]
        assert call(shop, mode, count=2, retry=STEADY, max_wait=8) == [b"x"] * 2
        assert shop.times == [0.0, 1.0, 1.0, 2.0]


@both_modes
@pytest.mark.parametrize(("method", "kind", "request_", "answer"), KINDS[1:])
def test_the_wait_of_a_refused_stream_decides_where_it_has_a_reset_too(mode, method, kind, request_, answer):
    shop = Shop(FakeClock())
    shop.script = [(EXHAUSTED[0], (("ratelimit", '"p";r=0;t=30'), ("retry-after", "1")))]
    assert call(shop, mode, method, kind, 2, request_, retry=STEADY, max_wait=8) == ["RESOURCE_EXHAUSTED", answer]
    assert shop.times == [0.0, 1.0]


@both_modes
def test_the_jitter_comes_after_the_wait_that_the_server_asks_for(mode):
    shop = Shop(FakeClock())
    shop.script = [later(3)]
    assert call(shop, mode, retry=Retry(first=2.0)) == [b"x"]
    assert 3.0 <= shop.times[1] <= 5.0


@both_modes
def test_our_own_server_and_client_understand_each_other(mode):
    clock = FakeClock()
    shop = Shop(clock)
    rules = {"rules": [{"name": "orders", "by": "all", "limit": "2/minute"}]}
    guard = RateLimitInterceptor(Policy.parse(rules, clock=clock))
    # The client learns from the fields that little is left, so it is not even refused.
    assert call(shop, mode, count=4, interceptors=[guard], retry=STEADY, max_wait=None) == [b"x"] * 4
    assert len(shop.times) == 4
    assert shop.times[-1] >= 60.0


@both_modes
@pytest.mark.parametrize(
    ("answer", "idempotent", "calls"),
    [
        (EXHAUSTED, True, 1),  # perhaps a message that is too large: the server asks for no wait
        ((EXHAUSTED[0], (("grpc-retry-pushback-ms", "-1"),)), True, 1),
        ((grpc.StatusCode.INVALID_ARGUMENT, ()), True, 1),
        ((grpc.StatusCode.DEADLINE_EXCEEDED, ()), True, 1),
        (GONE, False, 1),
        (GONE, True, 3),
        ((GONE[0], (("grpc-retry-pushback-ms", "5"),)), False, 3),  # the server says that it was not done
        (later(1), False, 3),
    ],
)
def test_which_calls_are_retried(mode, answer, idempotent, calls):
    shop = Shop(FakeClock())
    shop.script = [answer] * 5
    words = {"idempotent": ["/shop.Orders/One"]} if idempotent else {}
    assert call(shop, mode, retry=Retry(max_retries=2), **words) == [answer[0].name]
    assert len(shop.times) == calls


@both_modes
@pytest.mark.parametrize(("method", "kind", "request_", "answer"), KINDS[1:])
def test_a_stream_is_not_retried_but_its_refusal_starts_a_cooldown(mode, method, kind, request_, answer):
    shop = Shop(FakeClock())
    shop.script = [later(9)]
    assert call(shop, mode, method, kind, 2, request_, retry=STEADY) == ["RESOURCE_EXHAUSTED", answer]
    assert shop.times == [0.0, 9.0]


@both_modes
def test_a_turn_that_comes_too_late_is_a_deadline_exceeded_and_nothing_is_sent(mode):
    shop = Shop(FakeClock())
    assert call(shop, mode, count=3, limit="1/minute burst 1 gcra", max_wait=5) == [b"x", *["DEADLINE_EXCEEDED"] * 2]
    assert len(shop.times) == 1


@both_modes
def test_the_timeout_of_a_call_bounds_its_waits(mode):
    shop = Shop(FakeClock())
    shop.script = [later(28)]
    found = call(shop, mode, count=2, retry=STEADY, timeout=25)  # enough for a call on any machine
    assert found == ["RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"]
    assert len(shop.times) == 1
    assert 0 < shop.timeouts[0] <= 25.5  # gRPC sends few digits, rounded up


def test_the_error_is_a_limit_exceeded_too():
    shop = Shop(FakeClock())
    with shop.sync_channel(clock=shop.clock, limit="1/minute burst 1 gcra", max_wait=0) as (channel, _):
        one = channel.unary_unary("/shop.Orders/One")
        one(b"x")
        with pytest.raises(PacingTimeout) as caught:
            one(b"x")
    assert isinstance(caught.value, TooLate)
    assert isinstance(caught.value, LimitExceeded)
    assert caught.value.retry_after == 60.0
    assert str(caught.value) == (
        "/shop.Orders/One: expected a turn in time, but it comes in 60 s. Raise max_wait, or send less."
    )
    assert caught.value.details() == str(caught.value)


def test_a_future_is_paced_and_not_retried_but_its_refusal_starts_a_cooldown():
    shop = Shop(FakeClock())
    shop.script = [later(4)]
    with shop.sync_channel(clock=shop.clock, retry=STEADY) as (channel, interceptor):
        one = channel.unary_unary("/shop.Orders/One")
        shop.gate.clear()
        future = one.future(b"x")
        shop.gate.set()
        assert future.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        while not interceptor._channel.pacer.cooldowns.remaining("shop.orders"):
            pass  # the callback is another thread's
        assert one(b"x") == b"x"
    assert shop.times == [0.0, 4.0]


def test_limits_by_service_and_method_and_a_key_function():
    shop = Shop(FakeClock())
    with shop.sync_channel(clock=shop.clock, limit={"shop.Orders/Many": "1/second"}) as (channel, _):
        for _ in range(3):
            channel.unary_unary("/shop.Orders/One")(b"x")
            list(channel.unary_stream("/shop.Orders/Many")(b"x"))
    assert shop.times == [0.0, 0.0, 0.0, 1.0, 1.0, 2.0]
    shop = Shop(FakeClock())
    tenant = lambda details: dict(details.metadata)["tenant"]  # noqa: E731
    with shop.sync_channel(clock=shop.clock, limit="1/second", key=tenant) as (channel, _):
        for name in ("a", "b", "a"):
            channel.unary_unary("/shop.Orders/One")(b"x", metadata=[("tenant", name)])
    assert shop.times == [0.0, 0.0, 1.0]


def test_cancelling_an_async_call_that_waits_gives_its_place_back():
    async def main():
        clock = FakeClock(auto=False)
        shop = Shop(clock)
        async with shop.async_channel(clock=clock, limit="1/second") as (channel, own):
            one = channel.unary_unary("/shop.Orders/One")
            await one(b"x")
            waiting = asyncio.ensure_future(as_coroutine(one(b"x")))
            while not clock._sleepers:  # noqa: ASYNC110
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            for _ in range(5):
                await asyncio.sleep(0)
            again = asyncio.ensure_future(as_coroutine(one(b"x")))
            while len([one for one in clock._sleepers if not one[3].done()]) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
            clock.advance(1.0)  # not 2.0: the place of the one that left is free
            assert await again == b"x"
            assert shop.times == [0.0, 1.0]
            assert not own._channel.pacer.queue.waiting

    async def as_coroutine(made):
        return await made

    asyncio.run(main())


@pytest.mark.parametrize(
    "metadata",
    [
        [("grpc-status-details-bin", b"\xff" * 50)],
        [("grpc-status-details-bin", b"")],
        [("grpc-retry-pushback-ms", "9" * 400)],
        [("grpc-retry-pushback-ms", "\u0663")],
        [("retry-after", "1e400")],
        [("ratelimit", '"x";r=1' * 5000)],
        [("x-bin", b"\x00")],
    ],
)
def test_malformed_metadata_is_ignored(metadata):
    wait = read_grpc(metadata).wait
    assert wait is None or 0 <= wait <= 400 * 86_400


def test_the_fields_of_our_own_servers_are_read_unless_there_is_a_retry_info():
    limits = read_grpc([("retry-after", "3"), ("ratelimit", '"orders";r=0;t=9')])
    assert (limits.retry_after, limits.quotas[0].remaining) == (3.0, 0)
    info = read_grpc([("retry-after", "3"), ("grpc-status-details-bin", status_of(8, "", 1_500_000))])
    assert info.retry_after == 1.5
    pushed = read_grpc([("grpc-retry-pushback-ms", "2000"), ("ratelimit", '"orders";r=0;t=9')])
    assert (pushed.retry_after, pushed.quotas[0].remaining) == (2.0, 0)


def test_a_fleet_shares_its_cooldowns_through_redis(redis_server):
    """The server refuses one of two clients: the other waits too."""

    async def main():
        shop = Shop()
        words = {
            "store": f"{redis_server.url}/11?deadline=10",
            "name": f"fleet {id(shop)}",
            "retry": Retry(max_retries=0),
        }
        async with shop.async_channel(**words) as (one, _), shop.async_channel(**words, max_wait=1) as (other, _):
            shop.script = [later(30)]
            with pytest.raises(grpc.RpcError, match="scripted"):
                await one.unary_unary("/shop.Orders/One")(b"x")
            with pytest.raises(PacingTimeout) as caught:
                await other.unary_unary("/shop.Orders/One")(b"x")
            assert 20 < caught.value.retry_after <= 30
            assert len(shop.times) == 1

    asyncio.run(main())
