"""aiohttp against a real server that enforces a limit."""

import asyncio

import aiohttp
import pytest

from ratekeeper.outbound.aiohttp import PacedMiddleware
from ratekeeper.outbound.aiohttp import PacingTimeout as AiohttpTimeout
from ratekeeper.testing import FakeClock
from tests.outbound.enforcing import STEADY, EmptyQuota, Enforcing
from tests.outbound.web import serving


def test_aiohttp():
    async def main(url):
        paced = PacedMiddleware(limit="2/second", clock=server.clock, retry=STEADY)
        async with aiohttp.ClientSession(middlewares=[paced]) as session:
            for _ in range(6):
                async with session.get(url) as response:
                    assert (response.status, await response.text()) == (200, "ok")
        await paced.close()
        assert (server.clock.now, server.statuses) == (2.5, [200] * 6)
        hasty = PacedMiddleware(limit="1/minute", max_wait=1, clock=FakeClock(), retry=STEADY)
        async with aiohttp.ClientSession(middlewares=[hasty]) as session:
            await (await session.get(url)).release()
            with pytest.raises(AiohttpTimeout):
                await session.get(url)

    server = Enforcing()
    with serving(server) as url:
        asyncio.run(main(url))


def test_aiohttp_sends_bytes_again_but_not_an_iterator():
    async def pieces():
        yield b"once"

    async def main(url):
        async with aiohttp.ClientSession(middlewares=[PacedMiddleware(clock=server.clock, retry=STEADY)]) as session:
            for body in (b"", b"bytes", "text"):
                async with session.put(url, data=body) as response:
                    assert response.status == 200
            async with session.put(url, data=pieces()) as response:
                assert response.status == 429

    server = Enforcing("1/second")
    with serving(server) as url:
        asyncio.run(main(url))
    assert server.seen == [
        (200, b""), (429, b"bytes"), (200, b"bytes"), (429, b"text"), (200, b"text"), (429, b"once")
    ]  # fmt: skip


def test_retry_after_decides_where_a_response_has_a_reset_too():
    async def main(url):
        paced = PacedMiddleware(clock=server.clock, retry=STEADY, max_wait=8)
        async with aiohttp.ClientSession(middlewares=[paced]) as session, session.get(url) as response:
            assert response.status == 200

    server = EmptyQuota()
    with serving(server) as url:
        asyncio.run(main(url))
    assert server.times == [0.0, 1.0]
