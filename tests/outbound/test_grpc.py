"""The gRPC client interceptors, against real servers on loopback, plain and async."""

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

SURE = Retry(max_retries=3, first=0.0)  # waits exactly as told


class Shop:
    """A server that does as ``script`` says, call by call: None answers, else (code, trailing metadata)."""

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
        parts = list(requests)  # first, as a client that still writes to a call that was ended sees INTERNAL
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
    def plain(self, *interceptors, **words):
        interceptor = PacedInterceptor(**words)
        with self.serving(*interceptors) as target, grpc.insecure_channel(target) as channel:
            yield grpc.intercept_channel(channel, interceptor), interceptor
        interceptor.close()

    @asynccontextmanager
    async def loop(self, *interceptors, **words):
        with self.serving(*interceptors) as target:
            made = paced_interceptors(**words)
            async with grpc.aio.insecure_channel(target, interceptors=made) as channel:
                yield channel, made[0]
            await made[0].close()


def later(seconds):
    """Told by RetryInfo."""
    return grpc.StatusCode.RESOURCE_EXHAUSTED, (
        ("grpc-status-details-bin", status_of(8, "later", int(seconds * 1_000_000))),
    )


EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED, ()
GONE = grpc.StatusCode.UNAVAILABLE, ()


def call(shop, colour, method="One", kind="unary_unary", count=1, request=b"x", interceptors=(), timeout=None, **words):
    """Call so often, and return what came: an answer or the name of a code.

    How a stream ended is heard in the background: the second call waits until it was.
    """
    streams = kind != "unary_unary"

    def is_unheard(channel):
        refused = len(shop.times) == 1 and found[0] == "RESOURCE_EXHAUSTED"
        return streams and refused and not channel.pacer.cooldowns.ends

    found = []

    def failure(error):
        return error.code().name

    def sent():
        return iter(request) if isinstance(request, list) else request

    if colour == "plain":
        with shop.plain(*interceptors, clock=shop.clock, **words) as (channel, own):
            for _ in range(count):
                try:
                    got = getattr(channel, kind)(f"/shop.Orders/{method}")(sent(), timeout=timeout)
                    found.append(got if isinstance(got, bytes) else list(got))
                except grpc.RpcError as error:
                    found.append(failure(error))
                while is_unheard(own._channel):
                    pass
            return found

    async def main():
        async with shop.loop(*interceptors, clock=shop.clock, **words) as (channel, own):
            for _ in range(count):
                try:
                    made = getattr(channel, kind)(f"/shop.Orders/{method}")(sent(), timeout=timeout)
                    found.append([part async for part in made] if kind.endswith("stream") else await made)
                except grpc.RpcError as error:
                    found.append(failure(error))
                while is_unheard(own._channel) or own._channel.background:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            return found

    return asyncio.run(main())


colours = pytest.mark.parametrize("colour", ["plain", "loop"])
KINDS = [
    ("One", "unary_unary", b"x", b"x"),
    ("Many", "unary_stream", b"x", [b"a", b"b"]),
    ("Sum", "stream_unary", [b"a", b"b"], b"ab"),
    ("Echo", "stream_stream", [b"a", b"b"], [b"a", b"b"]),
]


@colours
@pytest.mark.parametrize(("method", "kind", "request_", "answer"), KINDS)
def test_calls_of_every_kind_leave_at_a_pace(colour, method, kind, request_, answer):
    shop = Shop(FakeClock())
    assert call(shop, colour, method, kind, 4, request_, limit="2/second") == [answer] * 4
    assert shop.times == [0.0, 0.5, 1.0, 1.5]


@colours
def test_a_refusal_is_waited_for_as_told_and_called_again(colour):
    shop = Shop(FakeClock())
    shop.script = [later(7), (EXHAUSTED[0], (("grpc-retry-pushback-ms", "1500"),))]
    assert call(shop, colour, retry=SURE) == [b"x"]
    assert shop.times == [0.0, 7.0, 8.5]


@colours
def test_nobody_is_earlier_than_told_and_the_jitter_comes_after_it(colour):
    shop = Shop(FakeClock())
    shop.script = [later(3)]
    assert call(shop, colour, retry=Retry(first=2.0)) == [b"x"]
    assert 3.0 <= shop.times[1] <= 5.0


@colours
def test_our_own_server_and_client_understand_each_other(colour):
    clock = FakeClock()
    shop = Shop(clock)
    rules = {"rules": [{"name": "orders", "by": "all", "limit": "2/minute"}]}
    guard = RateLimitInterceptor(Policy.parse(rules, clock=clock))
    # The client learns from the fields that little is left, so it is not even refused.
    assert call(shop, colour, count=4, interceptors=[guard], retry=SURE, max_wait=None) == [b"x"] * 4
    assert len(shop.times) == 4
    assert shop.times[-1] >= 60.0


