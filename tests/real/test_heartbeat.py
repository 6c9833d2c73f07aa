"""Leases that are held for longer than they last, in real time."""

import asyncio
import time

import pytest

from ratekeeper import AsyncLimiter, Policy
from ratekeeper.adapters.asgi import RateLimitMiddleware
from tests.adapters.cases import HERE, rules

pytestmark = pytest.mark.real
LIMIT = "1 concurrent for 1 second"
WORK = 4.0


def store_of(request, name):
    return name if name == "memory://" else f"{request.getfixturevalue('redis_server').url}/9?deadline=5"


@pytest.mark.parametrize("name", ["memory://", "redis://"])
def test_an_async_block_holds_its_lease_for_as_long_as_it_lasts(request, name):
    async def main():
        async with AsyncLimiter(LIMIT, store=store_of(request, name), name="beats") as limiter:
            refused = 0
            async with limiter.reserve("k") as lease:
                until = time.monotonic() + WORK
                while time.monotonic() < until:
                    assert not await limiter.check("k")
                    refused += 1
                    await asyncio.sleep(0.02)
            assert lease.settled
            assert refused > 50
            assert await limiter.check("k")

    asyncio.run(main())


@pytest.mark.parametrize("name", ["memory://", "redis://"])
def test_a_long_stream_holds_its_place_in_the_middleware(request, name):
    async def main():
        policy = Policy.parse(rules({"limit": LIMIT, "name": "streams"}), store=store_of(request, name))
        done = asyncio.Event()

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"] == "/long":
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
        await asyncio.sleep(0.1)
        until = time.monotonic() + WORK
        while time.monotonic() < until:
            assert await call("/") == 429
            await asyncio.sleep(0.05)
        done.set()
        assert await long == 200
        assert await call("/") == 200
        await policy.aclose()

    asyncio.run(main())
