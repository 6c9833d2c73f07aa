"""httpx against a real server that enforces a limit, with threads and with tasks."""

import asyncio

import httpx
import pytest

from ratekeeper import Policy
from ratekeeper.adapters.asgi import RateLimitMiddleware as ASGIMiddleware
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WSGIMiddleware
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.testing import FakeClock
from tests.outbound.enforcing import STEADY, Enforcing
from tests.outbound.web import serving


def test_httpx_sync_and_async():
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


SMALL_BURSTS = [
    ("10/second burst 1", 1.9),
    ("10/second burst 2", 1.8),
    ("10/second burst 5", 1.6),
    ("10/second", 1.2),
    ("100/minute burst 5", 10.8),
    ("7/second burst 3 token_bucket", 2.6),
    ("10/second burst 2 leaky_bucket", 1.9),
]


@pytest.mark.parametrize(("limit", "at_most"), SMALL_BURSTS)
def test_our_client_uses_the_whole_rate_of_our_server_and_is_never_refused(limit, at_most):
    clock = FakeClock()
    statuses = []

    def app(environ, start_response):
        start_response("200 OK", [])
        return [b"ok"]

    limited = WSGIMiddleware(app, policy=Policy.parse({"rules": [rule_of(limit)]}, clock=clock))

    def recorded(environ, start_response):
        def start(status, headers, *error):
            statuses.append(status)
            return start_response(status, headers, *error)

        return limited(environ | {"REMOTE_ADDR": "192.0.2.1"}, start)

    with httpx.Client(transport=PacedTransport(httpx.WSGITransport(recorded), clock=clock)) as client:
        assert [client.get("http://api/").status_code for _ in range(20)] == [200] * 20
    assert statuses == ["200 OK"] * 20
    assert at_most - 0.55 <= clock.now <= at_most + 1e-5  # the burst is not spent at once, and all of the rate is used


@pytest.mark.parametrize(("limit", "at_most"), SMALL_BURSTS)
def test_our_client_on_an_event_loop_uses_the_whole_rate_of_our_server(limit, at_most):
    clock = FakeClock()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main():
        limited = ASGIMiddleware(app, policy=Policy.parse({"rules": [rule_of(limit)]}, clock=clock))
        transport = AsyncPacedTransport(httpx.ASGITransport(limited, client=("192.0.2.1", 1)), clock=clock)
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(20):
                assert (await client.get("http://api/")).status_code == 200

    asyncio.run(main())
    assert at_most - 0.55 <= clock.now <= at_most + 1e-5


def test_a_refused_client_of_ours_comes_back_after_the_exact_wait():
    clock = FakeClock()
    policy = Policy.parse({"rules": [rule_of("10/second burst 1")]}, clock=clock)

    def app(environ, start_response):
        start_response("200 OK", [])
        return [b"ok"]

    server = httpx.WSGITransport(WSGIMiddleware(app, policy=policy), remote_addr="192.0.2.1")
    httpx.Client(transport=server).get("http://api/")  # another client of the same address
    clock.advance(0.04)
    with httpx.Client(transport=PacedTransport(server, clock=clock, retry=STEADY)) as client:
        assert client.get("http://api/").status_code == 200
    assert clock.now == 0.1


def rule_of(limit):
    text, *algorithm = limit.rsplit(" ", 1) if limit.endswith("bucket") else (limit,)
    rule = {"name": "api", "by": "ip", "limit": text}
    return rule | {"algorithm": algorithm[0]} if algorithm else rule
