"""Pauses between tries: never too early, bounded, and spread."""

import asyncio
import random

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper.outbound import Retry
from ratekeeper.outbound.httpx import AsyncPacedTransport
from ratekeeper.testing import FakeClock
from tests import tier


def test_a_thousand_refused_clients_come_back_spread_and_never_early():
    async def main():
        clock = FakeClock(start=1000.0)
        comes: dict[str, list[float]] = {}

        def server(request):
            comes.setdefault(request.url.path, []).append(clock.now)
            first = len(comes[request.url.path]) == 1
            return httpx.Response(429 if first else 200, headers={"retry-after": "30"} if first else {})

        async def one(number):
            retry = Retry(first=8.0)
            transport = AsyncPacedTransport(httpx.MockTransport(server), clock=clock, retry=retry, max_wait=60)
            transport._client.pacer.random = random.Random(number)
            async with httpx.AsyncClient(transport=transport) as session:
                assert (await session.get(f"https://h/{number}")).status_code == 200

        await asyncio.gather(*[one(number) for number in range(200)])
        back = sorted(times[1] for times in comes.values())
        assert back[0] >= 1030.0
        assert back[-1] <= 1038.0
        eighths = [sum(1 for when in back if int(when - 1030.0) == part) for part in range(8)]
        assert all(10 <= count <= 45 for count in eighths), eighths

    asyncio.run(main())


@given(st.integers(0, 100), st.none() | st.integers(0, 10**12), st.integers())
@settings(max_examples=tier.examples(200))
def test_a_pause_is_never_shorter_than_the_servers_wait_nor_longer_than_its_window(tries, wait, seed):
    retry = Retry(first=0.5, cap=20)
    pause = retry.pause(tries, wait, random.Random(seed))
    assert (wait or 0) <= pause <= (wait or 0) + retry.window(tries) * 1_000_000
    assert retry.window(tries) == min(20.0, 0.5 * 2**tries)
