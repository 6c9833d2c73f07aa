"""Leases that are held for longer than they last, in real time."""

import asyncio
import time

import pytest

from ratekeeper import AsyncLimiter, Policy
from ratekeeper.adapters.asgi import RateLimitMiddleware
from tests.adapters.cases import HERE, rules

pytestmark = pytest.mark.real
LIMIT = "1 concurrent for 3 seconds"  # so that a machine that is busy for a second or two loses no lease
WORK = 7.0


def in_each(redis_server, work):
    """``work(store)`` in memory and on a server, at once."""

    async def main():
        await asyncio.gather(*[work(store) for store in ("memory://", f"{redis_server.url}/9?deadline=10")])

    asyncio.run(main())


def test_an_async_block_holds_its_lease_for_as_long_as_it_lasts(redis_server):
    async def work(store):
        async with AsyncLimiter(LIMIT, store=store, name="beats") as limiter:
            refused = 0
            async with limiter.reserve("k") as lease:
                until = time.monotonic() + WORK
                while time.monotonic() < until:
                    assert not await limiter.check("k")
                    refused += 1
                    await asyncio.sleep(0.02)
            assert lease.settled
            assert refused > 20
            assert await limiter.check("k")

    in_each(redis_server, work)


def test_a_long_stream_holds_its_place_in_the_middleware(redis_server):
    async def work(store):
        policy = Policy.parse(rules({"limit": LIMIT, "name": "streams"}), store=store)
        entered, done = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"] == "/long":
                entered.set()
                await done.wait()
            await send({"type": "http.response.body", "body": b"ok"})

        async def call(path):
            told = []

            async def send(message):
                told.append(message)

            scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"",
                     "client": (HERE, 1)}  # fmt: skip
            await RateLimitMiddleware(app, policy)(scope, None, send)
            return told[0]["status"]

        long = asyncio.create_task(call("/long"))
        await entered.wait()
        until = time.monotonic() + WORK
        while time.monotonic() < until:
            assert await call("/") == 429
            await asyncio.sleep(0.05)
        done.set()
        assert await long == 200
        assert await call("/") == 200
        await policy.aclose()

    in_each(redis_server, work)