@colours
@pytest.mark.parametrize(
    ("answer", "idempotent", "calls"),
    [
        (EXHAUSTED, True, 1),  # perhaps a message that is too large: nobody said to come back
        ((EXHAUSTED[0], (("grpc-retry-pushback-ms", "-1"),)), True, 1),
        ((grpc.StatusCode.INVALID_ARGUMENT, ()), True, 1),
        ((grpc.StatusCode.DEADLINE_EXCEEDED, ()), True, 1),
        (GONE, False, 1),
        (GONE, True, 3),
        ((GONE[0], (("grpc-retry-pushback-ms", "5"),)), False, 3),  # the server says that it was not done
        (later(1), False, 3),
    ],
)
def test_what_is_called_again(colour, answer, idempotent, calls):
    shop = Shop(FakeClock())
    shop.script = [answer] * 5
    words = {"idempotent": ["/shop.Orders/One"]} if idempotent else {}
    assert call(shop, colour, retry=Retry(max_retries=2), **words) == [answer[0].name]
    assert len(shop.times) == calls


@colours
@pytest.mark.parametrize(("method", "kind", "request_", "answer"), KINDS[1:])
def test_a_stream_is_not_sent_again_but_its_refusal_is_heard(colour, method, kind, request_, answer):
    shop = Shop(FakeClock())
    shop.script = [later(9)]
    assert call(shop, colour, method, kind, 2, request_, retry=SURE) == ["RESOURCE_EXHAUSTED", answer]
    assert shop.times == [0.0, 9.0]


@colours
def test_a_turn_that_comes_too_late_is_a_deadline_exceeded_and_nothing_is_sent(colour):
    shop = Shop(FakeClock())
    assert call(shop, colour, count=3, limit="1/minute burst 1 gcra", max_wait=5) == [b"x", *["DEADLINE_EXCEEDED"] * 2]
    assert len(shop.times) == 1


@colours
def test_the_timeout_of_a_call_bounds_its_waits(colour):
    shop = Shop(FakeClock())
    shop.script = [later(28)]
    found = call(shop, colour, count=2, retry=SURE, timeout=25)  # enough for a call on any machine
    assert found == ["RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"]
    assert len(shop.times) == 1
    assert 0 < shop.timeouts[0] <= 25.5  # gRPC sends few digits, rounded up


def test_the_error_is_a_limit_exceeded_too():
    shop = Shop(FakeClock())
    with shop.plain(clock=shop.clock, limit="1/minute burst 1 gcra", max_wait=0) as (channel, _):
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


def test_a_future_is_paced_and_heard_and_not_called_again():
    shop = Shop(FakeClock())
    shop.script = [later(4)]
    with shop.plain(clock=shop.clock, retry=SURE) as (channel, interceptor):
        one = channel.unary_unary("/shop.Orders/One")
        shop.gate.clear()
        future = one.future(b"x")
        shop.gate.set()
        assert future.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        while not interceptor._channel.pacer.cooldowns.remaining("shop.orders"):
            pass  # the callback is another thread's
        assert one(b"x") == b"x"
    assert shop.times == [0.0, 4.0]


def test_limits_by_service_and_method_and_keys_of_ones_own():
    shop = Shop(FakeClock())
    with shop.plain(clock=shop.clock, limit={"shop.Orders/Many": "1/second"}) as (channel, _):
        for _ in range(3):
            channel.unary_unary("/shop.Orders/One")(b"x")
            list(channel.unary_stream("/shop.Orders/Many")(b"x"))
    assert shop.times == [0.0, 0.0, 0.0, 1.0, 1.0, 2.0]
    shop = Shop(FakeClock())
    tenant = lambda details: dict(details.metadata)["tenant"]  # noqa: E731
    with shop.plain(clock=shop.clock, limit="1/second", key=tenant) as (channel, _):
        for name in ("a", "b", "a"):
            channel.unary_unary("/shop.Orders/One")(b"x", metadata=[("tenant", name)])
    assert shop.times == [0.0, 0.0, 1.0]


def test_cancelling_an_async_call_that_waits_gives_its_place_back():
    async def main():
        clock = FakeClock(auto=False)
        shop = Shop(clock)
        async with shop.loop(clock=clock, limit="1/second") as (channel, own):
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
def test_nonsense_in_metadata_is_no_trouble(metadata):
    told = read_grpc(metadata)
    assert told.wait is None or 0 <= told.wait <= 400 * 86_400


def test_the_fields_of_our_own_servers_are_read_where_nothing_else_is():
    told = read_grpc([("retry-after", "3"), ("ratelimit", '"orders";r=0;t=9')])
    assert (told.retry_after, told.quotas[0].remaining) == (3.0, 0)
    info = read_grpc([("retry-after", "3"), ("grpc-status-details-bin", status_of(8, "", 1_500_000))])
    assert info.retry_after == 1.5


def test_a_fleet_shares_its_pace_and_its_holds_through_redis(redis_server):
    """One of two clients is told to wait: the other waits too."""

    async def main():
        shop = Shop()
        words = {
            "store": f"{redis_server.url}/11?deadline=10",
            "name": f"fleet {id(shop)}",
            "retry": Retry(max_retries=0),
        }
        async with shop.loop(**words) as (one, _), shop.loop(**words, max_wait=1) as (other, _):
            shop.script = [later(30)]
            with pytest.raises(grpc.RpcError, match="scripted"):
                await one.unary_unary("/shop.Orders/One")(b"x")
            with pytest.raises(PacingTimeout) as caught:
                await other.unary_unary("/shop.Orders/One")(b"x")
            assert 20 < caught.value.retry_after <= 30
            assert len(shop.times) == 1

    asyncio.run(main())
