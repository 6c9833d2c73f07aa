"""Each client library against a real server that enforces a limit; time is in the test's hand."""

import asyncio
import io
import threading

import aiohttp
import httpx
import pytest
import requests

from ratekeeper import Limiter
from ratekeeper.outbound import Retry, TooLate
from ratekeeper.outbound.aiohttp import PacedMiddleware
from ratekeeper.outbound.aiohttp import PacingTimeout as AiohttpTimeout
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.outbound.requests import PacedAdapter
from ratekeeper.outbound.requests import PacingTimeout as RequestsTimeout
from ratekeeper.testing import FakeClock
from tests.outbound.web import serving
from tests.servers import nobody

STEADY = Retry(first=0.0)


class Enforcing:
    """Answers 200 within its limit and 429 beyond, with a true Retry-After."""

    def __init__(self, limit="2/second", clock=None):
        self.clock = FakeClock() if clock is None else clock
        self.limiter = Limiter(limit, algorithm="token_bucket", clock=self.clock)
        self.lock = threading.Lock()
        self.seen = []

    def __call__(self, method, path, headers, body):
        with self.lock:
            decision = self.limiter.check("all")
            self.seen.append((200 if decision else 429, body))
        if decision:
            return 200, {}, body or b"ok"
        return 429, {"Retry-After": str(-int(-decision.retry_after // 1))}, b"slow down"

    @property
    def statuses(self):
        return [status for status, _ in self.seen]


def test_httpx_both_colours():
    server = Enforcing()
    with serving(server) as url:
        with httpx.Client(transport=PacedTransport(limit="2/second", clock=server.clock)) as client:
            assert [client.get(url).status_code for _ in range(10)] == [200] * 10
        assert server.clock.now == 4.5

        async def main():
            transport = AsyncPacedTransport(clock=server.clock, retry=STEADY)
            async with httpx.AsyncClient(transport=transport) as client:
                for _ in range(4):
                    assert (await client.get(url)).text == "ok"

        asyncio.run(main())
    assert server.statuses[:10] == [200] * 10
    assert 429 in server.statuses[10:]


def test_requests():
    server = Enforcing()
    with serving(server) as url, requests.Session() as session:
        adapter = PacedAdapter(limit="2/second", clock=server.clock, retry=STEADY)
        session.mount("http://", adapter)
        for _ in range(6):
            assert session.get(url).status_code == 200
        assert (server.clock.now, server.statuses) == (2.5, [200] * 6)
        adapter.options = {"max_wait": 0}
        with pytest.raises(RequestsTimeout) as caught:
            session.get(url)
        assert isinstance(caught.value, TooLate)
        assert isinstance(caught.value, requests.exceptions.Timeout)


def test_requests_sends_a_file_again_from_where_it_stood_but_not_an_iterator():
    server = Enforcing("1/second")
    with serving(server) as url, requests.Session() as session:
        session.mount("http://", PacedAdapter(clock=server.clock, retry=STEADY))
        file = io.BytesIO(b"skipped, sent")
        file.seek(9)
        assert session.put(url).status_code == 200
        assert session.put(url, data=file).content == b"sent"
        assert session.put(url, data=iter([b"once"])).status_code == 429
        assert server.seen == [(200, b""), (429, b"sent"), (200, b"sent"), (429, b"once")]


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


@pytest.fixture
def nowhere():
    with nobody() as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("library", ["httpx", "requests", "aiohttp"])
def test_a_server_that_is_not_there_is_tried_again_and_then_reported(library, nowhere):
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
