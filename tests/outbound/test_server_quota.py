"""A client that learns a server's quota slows down before it is refused."""

import asyncio

import httpx
import pytest

from ratekeeper import Limiter
from ratekeeper.outbound.httpx import AsyncPacedTransport
from ratekeeper.outbound.response_limits import Quota
from ratekeeper.outbound.server_quota import ServerQuotas
from ratekeeper.testing import FakeClock
from tests.outbound.provider import STEADY, URL, Server, client


def test_a_client_slows_down_before_it_is_refused():
    """A server with a fixed window of 20 per 10 seconds: an eager client uses all of it and is never refused."""
    clock = FakeClock()
    window = Limiter("20 per 10 seconds", algorithm="fixed_window", clock=clock)
    refused, came = [], []

    def server(request):
        decision = window.check("k")
        came.append(clock.now)
        if not decision:
            refused.append(clock.now)
        return httpx.Response(
            200 if decision else 429,
            headers={
                "x-ratelimit-limit": "20",
                "x-ratelimit-remaining": str(decision.remaining),
                "x-ratelimit-reset": f"{decision.reset_after:.6f}",
            },
        )

    with client(server, clock) as session:
        while clock.now < 100:
            session.get(URL)
    assert not refused
    assert len(came) >= 190  # of 200 in ten windows


def test_what_is_learned_settles_at_the_rate_of_a_bucket():
    clock = FakeClock()
    bucket = Limiter("50/second", algorithm="token_bucket", clock=clock)
    answers = []

    def server(request):
        decision = bucket.check("k")
        answers.append(decision.allowed)
        left = decision.remaining
        fields = {"ratelimit-policy": '"b";q=50;w=1', "ratelimit": f'"b";r={left};t=1'}
        return httpx.Response(200 if decision else 429, headers=fields)

    with client(server, clock) as session:
        while clock.now < 20:
            session.get(URL)
    assert answers.count(False) == 0
    assert len(answers) >= 0.97 * 50 * 20


def test_only_quotas_that_count_requests_and_have_a_reset_are_learned(monkeypatch):
    monkeypatch.setattr("ratekeeper.outbound.server_quota.MOST_KEYS", 2)
    quotas = ServerQuotas()
    quotas.observe("a", [Quota("tokens", 0, 9.0, unit="tokens"), Quota("requests", 0)], 0)
    assert quotas.wait("a", 0) == 0
    for key in ("a", "b", "c"):  # the oldest of too many keys is forgotten
        quotas.observe(key, [Quota("requests", 0, 9.0)], 0)
    assert [quotas.wait(key, 0) for key in "abc"] == [0, 9_000_000, 9_000_000]


EMPTY = '"p";r=0;t=30'
DATE = "Mon, 16 Nov 2026 09:30:00 GMT"
BOTH = [
    ((429, {"retry-after": "1", "ratelimit": EMPTY}), 1.0),
    ((403, {"retry-after": "1", "ratelimit": EMPTY}), 1.0),
    ((503, {"retry-after": "1", "ratelimit": EMPTY}), 1.0),
    ((429, {"retry-after": "0", "ratelimit": EMPTY}), 0.0),
    ((429, {"retry-after-ms": "1500", "ratelimit": EMPTY}), 1.5),
    ((429, {"retry-after": "7", "ratelimit": '"p";r=0;t=2'}), 7.0),  # longer than the reset
    ((429, {"retry-after": "1", "ratelimit": '"p";r=0;t=30, "q";r=0;t=3000, "s";r=0;t=1'}), 1.0),
    ((429, {"retry-after": "1", "ratelimit": "limit=9, remaining=0, reset=30"}), 1.0),
    ((429, {"retry-after": "1", "ratelimit-remaining": "0", "ratelimit-reset": "30"}), 1.0),
    ((429, {"retry-after": "1", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}), 1.0),
    ((429, {"retry-after": "1", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "4102444800"}), 1.0),  # a date
    (
        (429, {"date": DATE, "retry-after": DATE.replace("00 G", "02 G"), "ratelimit": EMPTY}),
        2.0,
    ),
    (
        (429, {"date": DATE, "retry-after": "3", "anthropic-ratelimit-requests-remaining": "0",
               "anthropic-ratelimit-requests-reset": "2026-11-16T09:31:00Z"}),
        3.0,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "wait"), BOTH)
def test_retry_after_decides_where_a_response_has_a_reset_too(answer, wait):
    clock = FakeClock()
    server = Server(clock, answer)
    with client(server, clock, max_wait=8) as session:
        assert session.get(URL).status_code == 200
        assert session.get(URL).status_code == 200
    assert server.times == [0.0, wait, wait]


@pytest.mark.parametrize(("answer", "wait"), BOTH)
def test_retry_after_decides_on_an_event_loop_and_for_callers_that_wait_together(answer, wait):
    async def main():
        transport = AsyncPacedTransport(httpx.MockTransport(server), clock=clock, retry=STEADY, max_wait=8)
        async with httpx.AsyncClient(transport=transport) as session:
            assert (await session.get(URL)).status_code == 200
            return await asyncio.gather(*[session.get(URL) for _ in range(3)])

    clock = FakeClock()
    server = Server(clock, answer)
    assert [response.status_code for response in asyncio.run(main())] == [200] * 3
    assert server.times == [0.0, *[wait] * 4]


def test_retry_after_decides_over_what_earlier_responses_said():
    """The first response leaves a gap of half a minute; the second is a refusal that ends after a second."""
    for earlier in ('"p";r=1;t=60', '"p";r=2;t=60'):
        for fields in ({}, {"ratelimit": '"p";r=0;t=60'}, {"ratelimit": '"q";r=0;t=60'}, {"ratelimit": '"p";r=1;t=60'}):
            clock = FakeClock()
            server = Server(clock, (200, {"ratelimit": earlier}), (429, {"retry-after": "1", **fields}))
            with client(server, clock, max_wait=8) as session:
                assert session.get(URL).status_code == 200
                assert session.get(URL).status_code == 200
            assert server.times == [0.0, 0.0, 1.0]


def test_retry_after_of_a_success_replaces_the_reset_of_an_empty_quota():
    for wait in ("3", "50"):
        clock = FakeClock()
        server = Server(clock, (200, {"retry-after": wait, "ratelimit": EMPTY}))
        with client(server, clock, max_wait=60) as session:
            session.get(URL)
            session.get(URL)
        assert server.times == [0.0, float(wait)]


def test_a_quota_that_is_left_is_still_spread_after_a_retry_after():
    clock = FakeClock()
    few = {"ratelimit": '"p";r=4;t=40', "ratelimit-policy": '"p";q=1000;w=60'}
    server = Server(clock, (429, {"retry-after": "1", **few}))
    with client(server, clock) as session:
        for _ in range(3):
            session.get(URL)
    assert server.times[:2] == [0.0, 1.0]
    assert 9.0 < server.times[2] - 1.0 < 11.0
