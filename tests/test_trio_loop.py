"""The asyncio loop that trio runs: its turns, its timers, its end, and what cancelling does."""

import asyncio
import threading

import anyio
import httpx
import pytest
import trio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ratekeeper import AsyncLimiter, Policy, Request
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.event_loop import is_trio_task, run_on_loop, running_loop
from ratekeeper.outbound.httpx import AsyncPacedTransport
from ratekeeper.testing import FakeClock
from ratekeeper.trio_loop import current_loop


def test_futures_timers_threads_and_tasks_of_the_loop_wake_a_task_of_trio():
    async def main():
        loop = current_loop()
        future = loop.create_future()
        loop.call_later(0.001, future.set_result, "timer")
        assert await future == "timer"
        future = loop.create_future()
        threading.Thread(target=loop.call_soon_threadsafe, args=(future.set_result, "thread")).start()
        assert await future == "thread"
        assert await future == "thread"  # a second time

        async def on_loop():
            assert running_loop() is loop
            assert not is_trio_task()
            inner = loop.create_future()
            loop.call_soon(inner.set_exception, KeyError("told"))
            await inner

        with pytest.raises(KeyError, match="told"):
            await run_on_loop(on_loop())
        assert is_trio_task()

    trio.run(main)


def test_a_cancelled_task_of_trio_cancels_what_it_awaits():
    async def main():
        loop = current_loop()
        future = loop.create_future()
        with trio.CancelScope() as scope:
            scope.cancel()
            await future
        assert scope.cancelled_caught
        assert future.cancelled()
        ended = []

        async def slow():
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await asyncio.sleep(0)
                ended.append(True)

        with trio.move_on_after(0.001) as scope:
            await run_on_loop(slow())
        assert scope.cancelled_caught
        assert ended == [True]  # the task of trio went on only after that

    trio.run(main)


def test_an_answer_that_has_come_is_delivered_although_the_task_is_cancelled():
    async def main():
        future = current_loop().create_future()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def answer_and_cancel():
                    future.set_result("answer")
                    scope.cancel()

                nursery.start_soon(answer_and_cancel)
                assert await future == "answer"
                with pytest.raises(trio.Cancelled):
                    await trio.lowlevel.checkpoint()
                raise ValueError("seen")

    with pytest.raises(ExceptionGroup) as raised:
        trio.run(main)
    assert [str(error) for error in raised.value.exceptions] == ["seen"]


def test_each_run_of_trio_has_its_own_loop_and_closes_it(redis_server):
    limiter = AsyncLimiter("100/hour", store=f"{redis_server.url}?deadline=10s", name="runs of trio")
    loops = []

    async def main():
        assert await limiter.check("k")
        loops.append(current_loop())
        await limiter.store.close()  # the connections of this loop

    def run():
        trio.run(main)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run()
    assert len(set(loops)) == 3
    assert all(loop.is_closed() for loop in loops)


def test_the_loop_ends_after_the_last_callback():
    """A transport that a callback closes releases its socket two turns later; it was left open."""
    called = []

    async def main():
        loop = current_loop()

        def again(left):
            called.append(left)
            if left:
                loop.call_soon(again, left - 1)

        async def until_cancelled():
            try:
                await loop.create_future()
            finally:
                loop.call_soon(again, 4)

        loop.create_task(until_cancelled())
        await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert called == [4, 3, 2, 1, 0]


def test_the_loop_ends_with_tasks_that_are_under_way():
    ended = []

    async def main():
        async def forever():
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(True)

        current_loop().create_task(forever())
        await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert ended == [True]


def middleware(clock=None, store=None, **rule):
    async def home(request):
        return PlainTextResponse("ok")

    policy = Policy.parse({"rules": [{"name": "r", "by": "all", **rule}]}, clock=clock, store=store)
    return RateLimitMiddleware(Starlette(routes=[Route("/", home, methods=["GET", "POST"])]), policy=policy)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("limit", "statuses"), [("3/hour", [200, 200, 200, 429]), ("1 concurrent for 1 hour", [200] * 4)]
)
def test_an_application_with_a_redis_store(backend, limit, statuses, redis_server):
    app = middleware(store=f"{redis_server.url}?deadline=10s", limit=limit, name=f"{limit[:3]} {backend}")
    with TestClient(app, backend=backend) as client:
        answers = [client.get("/") for _ in range(4)]
        client.portal.call(app.policy.aclose)
    assert [answer.status_code for answer in answers] == statuses
    assert [answer.headers.get("retry-after") is None for answer in answers] == [code == 200 for code in statuses]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_request_waits_for_its_turn_in_a_leaky_bucket(backend):
    clock = FakeClock()
    app = middleware(clock, limit="2/second burst 3", algorithm="leaky_bucket")
    with TestClient(app, backend=backend) as client:
        assert [client.post("/", content=b"x").status_code for _ in range(3)] == [200] * 3
    assert clock.now == 1.0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("how", ["disconnects", "is cancelled", "fails"])
def test_a_client_that_leaves_before_its_turn_gives_its_place_back(backend, how):
    clock = FakeClock(auto=False)
    app = middleware(clock, limit="1/second burst 3", algorithm="leaky_bucket")
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "query_string": b"",
        "client": ("192.0.2.1", 1),
    }
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        if how == "disconnects":
            return {"type": "http.disconnect"}
        if how == "fails":
            raise OSError("broken")
        return await anyio.sleep_forever()

    async def send(message):
        raise AssertionError(message)

    async def main():
        request = Request(peer="192.0.2.1")
        assert (await app.policy.acheck(request)).delay == 0
        with anyio.CancelScope() as cancelling:
            async with anyio.create_task_group() as group:

                async def call():
                    if how == "fails":
                        with pytest.raises(OSError, match="broken"):
                            await app(scope, receive, send)
                    else:
                        await app(scope, receive, send)

                group.start_soon(call)
                if how == "is cancelled":
                    await anyio.wait_all_tasks_blocked()
                    cancelling.cancel()
        verdict = await app.policy.acheck(request)
        assert verdict.delay == 1  # the second place, not the third

    anyio.run(main, backend=backend)


RATES = {"memory": "4/second", "redis": "100/second"}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_outbound_requests_of_httpx(backend, kind, redis_server):
    clock = FakeClock()
    store = "memory://" if kind == "memory" else redis_server.url

    async def main():
        inner = httpx.ASGITransport(middleware(clock, limit="10/second burst 3"))
        transport = AsyncPacedTransport(
            inner, RATES[kind], store=store, clock=clock if kind == "memory" else None, name=f"trio {backend}"
        )
        async with httpx.AsyncClient(transport=transport) as client:
            assert [(await client.get("http://api/")).status_code for _ in range(3)] == [200] * 3

    if kind == "memory":
        anyio.run(main, backend=backend)
        assert 0.5 <= clock.now < 0.55  # pacing leaves the server a margin
    else:
        anyio.run(main, backend=backend)
