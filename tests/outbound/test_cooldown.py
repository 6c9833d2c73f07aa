"""A client that is told to wait waits, and so does its fleet."""

import asyncio

import httpx
import pytest

from ratekeeper.outbound import Retry
from ratekeeper.outbound.cooldown import Cooldowns
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport, PacingTimeout
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.testing import FakeClock
from tests.outbound.provider import STEADY, URL, Server, client


def test_all_callers_stop_when_one_is_told_to_wait():
    async def main():
        clock = FakeClock()
        server = Server(clock, (200, {}), (429, {"retry-after": "10"}))
        transport = AsyncPacedTransport(
            httpx.MockTransport(server), limit="10/second burst 3 leaky_bucket", clock=clock, retry=STEADY
        )
        async with httpx.AsyncClient(transport=transport) as session:
            await asyncio.gather(*[session.get(URL) for _ in range(6)])
        # The second was refused at 0.1; those behind it stopped, and came after the hold, at the pace.
        assert server.times[:2] == [0.0, 0.1]
        assert server.times[2] == 10.1
        assert all(
            later - sooner >= 0.099999 for sooner, later in zip(server.times[2:], server.times[3:], strict=False)
        )
        assert len(server.times) == 7

    asyncio.run(main())


def test_a_hold_is_shared_through_the_store_and_the_later_end_stays():
    clock = FakeClock(start=50.0)
    store = MemoryStore(clock=clock)
    one, two = Server(clock, (429, {"retry-after": "10"})), Server(clock)
    transports = [PacedTransport(httpx.MockTransport(server), store=store, retry=STEADY) for server in (one, two)]
    with httpx.Client(transport=transports[0]) as first, httpx.Client(transport=transports[1]) as second:
        assert first.get(URL, extensions={"ratekeeper": {"max_wait": 1}}).status_code == 429
        with pytest.raises(PacingTimeout, match="turn in time, but it comes in 10"):
            second.get(URL, extensions={"ratekeeper": {"max_wait": 1}})
        second.get(URL)
    assert two.times == [60.0]
    holds = Cooldowns("h", clock, 0)
    for micros, left in ((5_000_000, 5.0), (2_000_000, 5.0), (9_000_000, 9.0)):
        for effect in holds.tell("k", micros):
            store.take(*effect.arguments)
        other = Cooldowns("h", clock, 0)
        flow = other.find("k")
        effect = next(flow)
        with pytest.raises(StopIteration) as done:
            flow.send(store.states(*effect.arguments))
        assert done.value.value == left * 1e6
    assert holds.known("k") == 9_000_000


def test_a_hold_ends_after_an_hour_whatever_was_told():
    clock = FakeClock()
    server = Server(clock, (429, {"retry-after": "999999999"}))
    with client(server, clock, max_wait=None, max_retries=0, retry=Retry(0, first=0.0)) as session:
        assert session.get(URL).status_code == 429
        session.get(URL)
    assert server.times == [0.0, 3600.0]
