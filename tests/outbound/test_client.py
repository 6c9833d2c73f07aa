"""Every client library retries a server that refuses connections."""

import asyncio

import aiohttp
import httpx
import pytest
import requests

from ratekeeper.outbound import Retry
from ratekeeper.outbound.aiohttp import PacedMiddleware
from ratekeeper.outbound.httpx import PacedTransport
from ratekeeper.outbound.requests import PacedAdapter
from ratekeeper.testing import FakeClock
from tests.servers import closed_port


@pytest.fixture
def nowhere():
    with closed_port() as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("library", ["httpx", "requests", "aiohttp"])
def test_a_refused_connection_is_retried_and_then_raised(library, nowhere):
    clock = FakeClock()
    retry = Retry(2, first=1.0)
    if library == "httpx":
        with (
            httpx.Client(transport=PacedTransport(clock=clock, retry=retry)) as client,
            pytest.raises(httpx.ConnectError),
        ):
            client.post(nowhere)
    elif library == "requests":
        with requests.Session() as session:
            session.mount("http://", PacedAdapter(clock=clock, retry=retry))
            with pytest.raises(requests.exceptions.ConnectionError):
                session.post(nowhere)
    else:

        async def main():
            async with aiohttp.ClientSession(middlewares=[PacedMiddleware(clock=clock, retry=retry)]) as session:
                with pytest.raises(aiohttp.ClientConnectorError):
                    await session.post(nowhere)

        asyncio.run(main())
    assert 0.0 < clock.now <= 3.0  # two waits, drawn from one second and from two
