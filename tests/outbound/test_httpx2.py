"""httpx2 against a real server that enforces a limit, with threads and with tasks."""

import asyncio

import httpx2

from ratekeeper.outbound.httpx2 import AsyncPacedTransport, PacedTransport
from tests.outbound.enforcing import STEADY, Enforcing
from tests.outbound.web import serving


def test_httpx2_sync_and_async():
    server = Enforcing()
    with serving(server) as url:
        with httpx2.Client(transport=PacedTransport(limit="2/second", clock=server.clock)) as client:
            assert [client.get(url).status_code for _ in range(10)] == [200] * 10
        assert server.clock.now == 4.5

        async def main():
            transport = AsyncPacedTransport(clock=server.clock, retry=STEADY)
            async with httpx2.AsyncClient(transport=transport) as client:
                for _ in range(4):
                    assert (await client.get(url)).text == "ok"

        asyncio.run(main())
    assert server.statuses[:10] == [200] * 10
    assert 429 in server.statuses[10:]
